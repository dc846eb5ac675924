//! How far the effects of a run are, asked of the database around the proxies; a database that does not
//! answer is an answer too.

use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How often a wait asks.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How often effects are noted while time passes.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Asks one database, connecting again whenever it must.
pub(super) struct Watch<'a> {
    runtime: &'a Runtime,
    cancel: &'a Cancel,
    url: String,
    count: String,
    client: Option<Client>,
    /// Where effects are noted.
    history: Option<History>,
    noted: Option<i64>,
}

impl<'a> Watch<'a> {
    /// Watches the ledger of a schema.
    pub(super) fn new(runtime: &'a Runtime, cancel: &'a Cancel, url: &str, schema: &str) -> Self {
        let count = format!("SELECT count(*) FROM {schema}.ledger");
        Self { runtime, cancel, url: url.to_owned(), count, client: None, history: None, noted: None }
    }

    /// From now on the effects are noted in a history.
    pub(super) fn tell(&mut self, history: &History) {
        self.history = Some(history.clone());
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
        self.ask(ANSWER_MAX, async |client| client.batch_execute(sql).await)
    }

    /// The number that a query answers.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub(super) fn number(&mut self, sql: &str) -> Result<i64> {
        self.ask(ANSWER_MAX, async |client| Ok(client.query_one(sql, &[]).await?.get(0)))
    }

    /// Lines of the ledger.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub(super) fn effects(&mut self) -> Result<i64> {
        let effects = self.count(ANSWER_MAX)?;
        if self.noted != Some(effects) {
            self.note(effects);
        }
        Ok(effects)
    }

    /// The same, noted also when nothing came: the edge of a window.
    ///
    /// # Errors
    /// As [`Watch::run`].
    pub(super) fn edge(&mut self) -> Result<i64> {
        let effects = self.count(ANSWER_MAX)?;
        self.note(effects);
        Ok(effects)
    }

    fn count(&mut self, within: Duration) -> Result<i64> {
        let sql = self.count.clone();
        self.ask(within, async |client| Ok(client.query_one(&sql, &[]).await?.get(0)))
    }

    fn note(&mut self, effects: i64) {
        self.noted = Some(effects);
        if let Some(history) = &self.history {
            history.note(Event::Progress { effects: u64::try_from(effects).unwrap_or(0) });
        }
    }

    /// Lets time pass and notes how far the effects are; a database that does not answer is not noted.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn linger(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            self.cancel.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            if let Ok(effects) = self.count(left.min(ANSWER_MAX)) {
                self.note(effects);
            }
            let left = until.saturating_duration_since(Instant::now());
            self.cancel.sleep(left.min(LOOK_EVERY))?;
        }
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

    /// Notes the effects of a window that begins now, those of both its edges in any case.
    ///
    /// # Errors
    /// `Cancelled`, or no answer at either end.
    pub(super) fn window(&mut self, window: Duration) -> Result<()> {
        self.edge()?;
        self.linger(window)?;
        self.edge().map(drop)
    }

    fn ask<T>(
        &mut self,
        within: Duration,
        question: impl AsyncFnOnce(&Client) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let away = |why: &str| LabError::new(LabErrorKind::Unreachable, format!("the lab's database {why}"));
        let (url, client) = (&self.url, self.client.take());
        let answer = self.runtime.block_on(async {
            timeout(within, async {
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
