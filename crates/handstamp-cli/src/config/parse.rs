//! Reading TOML tables key by key: types, units, variables, and what is unknown.
//!
//! Every problem is kept with its line, so that one run shows all of them. No problem shows a value
//! that came from the environment.

use super::env::{ExpandError, Lookup, expand};
use crate::redact;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;
use toml_edit::{Item, TableLike};

/// Most problems that are kept; a file with more is something else.
const PROBLEMS_MAX: usize = 20;

/// Longest time that may be said: far from what a clock can add, and longer than anybody waits.
pub(crate) const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Largest count that may be said; what is made of it still fits into a number.
const COUNT_MAX: u64 = 1_000_000;
/// Largest size that may be said: 1 TiB, where the machine can count so far.
const SIZE_MAX: u64 = 1 << 40;

/// One mistake in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Line from 1.
    pub(crate) line: usize,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

/// A string of the file, after its variables were put in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Text {
    /// The text to use.
    pub(crate) value: String,
    /// The text as the file has it, where variables were put in.
    raw: Option<String>,
    /// The whole text is a credential.
    secret: bool,
    /// False where a variable is not set in a part that the command does not use: the text stands for itself.
    known: bool,
    /// Line from 1; 0 for a default.
    pub(crate) line: usize,
}

impl Text {
    /// A text that comes from our own defaults.
    pub(crate) fn fixed(value: impl Into<String>) -> Self {
        Self { value: value.into(), raw: None, secret: false, known: true, line: 0 }
    }

    /// The text as it may be shown: variables by name, passwords masked.
    pub(crate) fn shown(&self) -> String {
        match &self.raw {
            Some(raw) => redact::masked_url(raw),
            None if self.secret => redact::MASK.to_owned(),
            None => redact::masked_url(&self.value),
        }
    }

    /// Whether its variables were put in.
    pub(crate) fn is_known(&self) -> bool {
        self.known
    }

    /// Says that the whole text is a credential: only a lone variable's name may be shown.
    pub(crate) fn mark_secret(&mut self) {
        self.raw = self.raw.as_deref().and_then(lone_variable);
        self.secret = true;
        if self.known {
            redact::register(&self.value);
        }
    }

    /// Makes sure that the value never appears in any output: for keys that hold credentials.
    pub(crate) fn keep_secret(&self) {
        // A number or a switch is no credential, and masking it would hide counts.
        let plain = self.value.parse::<f64>().is_ok() || self.value.parse::<bool>().is_ok();
        if self.raw.is_some() && self.known && !plain {
            redact::register(&self.value);
        }
        redact::register_url(&self.value);
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shown())
    }
}

/// `${NAME}`, when that is the whole text; its default is masked.
fn lone_variable(raw: &str) -> Option<String> {
    let inside = raw.strip_prefix("${")?.strip_suffix('}')?;
    let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, text)| (name, Some(text)));
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    match default {
        None => Some(format!("${{{name}}}")),
        Some("") => Some(format!("${{{name}:-}}")),
        Some(text) if text.contains(['}', '$']) => None,
        Some(_) => Some(format!("${{{name}:-{}}}", redact::MASK)),
    }
}

/// The file being read and what was found wrong in it.
pub(crate) struct Reading<'a> {
    text: &'a str,
    lookup: Lookup<'a>,
    problems: RefCell<Vec<Problem>>,
    /// The sections that know a key of a name.
    pub(super) sections_of: fn(&str) -> Vec<&'static str>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(text: &'a str, lookup: Lookup<'a>) -> Self {
        Self { text, lookup, problems: RefCell::default(), sections_of: |_| Vec::new() }
    }

    /// Keeps a problem.
    pub(crate) fn problem(&self, line: usize, message: impl Into<String>) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(Problem { line, message: message.into() });
        }
    }

    /// What was found wrong, in the order of the file.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| problem.line);
        problems
    }

    /// The line of a byte position.
    pub(crate) fn line_of(&self, span: Option<std::ops::Range<usize>>) -> usize {
        let at = span.map_or(0, |span| span.start).min(self.text.len());
        self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    /// A table of the file under its name; the top has an empty one.
    pub(crate) fn section<'r>(
        &'r self,
        path: &str,
        table: &'r dyn TableLike,
        line: usize,
    ) -> Section<'r, 'a> {
        Section {
            reading: self,
            path: path.to_owned(),
            table,
            line,
            lenient: false,
            known: RefCell::default(),
        }
    }
}

/// One table. Each accessor also says that its key is known; [`Section::finish`] refuses the others.
pub(crate) struct Section<'r, 'a> {
    reading: &'r Reading<'a>,
    path: String,
    table: &'r dyn TableLike,
    /// Where the table begins.
    pub(crate) line: usize,
    /// The command does not use it: a variable that is not set is no mistake.
    pub(crate) lenient: bool,
    known: RefCell<Vec<String>>,
}

