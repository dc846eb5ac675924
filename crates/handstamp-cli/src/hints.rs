//! What to do about an error: by the database's or the system's own code where it has one, by its kind
//! otherwise. A hint that does not fit is worse than none: what a message says itself is not said again.

use handstamp_core::StoreErrorKind;
use std::error::Error;
use std::io;

/// The longest chain of errors that is looked through.
const DEPTH_MAX: usize = 32;

/// What to do about a store's error.
pub(crate) fn for_store(kind: StoreErrorKind, error: &(dyn Error + 'static)) -> Option<&'static str> {
    if kind == StoreErrorKind::NotMigrated {
        // Ours are missing, which the message says with what to do; the code behind it would lead to the user's.
        return None;
    }
    let by_code = sqlstate(error).and_then(|code| for_sqlstate(&code));
    by_code.or_else(|| for_chain(error)).or_else(|| for_tls(error)).or(match kind {
        StoreErrorKind::SchemaMismatch => Some(
            "do your own tables exist and have these columns? `[store] setup` names a file that makes them",
        ),
        StoreErrorKind::FingerprintMismatch => {
            Some("choose another `name`, or take it over with `handstamp run FILE --adopt`")
        }
        _ => None,
    })
}

/// A database's server that was asked for TLS and has none.
fn for_tls(error: &(dyn Error + 'static)) -> Option<&'static str> {
    (first_io(error)? == io::ErrorKind::Unsupported)
        .then_some("set TLS up in the server, or write sslmode=prefer or sslmode=disable into `[store] url`")
}

/// What to do about the first error of the operating system in a chain.
pub(crate) fn for_chain(error: &(dyn Error + 'static)) -> Option<&'static str> {
    first_io(error).and_then(for_io)
}

fn first_io(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    for _ in 0..DEPTH_MAX {
        let error = next?;
        if let Some(found) = error.downcast_ref::<io::Error>() {
            return Some(found.kind());
        }
        next = error.source();
    }
    None
}

/// What to do about a file that cannot be used.
pub(crate) fn for_io(kind: io::ErrorKind) -> Option<&'static str> {
    Some(match kind {
        io::ErrorKind::NotFound => "is the name right? Relative paths in a TOML file belong to its folder",
        io::ErrorKind::PermissionDenied => "let the program's user use the file and the folders above it",
        io::ErrorKind::IsADirectory => "name a file, not a folder",
        io::ErrorKind::NotADirectory => "a part of the path that must be a folder is a file",
        io::ErrorKind::ReadOnlyFilesystem => "name a place that can be written",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space where the file lies",
        _ => return None,
    })
}

#[cfg(feature = "postgres")]
fn sqlstate(error: &(dyn Error + 'static)) -> Option<String> {
    handstamp_stores::postgres::fault_of(error).and_then(|fault| fault.code)
}

#[cfg(not(feature = "postgres"))]
fn sqlstate(_: &(dyn Error + 'static)) -> Option<String> {
    None
}

fn for_sqlstate(code: &str) -> Option<&'static str> {
    Some(match code {
        "42501" => {
            "grant the role that right: `handstamp migrate FILE --grant-to ROLE` does it for Handstamp's tables and those of `[store] setup`"
        }
        "42P01" | "42703" | "3F000" => {
            "do your own tables exist and have these columns? `[store] setup` names a file that makes them"
        }
        "42601" => "correct the SQL",
        "42704" => "create what is missing (a role by CREATE ROLE), or correct its name",
        code if code.starts_with("42") => "correct the SQL, or the tables that it is for",
        "25006" => {
            "a standby, or default_transaction_read_only for the server, the database or the role: let `[store] url` lead to where the role may write"
        }
        "28000" | "28P01" => {
            "are user and password in `[store] url` right, and does pg_hba.conf let them in?"
        }
        "3D000" => "create the database, or correct its name in `[store] url`",
        "53100" => "free space on the server's disk",
        "53300" => "raise max_connections, or end other connections",
        "57P03" => "the server is starting or stopping: try again",
        "55P03" => "another session holds the lock; `[store] lock_timeout` says how long to wait",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use handstamp_core::StoreError;

    /// No right is no missing table, a missing file is no missing right.
    #[test]
    fn a_hint_fits_what_happened() {
        for (code, words) in [
            ("42501", "--grant-to"),
            ("42P01", "do your own tables exist"),
            ("42601", "correct the SQL"),
            ("42804", "correct the SQL"),
            ("42704", "CREATE ROLE"),
            ("25006", "default_transaction_read_only"),
            ("28P01", "password"),
            ("3D000", "create the database"),
        ] {
            let hint = for_sqlstate(code).unwrap_or_default();
            assert!(hint.contains(words), "{code}: {hint}");
            assert_eq!(hint.contains("tables exist"), code == "42P01", "{code}: {hint}");
        }
        for code in ["23505", "22P02", "P0001", "XX000", "", "é"] {
            assert_eq!(for_sqlstate(code), None, "{code}");
        }
        let store = |kind, io: io::ErrorKind| StoreError::new(kind, "x").with_source(io::Error::from(io));
        for (kind, words) in [
            (io::ErrorKind::NotFound, "is the name right"),
            (io::ErrorKind::PermissionDenied, "let the program's user"),
            (io::ErrorKind::IsADirectory, "not a folder"),
        ] {
            let error = store(StoreErrorKind::Config, kind);
            assert!(for_store(error.kind, &error).is_some_and(|hint| hint.contains(words)), "{kind}");
        }
        for kind in [StoreErrorKind::NotMigrated, StoreErrorKind::Unavailable, StoreErrorKind::Conflict] {
            assert_eq!(for_store(kind, &StoreError::new(kind, "x")), None, "{kind:?}");
        }
    }
}
