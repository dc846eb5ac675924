//! SQLSTATE → kind, one total table, by code and never by text.
//!
//! Authoritative: the server's code. Where the connection is gone there is no code: then the reason
//! that the server gave when it closed the connection, else "unavailable".
//!
//! | code | kind |
//! |---|---|
//! | 08, 28, 3D, 53, 57P01–57P05, 25006, 40003, 58, F0, XX001, XX002; closed, I/O | `Unavailable` |
//! | 40 (40001, 40P01), 55P03 | `Conflict` |
//! | 57014, 25P03, 25P04 | `Timeout` |
//! | 42, 0A, 26, 3F | `SchemaMismatch` |
//! | everything else (22, 23, 25P02, P0001, …) | `Statement` |
//!
//! 25P02 in a handler is the second error of a handler that swallowed the first: its own failure. Only
//! the guard of the commit makes it `Swallowed`.

pub use crate::sqlstate::kind_of_code;
use handstamp_core::{Fault, StoreError, StoreErrorKind};
use std::error::Error;
use std::io;
use tokio_postgres::error::DbError;

/// The code of a deadlock: the batch runs again alone.
pub(crate) const DEADLOCK: &str = "40P01";

/// What the database says of an error, looked for in the whole chain; `None`: no database error.
#[must_use]
pub fn fault_of(error: &(dyn Error + 'static)) -> Option<Fault> {
    let mut next = Some(error);
    let mut depth = 0;
    while let Some(error) = next
        && depth < 32
    {
        if let Some(own) = error.downcast_ref::<StoreError>() {
            let code = own.source.as_ref().and_then(|e| fault_of(e.as_ref())).and_then(|f| f.code);
            return Some(Fault { kind: own.kind, code });
        }
        if let Some(fault) = error.downcast_ref::<tokio_postgres::Error>().and_then(fault_of_driver) {
            return Some(fault);
        }
        if let Some(db) = error.downcast_ref::<DbError>() {
            return Some(fault_of_code(db.code().code()));
        }
        next = error.source();
        depth += 1;
    }
    None
}

fn fault_of_code(code: &str) -> Fault {
    Fault { kind: kind_of_code(code), code: Some(code.to_owned()) }
}

/// `None`: the driver refused something itself (a value, a column, a row count).
fn fault_of_driver(error: &tokio_postgres::Error) -> Option<Fault> {
    if let Some(db) = error.as_db_error() {
        return Some(fault_of_code(db.code().code()));
    }
    let io = error.source().and_then(|e| e.downcast_ref::<io::Error>());
    // The driver says InvalidInput where text with a NUL byte or an oversized value was to be sent.
    let unreachable = error.is_closed() || io.is_some_and(|e| e.kind() != io::ErrorKind::InvalidInput);
    unreachable.then_some(Fault { kind: StoreErrorKind::Unavailable, code: None })
}

/// A driver's error with one line for a person; `what` says what was being done.
pub(crate) fn store_error(what: &str, error: tokio_postgres::Error) -> StoreError {
    let kind = fault_of_driver(&error).map_or(StoreErrorKind::Statement, |fault| fault.kind);
    let message = match error.as_db_error() {
        Some(db) => format!("{what}: {} (SQLSTATE {})", db.message(), db.code().code()),
        None if error.is_closed() => format!("{what}: the connection was lost"),
        None => match error.source() {
            Some(inner) => format!("{what}: {error}: {inner}"),
            None => format!("{what}: {error}"),
        },
    };
    StoreError::new(kind, message).with_source(error)
}

/// The SQLSTATE inside an error of ours, where there is one.
pub(crate) fn code_of(error: &StoreError) -> Option<String> {
    error.source.as_ref().and_then(|e| fault_of(e.as_ref())).and_then(|fault| fault.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_total_and_as_decided() {
        use StoreErrorKind::*;
        for (codes, kind) in [
            (
                &["08000", "08006", "08P01", "53100", "53200", "53300", "57P01", "57P02", "57P03", "57P05"][..],
                Unavailable,
            ),
            (&["25006", "28P01", "28000", "3D000", "58030", "XX001"], Unavailable),
            (&["40001", "40P01", "40000", "55P03"], Conflict),
            (&["57014", "25P03", "25P04"], Timeout),
            (&["42P01", "42703", "42501", "42804", "0A000", "26000", "3F000"], SchemaMismatch),
            (
                &["22012", "22P02", "23505", "23514", "P0001", "21000", "54000", "XX000", "25P02", "", "é"],
                Statement,
            ),
        ] {
            for code in codes {
                assert_eq!(kind_of_code(code), kind, "{code}");
            }
        }
    }

    #[test]
    fn an_error_of_another_kind_is_no_database_error() {
        assert_eq!(fault_of(&io::Error::other("x")), None);
        assert_eq!(fault_of(&std::fmt::Error), None);
    }
}