impl<'r, 'a> Section<'r, 'a> {
    /// The key's full name, for messages.
    pub(crate) fn name_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Keeps a problem of a key.
    pub(crate) fn problem(&self, line: usize, key: &str, message: impl fmt::Display) {
        self.reading.problem(line, format!("{}: {message}", self.name_of(key)));
    }

    /// The raw item and its line.
    pub(crate) fn item(&self, key: &str) -> Option<(&'r Item, usize)> {
        self.known.borrow_mut().push(key.to_owned());
        let (name, item) = self.table.get_key_value(key)?;
        Some((item, self.reading.line_of(name.span().or_else(|| item.span()))))
    }

    /// Keys present in the table, with their lines.
    pub(crate) fn keys(&self) -> Vec<(String, usize)> {
        self.table
            .iter()
            .map(|(key, item)| {
                let span = self.table.key(key).and_then(toml_edit::Key::span).or_else(|| item.span());
                (key.to_owned(), self.reading.line_of(span))
            })
            .collect()
    }

    /// Whether the key is there; does not make it known.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// A table below this one.
    pub(crate) fn section(&self, key: &str) -> Option<Section<'r, 'a>> {
        let (item, line) = self.item(key)?;
        let Some(table) = item.as_table_like() else {
            self.wrong_type(line, key, "a table", item);
            return None;
        };
        Some(self.below(&self.name_of(key), table, line))
    }

    fn below(&self, path: &str, table: &'r dyn TableLike, line: usize) -> Self {
        Self { lenient: self.lenient, ..self.reading.section(path, table, line) }
    }

    /// The tables of `[[key]]`.
    pub(crate) fn sections(&self, key: &str) -> Vec<Section<'r, 'a>> {
        let Some((item, line)) = self.item(key) else { return Vec::new() };
        let tables: Option<Vec<&dyn TableLike>> = match item {
            Item::ArrayOfTables(tables) => Some(tables.iter().map(|table| table as &dyn TableLike).collect()),
            Item::Value(toml_edit::Value::Array(array)) => array
                .iter()
                .map(|value| value.as_inline_table().map(|table| table as &dyn TableLike))
                .collect(),
            _ => None,
        };
        let Some(tables) = tables else {
            self.wrong_type(line, key, &format!("tables written as [[{key}]]"), item);
            return Vec::new();
        };
        let number = |index: usize| format!("{}[{}]", self.name_of(key), index + 1);
        let first_line = |table: &dyn TableLike| {
            let spans = table.iter().filter_map(|(key, _)| table.key(key).and_then(toml_edit::Key::span));
            spans.min_by_key(|span| span.start).map_or(line, |span| self.reading.line_of(Some(span)))
        };
        tables
            .into_iter()
            .enumerate()
            .map(|(index, table)| self.below(&number(index), table, first_line(table)))
            .collect()
    }

    /// A string with its variables put in.
    pub(crate) fn text(&self, key: &str) -> Option<Text> {
        let (item, line) = self.item(key)?;
        let Some(text) = item.as_str() else {
            self.wrong_type(line, key, "a string in quotes", item);
            return None;
        };
        self.expanded(line, key, text)
    }

    /// A string that must be there.
    pub(crate) fn required_text(&self, key: &str, example: &str) -> Option<Text> {
        if !self.has(key) {
            self.known.borrow_mut().push(key.to_owned());
            self.problem(self.line, key, format_args!("is missing; write for example `{key} = {example}`"));
            return None;
        }
        self.text(key)
    }

