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

/// Whether a connection string demands TLS.
fn demands_tls(url: &str) -> bool {
    let pairs = url.split(|c: char| "?&".contains(c) || c.is_whitespace());
    pairs.filter_map(|pair| pair.split_once('=')).any(|(name, value)| {
        let value = value.trim_matches('\'');
        (name == "sslmode" && (value == "require" || value.starts_with("verify")))
            || (name == "sslnegotiation" && value == "direct")
    })
}

/// Refuses what the lab cannot do: its proxies read what passes, and its hand-written consumers have no TLS.
pub(super) fn without_tls(url: &str) -> Result<()> {
    if demands_tls(url) {
        return Err(LabError::usage(
            "the lab speaks to Postgres without TLS, and this database URL demands it (sslmode): name a test database \
             that also answers without; only `lab own` can give your program a URL with TLS (`database.parameters`)",
        ));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_demands_tls_is_refused_before_anything_is_connected_to() {
        for url in [
            "postgres://me@h/d?sslmode=require",
            "postgres://me@h/d?application_name=x&sslmode=verify-full&sslrootcert=y",
            "host=h sslmode=verify-ca",
            "host=h sslmode='require'",
            "postgres://me@h/d?sslnegotiation=direct",
        ] {
            let error = without_tls(url).unwrap_err();
            assert!(error.kind == LabErrorKind::Usage && error.to_string().contains("without TLS"), "{url}");
        }
        for url in ["postgres://me@h/sslmode", "postgres://me@h/d?sslmode=prefer", "host=h sslmode=disable"] {
            assert!(without_tls(url).is_ok(), "{url}");
        }
    }
}
