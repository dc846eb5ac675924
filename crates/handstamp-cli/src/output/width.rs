//! How wide what people read may be, and how it is made to fit (pure but for the question).
//!
//! Authoritative: `COLUMNS` where it is set, then the terminal; where neither says anything, a hundred columns.
//! Objects for programs are whole, whatever the width.

/// Where nobody says how wide it is.
const COLUMNS: usize = 100;
/// What is narrower cannot show a key with anything beside it.
const COLUMNS_MIN: usize = 72;
/// Nobody reads a longer line.
const COLUMNS_MAX: usize = 400;

/// Columns that a line for people may take.
pub(crate) fn columns() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    told.or_else(terminal)
        .filter(|columns| *columns > 0)
        .map_or(COLUMNS, |columns| columns.clamp(COLUMNS_MIN, COLUMNS_MAX))
}

/// Columns of a text.
pub(crate) fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// At most so many columns; what is cut ends with a sign of it.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if width_of(text) <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// At most so many columns; the end stays, as that of a path does.
pub(crate) fn cut_front(text: &str, columns: usize) -> String {
    let width = width_of(text);
    if width <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(width - columns.saturating_sub(1)).collect();
    format!("…{kept}")
}

/// The lines of a text that are at most so wide; only what is a single word is broken within.
pub(crate) fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let mut word = word;
        let gap = usize::from(used > 0);
        if used + gap + width_of(word) > columns && used > 0 {
            lines.push(String::new());
            used = 0;
        }
        while width_of(word) > columns {
            let at = word.char_indices().nth(columns).map_or(word.len(), |(at, _)| at);
            if let Some(line) = lines.last_mut() {
                line.push_str(&word[..at]);
            }
            word = &word[at..];
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            line.push_str(word);
            used += width_of(word);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

/// A text behind a head: its further lines begin below its first.
pub(crate) fn behind(head: &str, text: &str, columns: usize) -> String {
    let indent = width_of(head);
    let lines = wrap(text, columns.saturating_sub(indent));
    let further = " ".repeat(indent);
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        out.push_str(if at == 0 { head } else { &further });
        out.push_str(line);
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_cut_says_so_and_what_fits_is_whole() {
        assert_eq!((cut("abcdef", 6), cut("abcdef", 5)), ("abcdef".into(), "abcd…".into()));
        assert_eq!((cut_front("abcdef", 6), cut_front("abcdef", 5)), ("abcdef".into(), "…cdef".into()));
        assert_eq!(cut("ab cdef", 4), "ab…");
        assert_eq!(behind("ok   ", "one two three", 12), "ok   one two\n     three\n");
    }

    proptest! {
        /// No line is wider, and no character but spaces at the ends of lines is lost.
        #[test]
        fn wrapped_lines_fit_and_lose_nothing(text in "[a-zé ]{0,80}", columns in 1_usize..30) {
            let lines = wrap(&text, columns);
            prop_assert!(lines.iter().all(|line| width_of(line) <= columns), "{lines:?}");
            let letters = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }

        #[test]
        fn what_is_cut_fits(text in "[a-zé ]{0,40}", columns in 1_usize..30) {
            prop_assert!(width_of(&cut(&text, columns)) <= columns);
            prop_assert!(width_of(&cut_front(&text, columns)) <= columns);
        }
    }
}