    /// A list of strings, or one string.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<Text>> {
        let (item, line) = self.item(key)?;
        if let Some(text) = item.as_str() {
            return self.expanded(line, key, text).map(|text| vec![text]);
        }
        let strings: Option<Vec<&str>> =
            item.as_array().and_then(|array| array.iter().map(toml_edit::Value::as_str).collect());
        let Some(strings) = strings else {
            self.wrong_type(line, key, "a list of strings", item);
            return None;
        };
        strings.into_iter().map(|text| self.expanded(line, key, text)).collect()
    }

    /// A length of time with its unit.
    pub(crate) fn duration(&self, key: &str) -> Option<Duration> {
        const EXPECTED: &str = "a time with its unit in quotes, such as \"30s\", \"200ms\" or \"0s\"";
        let (item, line) = self.item(key)?;
        let Some(text) = item.as_str() else {
            self.wrong_type(line, key, EXPECTED, item);
            return None;
        };
        let text = self.expanded(line, key, text).filter(Text::is_known)?;
        let parsed = humantime::parse_duration(text.value.trim()).ok();
        if parsed.is_none() {
            self.problem(line, key, format_args!("expected {EXPECTED}; found {}", quoted(&text)));
        }
        if parsed.is_some_and(|time| time > TIME_MAX) {
            self.problem(line, key, format_args!("at most \"365days\"; found {}", quoted(&text)));
            return None;
        }
        parsed
    }

    /// A number of bytes, with or without a unit.
    pub(crate) fn size(&self, key: &str) -> Option<usize> {
        const EXPECTED: &str = "a number of bytes, or a size in quotes such as \"4 MiB\"";
        let (item, line) = self.item(key)?;
        if let Some(number) = item.as_integer() {
            let size = self.checked_number(line, key, EXPECTED, number, 1)?;
            return self.at_most(line, key, size, SIZE_MAX, "1024 GiB");
        }
        let Some(text) = item.as_str() else {
            self.wrong_type(line, key, EXPECTED, item);
            return None;
        };
        let text = self.expanded(line, key, text).filter(Text::is_known)?;
        let parsed = parse_size(&text.value);
        if parsed.is_none() {
            self.problem(line, key, format_args!("expected {EXPECTED}; found {}", quoted(&text)));
        }
        self.at_most(line, key, parsed?, SIZE_MAX, "1024 GiB")
    }

    /// A whole number of at least 1.
    pub(crate) fn count(&self, key: &str) -> Option<usize> {
        self.number(key, 1, "a whole number of at least 1")
    }

    /// A whole number; 0 turns something off.
    pub(crate) fn count_or_none(&self, key: &str) -> Option<usize> {
        self.number(key, 0, "a whole number")
    }

    fn number(&self, key: &str, least: usize, expected: &str) -> Option<usize> {
        let (item, line) = self.item(key)?;
        let number = match (item.as_integer(), item.as_str()) {
            (Some(number), _) => Some(number),
            // Only a variable may stand in quotes where a number is expected.
            (None, Some(text)) if text.contains("${") => {
                let text = self.expanded(line, key, text).filter(Text::is_known)?;
                let number = text.value.trim().parse().ok();
                if number.is_none() {
                    self.problem(line, key, format_args!("expected {expected}; found {}", quoted(&text)));
                    return None;
                }
                number
            }
            _ => None,
        };
        let Some(number) = number else {
            self.wrong_type(line, key, expected, item);
            return None;
        };
        let count = self.checked_number(line, key, expected, number, least)?;
        self.at_most(line, key, count, COUNT_MAX, "1000000")
    }

    /// True or false.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        let (item, line) = self.item(key)?;
        let flag = item.as_bool();
        if flag.is_none() {
            self.wrong_type(line, key, "true or false", item);
        }
        flag
    }

    /// One of some words.
    pub(crate) fn one_of<T: Copy>(&self, key: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(key).filter(Text::is_known)?;
        let found = choices.iter().find(|(word, _)| *word == text.value).map(|(_, value)| *value);
        if found.is_none() {
            let words: Vec<String> = choices.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            let near = nearest(&text.value, choices.iter().map(|(word, _)| *word))
                .map_or(String::new(), |word| format!("; did you mean \"{word}\"?"));
            self.problem(
                text.line,
                key,
                format_args!("expected one of {}; found {}{near}", words.join(", "), quoted(&text)),
            );
        }
        found
    }

    /// A free table of strings, numbers and booleans, as text.
    pub(crate) fn scalars(&self, key: &str) -> Vec<(String, Text)> {
        let Some(section) = self.section(key) else { return Vec::new() };
        let mut out = Vec::new();
        for (name, line) in section.keys() {
            let Some((item, _)) = section.item(&name) else { continue };
            let text = match item.as_value() {
                Some(toml_edit::Value::String(text)) => section.expanded(line, &name, text.value()),
                Some(toml_edit::Value::Integer(number)) => {
                    Some(Text { line, ..Text::fixed(number.value().to_string()) })
                }
                Some(toml_edit::Value::Float(number)) => {
                    Some(Text { line, ..Text::fixed(number.value().to_string()) })
                }
                Some(toml_edit::Value::Boolean(flag)) => {
                    Some(Text { line, ..Text::fixed(flag.value().to_string()) })
                }
                _ => {
                    let dotted = if item.is_table_like() { "; write a name with dots in quotes" } else { "" };
                    section.problem(
                        line,
                        &name,
                        format_args!(
                            "expected a string, a number or true/false; found {}{dotted}",
                            kind_of(item)
                        ),
                    );
                    None
                }
            };
            out.extend(text.map(|text| (name, text)));
        }
        out
    }

    /// Refuses the keys that nothing asked for.
    pub(crate) fn finish(self) {
        let known = self.known.borrow();
        for (key, line) in self.keys() {
            if known.contains(&key) {
                continue;
            }
            let mut all: Vec<&str> = known.iter().map(String::as_str).collect();
            all.sort_unstable();
            all.dedup();
            let advice = match nearest(&key, all.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => match (self.reading.sections_of)(&key).as_slice() {
                    [section] if !section.is_empty() => format!("it belongs to [{section}]"),
                    _ => format!("known here: {}", all.join(", ")),
                },
            };
            self.problem(line, &key, format_args!("unknown key; {advice}"));
        }
    }

    /// Keeps the problem of a value that has another type.
    pub(crate) fn wrong_type(&self, line: usize, key: &str, expected: &str, item: &Item) {
        self.problem(line, key, format_args!("expected {expected}; found {}", kind_of(item)));
    }

    /// Puts variables into a string of this section.
    pub(crate) fn expanded(&self, line: usize, key: &str, text: &str) -> Option<Text> {
        let unknown =
            || Text { value: text.to_owned(), raw: Some(text.to_owned()), secret: false, known: false, line };
        match expand(text, self.reading.lookup) {
            Ok(done) if self.lenient && done.changed && done.value.is_empty() => Some(unknown()),
            Ok(done) => {
                let raw = done.changed.then(|| text.to_owned());
                Some(Text { value: done.value, raw, secret: false, known: true, line })
            }
            Err(ExpandError::Missing(_) | ExpandError::NotText(_)) if self.lenient => Some(unknown()),
            Err(error) => {
                self.problem(line, key, error);
                None
            }
        }
    }

    fn at_most(&self, line: usize, key: &str, number: usize, max: u64, shown: &str) -> Option<usize> {
        let fits = u64::try_from(number).is_ok_and(|number| number <= max);
        if !fits {
            self.problem(line, key, format_args!("at most {shown}"));
        }
        fits.then_some(number)
    }

    fn checked_number(
        &self,
        line: usize,
        key: &str,
        expected: &str,
        number: i64,
        least: usize,
    ) -> Option<usize> {
        let checked = usize::try_from(number).ok().filter(|number| *number >= least);
        if checked.is_none() {
            self.problem(line, key, format_args!("expected {expected}; found {number}"));
        }
        checked
    }
}

