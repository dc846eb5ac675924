//! `lab.toml`: what `lab own` sends and does → the lab's settings.

use super::load::{problems_error, top_of};
use super::parse::{Problem, Reading, Section, Text, nearest};
use crate::exit::{CliError, Exit};
use handstamp_lab::own::{
    BrokerSettings, CountedBy, Faults, MESSAGE_WORDS, Messages, PROGRAM_WORDS, Settings, words,
};
use std::path::Path;
use std::time::Duration;
use toml_edit::{Document, TableLike};

/// The page that describes the keys.
const PAGE: &str = "docs/guides/test-your-consumer.md";
/// Most of anything that is counted.
const COUNT_MAX: u64 = 1_000_000;

/// Reads and checks a file of the lab; the program comes from the command line.
///
/// # Errors
/// Every problem with its line, as one usage error.
pub(crate) fn load_lab(file: &Path, program: &[String]) -> Result<Settings, CliError> {
    let text =
        std::fs::read_to_string(file).map_err(|error| CliError::io(Exit::Usage, "read", file, &error))?;
    let lookup = |name: &str| std::env::var(name);
    let reading = Reading::new(&text, &lookup);
    let document: Document<&str> =
        top_of(&text, &reading).map_err(|problem| problems_error(file, &[problem], PAGE))?;
    let top = reading.section("", document.as_table() as &dyn TableLike, 1);
    let folder = file.parent().unwrap_or(Path::new("."));
    let settings = settings(&top, program, folder);
    top.finish();
    let problems = reading.into_problems();
    match settings {
        Some(settings) if problems.is_empty() => Ok(settings),
        None if problems.is_empty() => {
            let message = "the file is not complete".to_owned();
            Err(problems_error(file, &[Problem { line: 1, message }], PAGE))
        }
        _ => Err(problems_error(file, &problems, PAGE)),
    }
}

fn settings(top: &Section<'_, '_>, program: &[String], folder: &Path) -> Option<Settings> {
    let messages = messages(top);
    let (copies, env) = match top.section("program") {
        None => (1, Vec::new()),
        Some(section) => {
            let copies = number(&section, "copies", 1, 256).unwrap_or(1);
            let env = section.scalars("env");
            for (name, text) in &env {
                text.keep_secret();
                check_words(&section, &format!("env.{name}"), text, &PROGRAM_WORDS);
            }
            section.finish();
            (copies, env.into_iter().map(|(name, text)| (name, text.value)).collect())
        }
    };
    let faults = faults(top);
    let counted_by = counted_by(top);
    let broker = broker(top);
    let Database { setup_sql, setup_command, url_parameters } = database(top, folder);
    let seed = number(top, "seed", 0, u64::MAX / 2).unwrap_or(1);
    let patience = top.duration("patience").unwrap_or(Duration::from_secs(90));
    let quiet = top.duration("quiet").unwrap_or(Duration::from_secs(3));
    Some(Settings {
        seed,
        program: program.to_vec(),
        copies: u32::try_from(copies).unwrap_or(1),
        env,
        messages,
        faults,
        broker,
        counted_by: counted_by?,
        url_parameters,
        setup_sql,
        setup_command,
        patience,
        quiet,
    })
}

fn messages(top: &Section<'_, '_>) -> Messages {
    let mut messages = Messages {
        count: 2000,
        id: "{uuid}".to_owned(),
        key: Some("{account}".to_owned()),
        body: r#"{"event_id":"{id}","account_id":{account},"amount":{amount}}"#.to_owned(),
        headers: vec![("event_id".to_owned(), "{id}".to_owned())],
        duplicates: 0.05,
        reordered: 0.0,
        bad: 0.0,
        bad_body: "this is no JSON: {n}".to_owned(),
        accounts: 100,
        partitions: 6,
    };
    let Some(section) = top.section("messages") else { return messages };
    let template = |key: &str| {
        let text = section.text(key)?;
        // The id is made before anything else can know it.
        let known = if key == "id" { &["n", "uuid", "account", "amount"][..] } else { &MESSAGE_WORDS };
        check_words(&section, key, &text, known);
        Some(text.value)
    };
    messages.count = number(&section, "count", 1, COUNT_MAX).unwrap_or(messages.count);
    messages.accounts = number(&section, "accounts", 1, COUNT_MAX).unwrap_or(messages.accounts);
    let partitions = number(&section, "partitions", 1, 1000).and_then(|count| i32::try_from(count).ok());
    messages.partitions = partitions.unwrap_or(messages.partitions);
    messages.id = template("id").unwrap_or(messages.id);
    messages.body = template("body").unwrap_or(messages.body);
    messages.bad_body = template("bad_body").unwrap_or(messages.bad_body);
    messages.key = template("key").map_or(messages.key, |key| Some(key).filter(|key| !key.is_empty()));
    if section.has("headers") {
        let headers = section.scalars("headers");
        for (name, text) in &headers {
            check_words(&section, &format!("headers.{name}"), text, &MESSAGE_WORDS);
        }
        messages.headers = headers.into_iter().map(|(name, text)| (name, text.value)).collect();
    }
    messages.duplicates = part(&section, "duplicates").unwrap_or(messages.duplicates);
    messages.reordered = part(&section, "reordered").unwrap_or(messages.reordered);
    messages.bad = part(&section, "bad").unwrap_or(messages.bad);
    section.finish();
    messages
}

