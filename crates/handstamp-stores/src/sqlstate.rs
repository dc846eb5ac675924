//! SQLSTATE → kind, one total table, by code and never by text.
//!
//! | code | kind |
//! |---|---|
//! | 08, 28, 3D, 53, 57P01–57P05, 25006, 40003, 58, F0, XX001, XX002 | `Unavailable` |
//! | 40 (40001, 40P01), 55P03 | `Conflict` |
//! | 57014, 25P03, 25P04 | `Timeout` |
//! | 42, 0A, 26, 3F | `SchemaMismatch` |
//! | everything else (22, 23, 25P02, P0001, …) | `Statement` |

use handstamp_core::StoreErrorKind;

/// The kind behind a SQLSTATE.
#[cfg_attr(not(feature = "postgres"), allow(unreachable_pub, reason = "the Postgres store shows it"))]
#[must_use]
pub fn kind_of_code(code: &str) -> StoreErrorKind {
    use StoreErrorKind::{Conflict, SchemaMismatch, Statement, Timeout, Unavailable};
    match code {
        "25006" | "40003" | "XX001" | "XX002" => Unavailable,
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" => Unavailable,
        "57014" | "25P03" | "25P04" => Timeout,
        "40002" => Statement,
        "55P03" => Conflict,
        _ => match code.get(..2).unwrap_or("") {
            "08" | "28" | "3D" | "53" | "58" | "F0" => Unavailable,
            "40" => Conflict,
            "0A" | "26" | "3F" | "42" => SchemaMismatch,
            _ => Statement,
        },
    }
}
