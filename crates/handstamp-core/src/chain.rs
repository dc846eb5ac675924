//! Telling an error and the errors behind it without saying a thing twice (pure).
//!
//! Drivers put what the inner error says into the outer one, or a label before it; a person reads it once.

/// What a driver's error says that leaves the rest to the one behind it.
const LABELS: [&str; 1] = ["db error"];
/// Shorter ends of a line are no repetition but a number or a name.
const END_BYTES_MIN: usize = 8;

/// What a text adds to what was said before, line by line; `None` when that is nothing.
#[must_use]
pub fn added(said: &str, text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().filter_map(|line| added_by_line(said, line)).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// A line without the end that was said before, by others or by itself; its labels alone add nothing.
fn added_by_line<'l>(said: &str, line: &'l str) -> Option<&'l str> {
    let ends = line.match_indices(": ").map(|(at, colon)| at + colon.len());
    let is_said = |start: &usize| {
        let end = &line[*start..];
        (*start == 0 || end.len() >= END_BYTES_MIN) && (said.contains(end) || line[..*start].contains(end))
    };
    let cut = std::iter::once(0).chain(ends).find(is_said);
    let kept = cut.map_or(line, |start| line[..start].trim_end_matches(": "));
    let is_label = |clause: &str| !clause.contains(' ') || LABELS.contains(&clause);
    let says_nothing = LABELS.contains(&kept) || (cut.is_some() && kept.split(": ").all(is_label));
    (!says_nothing).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_told() {
        let said = "reading: the column a is missing (SQLSTATE 42703)";
        for (text, new) in [
            ("the column a is missing", None),
            ("db error", None),
            ("ERROR: the column a is missing", None),
            ("db error: ERROR: the column a is missing", None),
            ("ERROR: the column a is missing\nDETAIL: there is b", Some("DETAIL: there is b")),
            ("fetching: it failed: the column a is missing", Some("fetching: it failed")),
            ("it is no file: code 26: it is no file", Some("it is no file: code 26")),
            ("Connection refused (os error 111)", Some("Connection refused (os error 111)")),
            // Short ends are names and numbers.
            ("code: a", Some("code: a")),
            ("", None),
        ] {
            assert_eq!(added(said, text).as_deref(), new, "{text}");
        }
    }
}