fn faults(top: &Section<'_, '_>) -> Faults {
    let mut faults = Faults {
        kills: 10,
        stops: 0,
        cuts: 0,
        broker_cuts: 0,
        after_ms: (1000, 5000),
        stop_for_ms: (8000, 12_000),
    };
    let Some(section) = top.section("faults") else { return faults };
    let times = |key: &str, default: u32| {
        number(&section, key, 0, 10_000).and_then(|times| u32::try_from(times).ok()).unwrap_or(default)
    };
    faults.kills = times("kills", faults.kills);
    faults.stops = times("stops", faults.stops);
    faults.cuts = times("cuts", faults.cuts);
    faults.broker_cuts = times("broker_cuts", faults.broker_cuts);
    faults.after_ms = span(&section, "after").unwrap_or(faults.after_ms);
    faults.stop_for_ms = span(&section, "stop_for").unwrap_or(faults.stop_for_ms);
    section.finish();
    faults
}

/// How effects are counted; `None` when it was not said, with the problem kept.
fn counted_by(top: &Section<'_, '_>) -> Option<CountedBy> {
    let Some(section) = top.section("effects") else {
        top.problem(
            1,
            "effects",
            "is missing; write for example `[effects]` and `query = \"SELECT id FROM ledger\"`",
        );
        return None;
    };
    let query = section.text("query");
    let command = section.texts("command");
    let line = section.line;
    let both = (section.has("query"), section.has("command"));
    section.finish();
    match both {
        (true, true) => top.problem(line, "effects", "say either `query` or `command`, not both"),
        (false, false) => top.problem(
            line,
            "effects",
            "has no `query`; write for example `query = \"SELECT id FROM ledger\"`, or a `command` that prints \
             one id a line",
        ),
        _ => {}
    }
    let query = query.map(|query| CountedBy::Query(query.value.trim().trim_end_matches(';').to_owned()));
    query.or_else(|| command.map(|command| CountedBy::Command(values(command))))
}

/// Listeners before which a proxy may stand, and options of the lab's own clients.
fn broker(top: &Section<'_, '_>) -> BrokerSettings {
    let Some(section) = top.section("broker") else { return BrokerSettings::default() };
    let proxied = section.text("proxied").map(|text| text.value);
    let options = section.scalars("options");
    for (name, text) in &options {
        if ["bootstrap.servers", "metadata.broker.list", "group.id"].contains(&name.as_str()) {
            section.problem(text.line, &format!("options.{name}"), "the lab says this itself");
        }
        if handstamp_core::secret::is_secret(name) {
            text.keep_secret();
        }
    }
    section.finish();
    let options = options.into_iter().map(|(name, text)| (name, text.value)).collect();
    BrokerSettings { proxied, options }
}

/// `[database]`.
#[derive(Default)]
struct Database {
    setup_sql: Option<String>,
    setup_command: Vec<String>,
    url_parameters: Option<String>,
}

/// The user's tables: SQL from a file, a command, or neither; and what the program's URL has beside the lab's.
fn database(top: &Section<'_, '_>, folder: &Path) -> Database {
    let Some(section) = top.section("database") else { return Database::default() };
    let setup_sql = section.text("setup").and_then(|name| {
        let path = folder.join(&name.value);
        let read = std::fs::read_to_string(&path);
        if let Err(error) = &read {
            section.problem(name.line, "setup", format_args!("cannot read {}: {error}", path.display()));
        }
        read.ok()
    });
    let setup_command = section.texts("setup_command").map(values).unwrap_or_default();
    let url_parameters = section.text("parameters").map(|text| text.value);
    section.finish();
    Database { setup_sql, setup_command, url_parameters }
}

fn values(texts: Vec<Text>) -> Vec<String> {
    texts.into_iter().map(|text| text.value).collect()
}

/// Refuses a word in braces that nothing is put in for.
fn check_words(section: &Section<'_, '_>, key: &str, text: &Text, known: &[&str]) {
    for word in words(&text.value).filter(|word| !known.contains(word)) {
        let advice = match nearest(word, known.iter().copied()) {
            Some(near) => format!("did you mean {{{near}}}?"),
            None => format!("known here: {{{}}}", known.join("}, {")),
        };
        section.problem(text.line, key, format_args!("nothing is put in for {{{word}}}; {advice}"));
    }
}

