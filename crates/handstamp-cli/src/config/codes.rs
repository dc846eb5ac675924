//! The codes of `[retry.on]` (pure): what a database calls a failure, and what was probably meant.
//!
//! | database | a code is |
//! |---|---|
//! | Postgres | a SQLSTATE: five of 0-9 and A-Z |
//! | SQLite | an extended result code, a number whose lowest byte is a primary code |

use super::model::StoreSection;
use super::parse::nearest;

/// Failures that are called differently by each: a name, the SQLSTATE, SQLite's number.
const KNOWN: [(&str, &str, &str); 6] = [
    ("foreign_key_violation", "23503", "787"),
    ("unique_violation", "23505", "2067"),
    ("not_null_violation", "23502", "1299"),
    ("check_violation", "23514", "275"),
    ("primary_key_violation", "23505", "1555"),
    ("raise_exception", "P0001", "1811"),
];
/// SQLite's primary codes of errors end here (`SQLITE_NOTADB`).
const PRIMARY_MAX: u32 = 26;
/// No extended code of SQLite is larger by far.
const EXTENDED_MAX: u32 = 0xffff;

/// What is wrong with a code for this store, and what to write; `None`: nothing is.
pub(super) fn problem(code: &str, store: &StoreSection) -> Option<String> {
    match store {
        StoreSection::Postgres(_) if is_sqlstate(code) => None,
        StoreSection::Postgres(_) => Some(format!(
            "is no SQLSTATE, which has five of 0-9 and A-Z, such as \"23503\"{}",
            meant(code, |(_, sqlstate, _)| sqlstate)
        )),
        StoreSection::Sqlite(_) if is_sqlite_code(code) => None,
        StoreSection::Sqlite(_) => Some(format!(
            "is no code of SQLite, which is a number such as \"787\"{}",
            meant(code, |(.., number)| number)
        )),
    }
}

fn is_sqlstate(code: &str) -> bool {
    code.len() == 5 && code.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

fn is_sqlite_code(code: &str) -> bool {
    let plain = code.bytes().all(|byte| byte.is_ascii_digit()) && !code.starts_with('0');
    let number: Option<u32> = code.parse().ok().filter(|_| plain);
    number.is_some_and(|number| number <= EXTENDED_MAX && (1..=PRIMARY_MAX).contains(&(number & 0xff)))
}

fn meant<'k>(code: &str, of: impl Fn((&'k str, &'k str, &'k str)) -> &'k str) -> String {
    let upper = code.to_uppercase();
    let same = KNOWN.into_iter().find(|(_, sqlstate, number)| *sqlstate == upper || *number == code);
    let named = || {
        let name = nearest(&code.to_lowercase(), KNOWN.iter().map(|(name, ..)| *name))?;
        KNOWN.into_iter().find(|(known, ..)| *known == name)
    };
    match same.or_else(named) {
        Some(known) if of(known) != code => format!("; did you mean \"{}\" ({})?", of(known), known.0),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::SqliteSection;
    use super::super::parse::Text;
    use super::*;

    #[test]
    fn each_database_has_its_own_codes_and_what_was_meant_is_said() {
        let sqlite = StoreSection::Sqlite(SqliteSection {
            path: Text::fixed("w.db"),
            setup: None,
            lock_timeout: std::time::Duration::ZERO,
        });
        for code in ["787", "2067", "1299", "275", "1555", "1811", "1", "18", "19", "20", "25"] {
            assert_eq!(problem(code, &sqlite), None, "{code}");
        }
        for (code, words) in [
            ("abc", "such as \"787\""),
            ("23503", "did you mean \"787\" (foreign_key_violation)?"),
            ("23505", "did you mean \"2067\""),
            ("unique_violaton", "did you mean \"2067\" (unique_violation)?"),
            ("P0001", "did you mean \"1811\""),
            ("0", "is no code"),
            ("007", "is no code"),
            ("+19", "is no code"),
            ("22001", "is no code"),
            ("", "is no code"),
            ("99999999999", "is no code"),
        ] {
            let said = problem(code, &sqlite).unwrap_or_default();
            assert!(said.contains(words), "{code}: {said}");
        }
    }

    #[test]
    fn a_sqlstate_has_five_of_its_characters() {
        for code in ["23503", "22P02", "P0001", "40001"] {
            assert!(is_sqlstate(code), "{code}");
        }
        for code in ["abc", "2350", "235030", "22p02", "2350 ", ""] {
            assert!(!is_sqlstate(code), "{code}");
        }
        assert_eq!(meant("22p02", |(_, sqlstate, _)| sqlstate), "");
        assert!(meant("787", |(_, sqlstate, _)| sqlstate).contains("\"23503\""));
        assert!(meant("p0001", |(_, sqlstate, _)| sqlstate).contains("\"P0001\""));
    }
}
