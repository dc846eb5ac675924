//! SQLite's extended result codes, and what each means for a transaction. By code, never by text.
//!
//! | code | kind |
//! |---|---|
//! | BUSY, LOCKED | Conflict |
//! | READONLY, IOERR, FULL, CANTOPEN, NOMEM, PERM, PROTOCOL, NOLFS, CORRUPT, INTERNAL | Unavailable |
//! | INTERRUPT | Timeout |
//! | SCHEMA, ERROR met while preparing | SchemaMismatch |
//! | NOTADB | Config |
//! | everything else (constraints, mismatches, ERROR while running) | Statement |

use handstamp_core::{Fault, StoreError, StoreErrorKind};
use rusqlite::{ErrorCode, ffi};
use std::error::Error;

/// The kind of an error of SQLite; `None` for an error of the driver that no database made.
pub(crate) fn kind_of(error: &rusqlite::Error) -> Option<StoreErrorKind> {
    match error {
        rusqlite::Error::SqliteFailure(code, _) => Some(kind_of_code(code)),
        // Only preparing gives this: the statement does not fit the schema.
        rusqlite::Error::SqlInputError { .. } => Some(StoreErrorKind::SchemaMismatch),
        _ => None,
    }
}

fn kind_of_code(code: &ffi::Error) -> StoreErrorKind {
    match code.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreErrorKind::Conflict,
        ErrorCode::ReadOnly
        | ErrorCode::SystemIoFailure
        | ErrorCode::DiskFull
        | ErrorCode::CannotOpen
        | ErrorCode::OutOfMemory
        | ErrorCode::PermissionDenied
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::NoLargeFileSupport
        | ErrorCode::DatabaseCorrupt
        | ErrorCode::InternalMalfunction => StoreErrorKind::Unavailable,
        ErrorCode::OperationInterrupted => StoreErrorKind::Timeout,
        ErrorCode::SchemaChanged => StoreErrorKind::SchemaMismatch,
        ErrorCode::NotADatabase => StoreErrorKind::Config,
        _ => StoreErrorKind::Statement,
    }
}

/// SQLite's extended code as people look it up.
pub(crate) fn code_of(error: &rusqlite::Error) -> Option<String> {
    error.sqlite_error().map(|code| code.extended_code.to_string())
}

/// True when another connection holds the lock that was wanted.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    kind_of(error) == Some(StoreErrorKind::Conflict)
}

/// True for SQLite's general code, which says nothing more than that something is wrong with the SQL.
pub(crate) fn is_general(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|code| code.extended_code == ffi::SQLITE_ERROR)
}

/// An error of one of our own statements or steps: what happened, the code, what to do.
pub(crate) fn store_error(doing: &str, error: rusqlite::Error) -> StoreError {
    let kind = kind_of(&error).unwrap_or(StoreErrorKind::Statement);
    StoreError::new(kind, format!("{doing} failed{}", told(&error))).with_source(error)
}

/// `: what happened (SQLite code 13): what to do`, as far as the code says it.
pub(crate) fn told(error: &rusqlite::Error) -> String {
    let code = code_of(error).map_or(String::new(), |code| format!(" (SQLite code {code})"));
    match error.sqlite_error().and_then(meaning) {
        Some((what, todo)) => format!(": {what}{code}: {todo}"),
        None => code,
    }
}

/// What a code that is nobody's message's fault means, and what to do about it.
fn meaning(error: &ffi::Error) -> Option<(&'static str, &'static str)> {
    let rights = "let the program's user write the file and its folder";
    Some(match (error.extended_code, error.code) {
        (ffi::SQLITE_READONLY_DBMOVED, _) => (
            "the file was removed or replaced while it was open",
            "put it back, or start again on the new one",
        ),
        (
            ffi::SQLITE_IOERR_SHMOPEN
            | ffi::SQLITE_IOERR_SHMSIZE
            | ffi::SQLITE_IOERR_SHMLOCK
            | ffi::SQLITE_IOERR_SHMMAP,
            _,
        )
        | (_, ErrorCode::FileLockingProtocolFailed) => (
            "the file system lacks the shared memory or locks that WAL needs",
            "move the file to a local disk",
        ),
        (_, ErrorCode::DiskFull) => (
            "the disk, or the quota on it, is full",
            "free space where the file lies, its -wal file included",
        ),
        (_, ErrorCode::ReadOnly) => ("the file, its folder or its disk can only be read", rights),
        (_, ErrorCode::PermissionDenied) => ("access to the file was denied", rights),
        (_, ErrorCode::CannotOpen) => (
            "the file, or one beside it, cannot be opened",
            "does its folder exist, and may the program's user read and write both?",
        ),
        (_, ErrorCode::SystemIoFailure) => {
            ("the disk or its file system reported an error", "look into the system's log and at the disk")
        }
        (_, ErrorCode::NoLargeFileSupport) => {
            ("the file system takes no file of this size", "move the file to another one")
        }
        (_, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            "another connection holds the lock",
            "if it lasts, look for a program that keeps a transaction open on the file",
        ),
        (_, ErrorCode::NotADatabase) => {
            ("the file is no SQLite database, or an encrypted one", "name another file")
        }
        (_, ErrorCode::DatabaseCorrupt | ErrorCode::InternalMalfunction) => (
            "the file is damaged",
            "stop, keep a copy, and restore a backup (PRAGMA integrity_check says what is damaged)",
        ),
        (_, ErrorCode::OutOfMemory) => ("there is not enough memory", "let the process have more"),
        (_, ErrorCode::OperationInterrupted) => {
            ("it ran longer than its time limit", "make the statement quicker, or raise the limit")
        }
        _ => return None,
    })
}

