//! How far the effects of a run are, asked of the database around the proxies; a database that does not
//! answer is an answer too.

use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often a wait asks.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Asks one database, connecting again whenever it must.
pub(super) struct Watch<'a> {
    runtime: &'a Runtime,
    cancel: &'a Cancel,
    url: String,
    count: String,
    client: Option<Client>,
}

impl<'a> Watch<'a> {
    /// Watches the ledger of a schema.
    pub(super) fn new(runtime: &'a Runtime, cancel: &'a Cancel, url: &str, schema: &str) -> Self {
        let count = format!("SELECT count(*) FROM {schema}.ledger");
        Self { runtime, cancel, url: url.to_owned(), count, client: None }
    }

    /// From now on another database is asked.
    pub(super) fn follow(&mut self, url: &str) {
        url.clone_into(&mut self.url);
        self.client = None;
    }

    /// Runs statements.
    ///
    /// # Errors
    /// `Unreachable` when there is no answer in time, `Other` when the database refuses.
    pub(super) fn run(&mut self, sql: &str) -> Result<()> {
        self.ask(async |client| client.batch_execute(sql).await)
    }

    /// The number that a query answers.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub(super) fn number(&mut self, sql: &str) -> Result<i64> {
        self.ask(async |client| Ok(client.query_one(sql, &[]).await?.get(0)))
    }

    /// Lines of the ledger.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub(super) fn effects(&mut self) -> Result<i64> {
        let sql = self.count.clone();
        self.number(&sql)
    }

    /// Waits until there are more effects than so many; false when there are not after `within`.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn wait_for_more(&mut self, than: i64, within: Duration) -> Result<bool> {
        let until = Instant::now() + within;
        loop {
            if self.effects().is_ok_and(|effects| effects > than) {
                return Ok(true);
            }
            if Instant::now() > until {
                return Ok(false);
            }
            self.cancel.sleep(ASK_EVERY)?;
        }
    }

    /// Effects a second over a window that begins now.
    ///
    /// # Errors
    /// `Cancelled`, or no answer at either end.
    pub(super) fn rate(&mut self, window: Duration) -> Result<f64> {
        let (begun, first) = (Instant::now(), self.effects()?);
        self.cancel.sleep(window)?;
        let last = self.effects()?;
        #[allow(clippy::cast_precision_loss, reason = "a rate for reading")]
        let effects = (last - first) as f64;
        Ok(effects / begun.elapsed().as_secs_f64())
    }

    fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&Client) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let away = |why: &str| LabError::new(LabErrorKind::Unreachable, format!("the lab's database {why}"));
        let (url, client) = (&self.url, self.client.take());
        let answer = self.runtime.block_on(async {
            timeout(ANSWER_MAX, async {
                let client = match client.filter(|client| !client.is_closed()) {
                    Some(client) => client,
                    None => {
                        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                        // Its error is the error of the next question.
                        drop(tokio::spawn(connection));
                        client
                    }
                };
                let answer = question(&client).await?;
                Ok::<_, tokio_postgres::Error>((client, answer))
            })
            .await
        });
        match answer {
            Ok(Ok((client, answer))) => {
                self.client = Some(client);
                Ok(answer)
            }
            Ok(Err(error)) if error.as_db_error().is_some() => {
                Err(LabError::new(LabErrorKind::Other, "the lab's database refuses").because(error))
            }
            Ok(Err(error)) => Err(away("does not answer").because(error)),
            Err(_) => Err(away("did not answer in time")),
        }
    }
}
