//! A connection of the lab's own to Postgres, for code that is not asynchronous.

use crate::error::{LabError, LabErrorKind, Result};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// Longest wait for one answer; a VACUUM or a million rows may take their time.
const WAIT: Duration = Duration::from_secs(120);

/// A connection with the runtime that drives it while an answer is waited for.
pub(crate) struct Session {
    pub(super) client: Client,
    pub(super) runtime: Runtime,
}

fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> LabError {
    LabError::new(LabErrorKind::Unreachable, "the Postgres database does not answer").because(error)
}

fn refused(error: tokio_postgres::Error) -> LabError {
    if error.as_db_error().is_none() {
        return unreachable(error);
    }
    LabError::new(LabErrorKind::Other, "Postgres refuses").because(error)
}

impl Session {
    /// Connects.
    pub(crate) fn open(url: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
        let connected =
            runtime.block_on(async { tokio::time::timeout(WAIT, tokio_postgres::connect(url, NoTls)).await });
        let (client, connection) = connected.map_err(unreachable)?.map_err(unreachable)?;
        // Its error is the error of the next question.
        drop(runtime.spawn(connection));
        Ok(Self { client, runtime })
    }

    /// Waits for an answer.
    pub(super) fn wait<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let answer = self.runtime.block_on(async { tokio::time::timeout(WAIT, answer).await });
        answer.map_err(unreachable)?.map_err(refused)
    }

    /// Runs statements whose rows nobody wants.
    pub(crate) fn run(&self, sql: &str) -> Result<()> {
        self.wait(self.client.batch_execute(sql))
    }

    /// The first column of a query as text; a row without a value is left out.
    #[cfg(feature = "kafka")]
    pub(crate) fn first_texts(&self, sql: &str) -> Result<Vec<String>> {
        use tokio_postgres::SimpleQueryMessage::Row;
        let answer = self.wait(self.client.simple_query(sql))?;
        let text = |message: &tokio_postgres::SimpleQueryMessage| match message {
            Row(row) if !row.is_empty() => row.get(0).map(str::to_owned),
            _ => None,
        };
        Ok(answer.iter().filter_map(text).collect())
    }

    /// The one number that a query answers.
    pub(crate) fn number(&self, sql: &str) -> Result<i64> {
        Ok(self.wait(self.client.query_one(sql, &[]))?.get(0))
    }
}