/// The first SQLite error among an error and its sources.
pub(crate) fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    for _ in 0..32 {
        let error = next?;
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// What an error that came out of a handler means; `None` when no database made it.
pub(crate) fn fault_of(error: &(dyn Error + 'static)) -> Option<Fault> {
    let error = find::<rusqlite::Error>(error)?;
    kind_of(error).map(|kind| Fault { kind, code: code_of(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: i32) -> StoreErrorKind {
        kind_of(&rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).unwrap()
    }

    #[test]
    fn every_code_has_its_kind() {
        for code in
            [ffi::SQLITE_BUSY, ffi::SQLITE_BUSY_SNAPSHOT, ffi::SQLITE_BUSY_RECOVERY, ffi::SQLITE_LOCKED]
        {
            assert_eq!(kind(code), StoreErrorKind::Conflict, "{code}");
        }
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_READONLY_DBMOVED,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_NOMEM,
            ffi::SQLITE_PERM,
            ffi::SQLITE_PROTOCOL,
            ffi::SQLITE_CORRUPT,
        ] {
            assert_eq!(kind(code), StoreErrorKind::Unavailable, "{code}");
        }
        for code in [
            ffi::SQLITE_CONSTRAINT_UNIQUE,
            ffi::SQLITE_CONSTRAINT_CHECK,
            ffi::SQLITE_CONSTRAINT_TRIGGER,
            ffi::SQLITE_CONSTRAINT_COMMITHOOK,
            ffi::SQLITE_MISMATCH,
            ffi::SQLITE_TOOBIG,
            ffi::SQLITE_ERROR,
        ] {
            assert_eq!(kind(code), StoreErrorKind::Statement, "{code}");
        }
        assert_eq!(kind(ffi::SQLITE_INTERRUPT), StoreErrorKind::Timeout);
        assert_eq!(kind(ffi::SQLITE_SCHEMA), StoreErrorKind::SchemaMismatch);
        assert_eq!(kind(ffi::SQLITE_NOTADB), StoreErrorKind::Config);
    }

    /// A code alone helps nobody at night: whatever stops the store says what it is and what to do.
    #[test]
    fn every_code_that_stops_the_store_is_explained() {
        for code in (1..=28).flat_map(|primary| [primary, primary | (1 << 8), primary | (6 << 8)]) {
            let error = || rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let own = matches!(kind(code), StoreErrorKind::Statement | StoreErrorKind::SchemaMismatch);
            let message = store_error("committing", error()).message;
            assert!(message.contains(&format!("(SQLite code {code})")), "{message}");
            assert_eq!(!message.contains("): "), own, "{code}: {message}");
        }
        for (code, words) in [
            (ffi::SQLITE_FULL, "is full"),
            (ffi::SQLITE_READONLY, "can only be read"),
            (ffi::SQLITE_READONLY_DBMOVED, "removed or replaced"),
            (ffi::SQLITE_CANTOPEN, "cannot be opened"),
            (ffi::SQLITE_PERM, "denied"),
            (ffi::SQLITE_BUSY, "holds the lock"),
            (ffi::SQLITE_NOTADB, "no SQLite database"),
            (ffi::SQLITE_CORRUPT, "damaged"),
            (ffi::SQLITE_IOERR_SHMMAP, "local disk"),
            (ffi::SQLITE_IOERR_FSYNC, "system's log"),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            let message = store_error("committing", error).message;
            assert!(message.contains(words), "{code}: {message}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Box<dyn Error + Send + Sync>);

    #[test]
    fn an_error_is_found_behind_others() {
        let inner = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CONSTRAINT_UNIQUE), None);
        let outer = Outer(Box::new(Outer(Box::new(inner))));
        let fault = fault_of(&outer).unwrap();
        assert_eq!((fault.kind, fault.code.as_deref()), (StoreErrorKind::Statement, Some("2067")));
        assert_eq!(fault_of(&rusqlite::Error::QueryReturnedNoRows), None);
        assert_eq!(fault_of(&Outer("text".into())), None);
    }
}