/// A whole number in a range.
fn number(section: &Section<'_, '_>, key: &str, min: u64, max: u64) -> Option<u64> {
    let (item, line) = section.item(key)?;
    let number = item.as_integer().and_then(|number| u64::try_from(number).ok());
    let fits = number.filter(|number| (min..=max).contains(number));
    if fits.is_none() {
        match item.as_integer() {
            None => section.wrong_type(line, key, "a whole number", item),
            Some(number) => section.problem(
                line,
                key,
                format_args!("expected a whole number from {min} to {max}; found {number}"),
            ),
        }
    }
    fits
}

/// A part from 0 to 1.
fn part(section: &Section<'_, '_>, key: &str) -> Option<f64> {
    let (item, line) = section.item(key)?;
    let whole = item.as_integer().filter(|number| (0..=1).contains(number));
    let part = item.as_float().or(match whole {
        Some(0) => Some(0.0),
        Some(_) => Some(1.0),
        None => None,
    });
    let fits = part.filter(|part| (0.0..=1.0).contains(part));
    if fits.is_none() {
        section.problem(line, key, "expected a part from 0 to 1, such as 0.05");
    }
    fits
}

/// A shortest and a longest time, in milliseconds.
fn span(section: &Section<'_, '_>, key: &str) -> Option<(u64, u64)> {
    const EXPECTED: &str = "a time such as \"2s\", or the shortest and the longest: [\"1s\", \"5s\"]";
    let texts = section.texts(key)?;
    let line = texts.first().map_or(section.line, |text| text.line);
    let time = |text: &Text| {
        let time = humantime::parse_duration(text.value.trim()).ok()?;
        u64::try_from(time.as_millis()).ok().filter(|ms| *ms <= 3_600_000)
    };
    let times: Option<Vec<u64>> = texts.iter().map(time).collect();
    let span = match times.as_deref() {
        Some([one]) => Some((*one, *one)),
        Some([from, to]) if from <= to => Some((*from, *to)),
        _ => None,
    };
    if span.is_none() {
        section.problem(line, key, format_args!("expected {EXPECTED}, at most \"1h\""));
    }
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."))
    }

    fn program() -> Vec<String> {
        vec!["true".to_owned()]
    }

    fn of(text: &str) -> Settings {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("lab.toml");
        std::fs::write(&file, text).expect("written");
        load_lab(&file, &program()).expect("read")
    }

    /// The guide shows every key with its default.
    #[test]
    fn the_guide_shows_the_defaults() {
        let guide = std::fs::read_to_string(root().join(PAGE)).expect("read");
        let blocks = guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let block = blocks.max_by_key(|block| block.len()).expect("a block");
        // What has no default is only an example there.
        let only_shown = ["env", "setup", "parameters", "proxied", "options"];
        let lines = block.lines().filter(|line| !only_shown.iter().any(|key| line.starts_with(key)));
        let shown: Vec<&str> = lines.collect();
        assert!(shown.len() > 20, "{block}");
        assert_eq!(of(&shown.join("\n")), of("[effects]\nquery = \"SELECT id FROM ledger\""));
    }

    #[test]
    fn the_examples_are_read() {
        for file in ["examples/lab-python/lab.toml", "examples/embed/lab.toml"] {
            let settings = load_lab(&root().join(file), &program()).expect(file);
            assert!(settings.faults.kills > 0 && settings.setup_sql.is_some(), "{file}");
            assert!(settings.clone().checked(true, true).is_err(), "{file}: cuts need Postgres");
            settings.checked(false, true).expect(file);
        }
    }

    #[test]
    fn what_clients_of_the_broker_need_is_read() {
        let settings = of("[broker]\nproxied = \"127.0.0.1:1=127.0.0.1:2\"\n\
                           options = { \"security.protocol\" = \"SASL_PLAINTEXT\", \"sasl.username\" = \"me\" }\n\
                           [database]\nparameters = \"sslmode=require\"\n[faults]\nbroker_cuts = 3\n\
                           [effects]\nquery = \"SELECT 1\"");
        assert_eq!(settings.broker.proxied.as_deref(), Some("127.0.0.1:1=127.0.0.1:2"));
        assert_eq!(settings.broker.options[1], ("sasl.username".to_owned(), "me".to_owned()));
        assert_eq!(settings.url_parameters.as_deref(), Some("sslmode=require"));
        assert_eq!(settings.faults.broker_cuts, 3);
    }

    #[test]
    fn what_says_the_same_in_other_words_is_the_same() {
        let short =
            of("[faults]\nafter = \"2s\"\n[messages]\nkey = \"\"\nbad = 1\n[effects]\ncommand = \"list\"");
        assert_eq!(short.faults.after_ms, (2000, 2000));
        assert_eq!((short.messages.key, short.messages.bad), (None, 1.0));
        assert_eq!(short.counted_by, CountedBy::Command(vec!["list".to_owned()]));
    }
}
