//! One test's files and database, on either store.

use crate::child::Subject;
use crate::money::{SQLITE_SCHEMA, VERDICT, Verdict};
use crate::servers::Database;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;
use tempfile::TempDir;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// A folder and a database of a test's own.
pub struct World {
    folder: TempDir,
    /// SQLite's file.
    database: PathBuf,
    postgres: Option<Database>,
    program: &'static str,
}

impl World {
    pub async fn create(kind: Kind, program: &'static str) -> Self {
        Self::create_in(kind, program, None).await
    }

    /// The same with SQLite's file in another folder, as on a disk of its own.
    pub async fn create_in(kind: Kind, program: &'static str, databases: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = databases.unwrap_or(folder.path()).join("store.db");
        let postgres = match kind {
            Kind::Postgres => Some(Database::create().await),
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(&database).unwrap();
                handstamp::sqlite::migrate(&connection).unwrap();
                connection.execute_batch(SQLITE_SCHEMA).unwrap();
                None
            }
        };
        Self { folder, database, postgres, program }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn sqlite(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(&self.database).unwrap()
    }

    /// Writes a file of credits: ids with the account and amount of every test, or a line as it is.
    pub fn write_lines(&self, name: &str, lines: &[String]) {
        std::fs::write(self.path(name), lines.join("\n") + "\n").unwrap();
    }

    /// What the subject is told.
    pub fn arguments(&self, more: &str) -> Vec<String> {
        let mut all = vec![format!("path={}", self.path("in.jsonl").display())];
        all.push(format!("state={}", self.folder.path().display()));
        match &self.postgres {
            Some(database) => all.extend(["store=postgres".into(), format!("db={}", database.url)]),
            None => all.push(format!("db={}", self.database.display())),
        }
        all.extend(more.split_whitespace().map(str::to_owned));
        all
    }

    pub fn start(&self, more: &str) -> Subject {
        Subject::start(self.program, &self.arguments(more))
    }

    /// Runs the subject to its end.
    pub fn run(&self, more: &str) -> (ExitStatus, Vec<String>) {
        self.start(more).wait(Duration::from_secs(60))
    }

    /// Runs it and demands that it ends well; returns the log.
    #[track_caller]
    pub fn run_well(&self, more: &str) -> Vec<String> {
        let (status, log) = self.run(more);
        assert!(status.success(), "{status}: {}", log.join("\n"));
        log
    }

    /// Runs it and demands that it dies.
    #[track_caller]
    pub fn run_to_death(&self, more: &str) -> Vec<String> {
        let (status, log) = self.run(more);
        assert!(status.code().is_none(), "it should have died by a signal, but {status}: {}", log.join("\n"));
        log
    }

    pub async fn verdict(&self) -> Verdict {
        match &self.postgres {
            Some(database) => database.verdict().await,
            None => {
                let row = |row: &rusqlite::Row<'_>| {
                    Ok(Verdict {
                        effects: row.get(0)?,
                        ids: row.get(1)?,
                        balance: row.get(2)?,
                        amounts: row.get(3)?,
                    })
                };
                self.sqlite().query_row(VERDICT, [], row).unwrap()
            }
        }
    }

    /// `SELECT count(*) FROM …` with our tables' names in braces, as `{dead_letters}`.
    pub async fn count(&self, from: &str) -> i64 {
        let sql =
            |prefix: &str| format!("SELECT count(*) FROM {}", from.replace('{', prefix).replace('}', ""));
        match &self.postgres {
            Some(database) => database.client.query_one(&sql("handstamp."), &[]).await.unwrap().get(0),
            None => self.sqlite().query_row(&sql("handstamp_"), [], |row| row.get(0)).unwrap(),
        }
    }

    pub async fn end(self) {
        if let Some(database) = self.postgres {
            database.drop_now().await;
        }
    }
}