/// A value as a message may show it: variables by name, cut, passwords masked.
fn quoted(text: &Text) -> String {
    let shown: String = text.shown().chars().take(60).collect();
    format!("{shown:?}")
}

/// What a value is; never the value, which may be a credential in the wrong place.
fn kind_of(item: &Item) -> String {
    match item.as_value() {
        Some(toml_edit::Value::Integer(_)) => "a whole number".to_owned(),
        Some(toml_edit::Value::Float(_)) => "a number with a fraction".to_owned(),
        Some(toml_edit::Value::Boolean(flag)) => flag.value().to_string(),
        Some(toml_edit::Value::String(_)) => "a string".to_owned(),
        Some(toml_edit::Value::Array(_)) => "a list".to_owned(),
        Some(toml_edit::Value::Datetime(_)) => "a date without quotes".to_owned(),
        _ if item.is_array_of_tables() => "tables written as [[…]]".to_owned(),
        _ => "a table".to_owned(),
    }
}

/// The known word that is spelled most alike, if any is near enough to be meant.
pub(crate) fn nearest<'w>(word: &str, known: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let folded = word.to_lowercase().replace('-', "_");
    known
        .map(|candidate| (strsim::damerau_levenshtein(&folded, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len().min(word.len()) / 3)
        .map(|(_, candidate)| candidate)
}

/// `4 MiB`, `16MB`, `512` and the like; `None` when it is no size or nothing at all.
pub(crate) fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: usize = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit).filter(|bytes| *bytes >= 1)
}

/// A number of bytes in the largest unit that loses nothing.
pub(crate) fn shown_size(bytes: usize) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= unit && bytes.is_multiple_of(unit) {
            return format!("{} {name}", bytes / unit);
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_come_back() {
        for (text, bytes) in [
            ("4 MiB", Some(4 << 20)),
            ("16MB", Some(16_000_000)),
            ("512", Some(512)),
            ("1 kib", Some(1024)),
            ("0", None),
            ("", None),
            ("4 miles", None),
            ("-1", None),
            ("99999999999999999999 GiB", None),
            ("18446744073709551615 GiB", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
            if let Some(bytes) = bytes {
                assert_eq!(parse_size(&shown_size(bytes)), Some(bytes));
            }
        }
    }

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["brokers", "topics", "batch_max"];
        assert_eq!(nearest("brokr", known.into_iter()), Some("brokers"));
        assert_eq!(nearest("batch-max", known.into_iter()), Some("batch_max"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }
}
