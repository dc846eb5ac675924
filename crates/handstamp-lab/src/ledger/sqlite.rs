//! The ledger as a SQLite file.

use super::{BALANCES, Database, EFFECTS, LEDGER, Span, dead_letter_id, sqlite_path};
use crate::checker::EndState;
use crate::error::{LabError, LabErrorKind, Result};
use rusqlite::{Connection, OptionalExtension};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SCHEMA: &str = "
    CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE ledger (
        seq INTEGER PRIMARY KEY, event_id TEXT NOT NULL, account_id INTEGER NOT NULL, amount INTEGER NOT NULL,
        at REAL NOT NULL DEFAULT (unixepoch('subsec'))
    );
    CREATE TABLE processed_messages (
        consumer TEXT NOT NULL, message_id TEXT NOT NULL,
        PRIMARY KEY (consumer, message_id)
    );";

/// One run's file.
#[derive(Debug)]
pub struct SqliteLedger {
    connection: Option<Connection>,
    path: PathBuf,
}

fn refused(error: rusqlite::Error) -> LabError {
    LabError::new(LabErrorKind::Other, "SQLite refuses").because(error)
}

/// The version, after making the folder.
pub(super) fn probe(folder: &Path) -> Result<String> {
    std::fs::create_dir_all(folder).map_err(|error| LabError::file("make", folder, error))?;
    Ok(format!("SQLite {}", rusqlite::version()))
}

impl SqliteLedger {
    pub(super) fn create(folder: &Path, name: &str, accounts: u64) -> Result<Self> {
        let path = sqlite_path(folder, name);
        remove(&path);
        let connection = Connection::open(&path).map_err(refused)?;
        connection.busy_timeout(Duration::from_secs(10)).map_err(refused)?;
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
            .and_then(|()| connection.execute_batch(SCHEMA))
            .map_err(refused)?;
        let accounts = i64::try_from(accounts).unwrap_or(i64::MAX);
        connection
            .execute(
                "WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?1)
                 INSERT INTO accounts (id) SELECT id FROM n",
                [accounts],
            )
            .map_err(refused)?;
        handstamp::sqlite::migrate(&connection).map_err(|error| {
            LabError::new(LabErrorKind::Other, "SQLite refuses our tables").because(error)
        })?;
        Ok(Self { connection: Some(connection), path })
    }

    pub(super) fn database(&self) -> Database {
        Database::Sqlite { path: self.path.clone() }
    }

    fn connection(&self) -> Result<&Connection> {
        self.connection.as_ref().ok_or_else(|| LabError::new(LabErrorKind::Other, "the ledger is closed"))
    }

    fn number(&self, sql: &str) -> Result<i64> {
        self.connection()?.query_row(sql, [], |row| row.get(0)).map_err(refused)
    }

    pub(super) fn progress(&mut self) -> Result<i64> {
        self.number("SELECT coalesce(max(seq), 0) FROM ledger")
    }

    pub(super) fn ids(&mut self) -> Result<u64> {
        let ids = self.number("SELECT count(DISTINCT event_id) FROM ledger")?;
        Ok(u64::try_from(ids).unwrap_or(0))
    }

    pub(super) fn span(&mut self) -> Result<Option<Span>> {
        let sql = "SELECT min(at), max(at), count(*) FROM ledger HAVING count(*) > 0";
        let span = |row: &rusqlite::Row<'_>| {
            let effects: i64 = row.get(2)?;
            Ok(Span {
                first_s: row.get(0)?,
                last_s: row.get(1)?,
                effects: u64::try_from(effects).unwrap_or(0),
            })
        };
        self.connection()?.query_row(sql, [], span).optional().map_err(refused)
    }

    pub(super) fn repeated_ms(&mut self) -> Result<Vec<u64>> {
        let sql = "SELECT CAST(at * 1000 AS INTEGER) FROM (
                     SELECT seq, at, row_number() OVER (PARTITION BY event_id ORDER BY seq) AS n FROM ledger)
                   WHERE n > 1 ORDER BY seq";
        let mut statement = self.connection()?.prepare(sql).map_err(refused)?;
        let times = statement.query_map([], |row| row.get::<_, i64>(0)).map_err(refused)?;
        times.map(|time| Ok(u64::try_from(time.map_err(refused)?).unwrap_or(0))).collect()
    }

    fn pairs<K: rusqlite::types::FromSql + Ord>(
        &self,
        sql: &str,
    ) -> Result<std::collections::BTreeMap<K, i64>> {
        let mut statement = self.connection()?.prepare(sql).map_err(refused)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).map_err(refused)?;
        rows.collect::<rusqlite::Result<_>>().map_err(refused)
    }

    pub(super) fn end_state(&mut self) -> Result<EndState> {
        let effects = self.pairs::<String>(EFFECTS)?;
        let mut dead = self
            .connection()?
            .prepare("SELECT id FROM handstamp_dead_letters WHERE id IS NOT NULL")
            .map_err(refused)?;
        let dead_letters = dead
            .query_map([], |row| row.get::<_, Vec<u8>>(0))
            .and_then(|rows| rows.map(|row| Ok(dead_letter_id(&row?))).collect())
            .map_err(refused)?;
        Ok(EndState {
            effects: effects.into_iter().map(|(id, n)| (id, u64::try_from(n).unwrap_or(0))).collect(),
            balances: self.pairs(BALANCES)?,
            ledger: self.pairs(LEDGER)?,
            dead_letters,
        })
    }
}

impl Drop for SqliteLedger {
    fn drop(&mut self) {
        drop(self.connection.take());
        remove(&self.path);
    }
}

/// Removes a database and what belongs to it, as far as it is there.
fn remove(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        // One that is not there is as good as removed.
        let _ = std::fs::remove_file(name);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ledger, Place};
    use super::*;

    #[test]
    fn it_tells_what_is_in_it_and_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::Sqlite(folder.path().to_owned());
        let mut ledger = Ledger::create(&place, "one", 3).expect("made");
        assert_eq!((ledger.progress().expect("read"), ledger.span().expect("read")), (0, None));
        let Database::Sqlite { path } = ledger.database() else { panic!("SQLite") };
        let subject = Connection::open(&path).expect("opened");
        for id in ["a", "a", "b"] {
            let sql = "INSERT INTO ledger (event_id, account_id, amount) VALUES (?1, 2, 5)";
            subject.execute(sql, [id]).expect("written");
        }
        assert_eq!((ledger.progress().expect("read"), ledger.ids().expect("read")), (3, 2));
        assert_eq!(ledger.span().expect("read").map(|span| span.effects), Some(3));
        assert_eq!(ledger.repeated_ms().expect("read").len(), 1);
        let end = ledger.end_state().expect("read");
        assert_eq!(end.effects, [("a".to_owned(), 2), ("b".to_owned(), 1)].into());
        assert_eq!(end.balances, [(1, 0), (2, 0), (3, 0)].into());
        assert_eq!(end.ledger, [(2, 15)].into());
        drop((subject, ledger));
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 0);
    }
}
