//! Parked messages: kept with the claim's commit, taken when they are due, and what became of them.
//!
//! Authoritative: the table `parked`, unique on (consumer, dedup), the locks of its rows, and the server's clock.
//! Who takes a row holds its lock until the transaction ends; a backend that is gone holds none. Of an order key
//! the row with the lowest `seq` is the first, locked or not; the column `behind` only spares a look.
//!
//! ```text
//!  park ─► parked ('p') ─► take, lock ─┬─ Applied: row gone, inbox 'a' ────────┐
//!             ▲                        ├─ Dead: dead letter, inbox 'd' ────────┤ COMMIT ─► the next of its
//!             └──── due later ◄────────┴─ Again: one attempt more ─────────────┘           key is the first
//! ```

use super::classify::{code_of, store_error};
use super::config::SchemaName;
use super::connect::Slot;
use super::failure::{IN_FLIGHT_MAX, LetterRow, letter_of, read_error, strange};
use super::inbox::GUARD;
use super::migrate::missing_tables;
use super::pipeline::in_order;
use super::store::{PostgresStore, Tx, guard_error};
use futures_util::future::join3;
use handstamp_core::parked::{
    COUNTED_MAX, Dedup, FailedAttempt, OrderKey, Park, ParkedMessage, ParkedStatus, ParkingStore, Resumed,
    Taken,
};
use handstamp_core::{
    ConsumerKey, CrashPoint, DeadLetter, MessageId, Owner, Recorded, Store, StoreError, StoreErrorKind,
    Timestamp,
};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// A hundred years; no wait is longer.
const WAIT_MAX_MS: i64 = 3_155_760_000_000;

/// The column of `parked_take.sql` and `parked_again.sql` that says whether another owner had started the message.
const SUSPECTED: usize = 23;

/// A message's key, its wait in milliseconds and its order key.
type Own<'a> = (&'a [u8], i64, Option<&'a [u8]>);

type Value<'a> = &'a (dyn ToSql + Sync);

/// Prepared on a connection when it first has to do with parked messages.
pub(crate) struct Statements {
    insert: Statement,
    mark: Statement,
    note: Statement,
    keys: Statement,
    take: Statement,
    take_again: Statement,
    applied: Statement,
    again: Statement,
    dead: Statement,
    started: Statement,
    status: Statement,
}

const SQL: [&str; 11] = [
    include_str!("sql/parked_insert.sql"),
    include_str!("sql/mark_parked.sql"),
    include_str!("sql/attempts_insert.sql"),
    include_str!("sql/parked_keys.sql"),
    include_str!("sql/parked_take.sql"),
    include_str!("sql/parked_again.sql"),
    include_str!("sql/resume_applied.sql"),
    include_str!("sql/resume_again.sql"),
    include_str!("sql/resume_dead.sql"),
    include_str!("sql/resume_started.sql"),
    include_str!("sql/parked_status.sql"),
];

impl Statements {
    async fn prepare(client: &Client, schema: &SchemaName) -> Result<Self, StoreError> {
        let sql = SQL.map(|sql| schema.render(sql, GUARD));
        let prepared = in_order(sql.iter().map(|sql| client.prepare(sql)).collect()).await;
        let prepared: Vec<Statement> = prepared
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|e| failed("preparing for parked messages", e))?;
        let [insert, mark, note, keys, take, take_again, applied, again, dead, started, status] =
            <[Statement; 11]>::try_from(prepared).map_err(|_| no_answer("preparing for parked messages"))?;
        Ok(Self { insert, mark, note, keys, take, take_again, applied, again, dead, started, status })
    }
}

/// An error of one of our own statements.
pub(super) fn failed(what: &str, error: tokio_postgres::Error) -> StoreError {
    match error.code().map(tokio_postgres::error::SqlState::code) {
        Some("42P01" | "3F000") => missing_tables().with_source(error),
        Some("42501") => {
            let what = format!("{what}: run `handstamp migrate --grant-to` with this role's name");
            store_error(&what, error)
        }
        _ => store_error(what, error),
    }
}

pub(super) fn no_answer(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("Postgres did not answer in time: {what}"))
}

impl PostgresStore {
    async fn parking<'a>(&self, slot: &'a Slot) -> Result<&'a Statements, StoreError> {
        if slot.parked.get().is_none() {
            // Two at once cannot be: a connection has one user.
            let _ = slot.parked.set(Statements::prepare(slot.client(), self.schema()).await?);
        }
        slot.parked.get().ok_or_else(|| no_answer("preparing for parked messages"))
    }

    /// Runs statements in a transaction that the caller must roll back after an error.
    pub(super) async fn within<T>(
        &self,
        tx: &Tx,
        what: &str,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let outcome = timeout(tx.shared.answer_limit(), work).await;
        let outcome = outcome.unwrap_or_else(|_| Err(no_answer(what)));
        if let Err(error) = &outcome {
            tx.shared.note(tx.consumer, code_of(error).as_deref());
            if error.kind == StoreErrorKind::SchemaMismatch {
                tx.slot.mark_stale();
            }
        }
        outcome
    }

    /// Parks a message, takes it, lets it fail again and gives it up: in a transaction that is rolled back.
    pub(super) async fn rehearse_parking(
        &self,
        slot: &Slot,
        consumer: i16,
        letter: DeadLetter,
    ) -> Result<(), StoreError> {
        let statements = self.parking(slot).await?;
        let dedup = letter.dedup();
        let failed_attempt = FailedAttempt {
            at: letter.failed_at,
            node: String::new(),
            class: letter.class,
            code: None,
            reason: letter.reason.clone(),
        };
        let park = Park { letter, wait: Duration::ZERO, order_key: None };
        park_chunk(slot, statements, consumer, &[park], &mut Vec::new()).await?;
        let keys = [dedup.as_slice()];
        let values: [Value<'_>; 3] = [&consumer, &keys.as_slice(), &None::<&[u8]>];
        let taken = slot.client().query(&statements.take_again, &values).await;
        taken.map_err(|e| failed("taking parked messages", e))?;
        let again = Resumed::Again { wait: Duration::ZERO, failed: failed_attempt.clone() };
        resume_all(slot, statements, consumer, &[(dedup, again)]).await?;
        let dead = Resumed::Dead { failed: failed_attempt, charged: true };
        resume_all(slot, statements, consumer, &[(dedup, dead)]).await
    }

    /// Opens a transaction and locks rows that are due; how many of them, from the first on, may be handled
    /// together: what another owner had started and did not end is handled alone.
    pub(super) async fn open_and_take_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        owner: Option<&Owner>,
    ) -> Result<(Tx, Vec<ParkedMessage>, usize), StoreError> {
        let (max, owner) = (i64::try_from(max).unwrap_or(i64::MAX), owner.map(|owner| owner.0.as_slice()));
        self.open_and_take(consumer, |s| &s.take, &[&consumer.id, &max, &owner]).await
    }

    /// Opens a transaction and locks these rows.
    pub(super) async fn open_and_take_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        owner: Option<&Owner>,
    ) -> Result<Taken<Tx>, StoreError> {
        let mut seen = HashSet::new();
        let keys: Vec<&[u8]> =
            keys.iter().filter(|key| seen.insert(**key)).map(<[u8; 16]>::as_slice).collect();
        let owner = owner.map(|owner| owner.0.as_slice());
        let values: [Value<'_>; 3] = [&consumer.id, &keys, &owner];
        let (tx, rows, _) = self.open_and_take(consumer, |s| &s.take_again, &values).await?;
        Ok((tx, rows))
    }

    /// Opens a transaction as `begin` does and locks rows, in one flight.
    async fn open_and_take(
        &self,
        consumer: &ConsumerKey,
        take: fn(&Statements) -> &Statement,
        values: &[Value<'_>],
    ) -> Result<(Tx, Vec<ParkedMessage>, usize), StoreError> {
        let shared = &self.shared;
        let mut slot = shared.slots.take().await?;
        slot.opened();
        let opened_at = std::time::Instant::now();
        let tx = Tx { slot, consumer: consumer.id, opened_at, saved: false, shared: shared.clone() };
        let taken = async {
            let statements = self.parking(&tx.slot).await?;
            let (_, opening) = shared.opening(consumer);
            let (client, prepared) = (tx.slot.client(), &tx.slot.prepared);
            let flight = tx.slot.coalesce();
            let (begun, opened, rows) = join3(
                client.execute(&prepared.begin, &[]),
                client.query(&prepared.open, &[&opening.lock, &opening.alone]),
                client.query(take(statements), values),
            )
            .await;
            drop(flight);
            begun.map_err(|e| store_error("opening a transaction", e))?;
            opened.map_err(|e| store_error("opening a transaction", e))?;
            let rows = rows.map_err(|e| failed("taking parked messages", e))?;
            let together = together(&rows).map_err(read_error)?;
            let rows = rows.iter().map(|row| parked_of(row).map_err(read_error)?);
            Ok((rows.collect::<Result<Vec<_>, _>>()?, together))
        };
        match timeout(shared.answer_limit(), taken).await {
            Ok(Ok((rows, together))) => Ok((tx, rows, together)),
            Ok(Err(error)) => {
                shared.end_failed(tx, &error).await;
                Err(error)
            }
            Err(_) => {
                tx.slot.abandon().await;
                Err(no_answer("taking parked messages"))
            }
        }
    }
}

async fn execute(
    client: &Client,
    statement: &Statement,
    values: &[Value<'_>],
) -> Result<u64, tokio_postgres::Error> {
    client.execute(statement, values).await
}

impl ParkingStore for PostgresStore {
    async fn park(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        rows: &[Park],
    ) -> Result<Vec<Recorded>, StoreError> {
        self.within(tx, "parking messages", async {
            let statements = self.parking(&tx.slot).await?;
            let mut outcomes = Vec::with_capacity(rows.len());
            for chunk in rows.chunks(IN_FLIGHT_MAX) {
                park_chunk(&tx.slot, statements, consumer.id, chunk, &mut outcomes).await?;
            }
            Ok(outcomes)
        })
        .await
    }

    async fn note_attempts(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        attempts: &[(Dedup, FailedAttempt)],
    ) -> Result<(), StoreError> {
        if attempts.is_empty() {
            return Ok(());
        }
        self.within(tx, "noting attempts", async {
            let statements = self.parking(&tx.slot).await?;
            let noted = Failures::of(attempts.iter().map(|(dedup, failed)| (dedup, failed)));
            let values = noted.history(&consumer.id);
            let noted = tx.slot.client().execute(&statements.note, &values).await;
            noted.map(drop).map_err(|e| failed("noting attempts", e))
        })
        .await
    }

    async fn parked_keys(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        keys: &[OrderKey],
    ) -> Result<Vec<bool>, StoreError> {
        let mut parked = vec![false; keys.len()];
        if keys.is_empty() {
            return Ok(parked);
        }
        self.within(tx, "looking for parked keys", async {
            let statements = self.parking(&tx.slot).await?;
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.0.as_slice()).collect();
            let rows = tx.slot.client().query(&statements.keys, &[&consumer.id, &keys]).await;
            for row in rows.map_err(|e| failed("looking for parked keys", e))? {
                let place: i32 = row.try_get(0).map_err(read_error)?;
                let place = usize::try_from(place).unwrap_or_default().wrapping_sub(1);
                if let Some(parked) = parked.get_mut(place) {
                    *parked = true;
                }
            }
            Ok(parked)
        })
        .await
    }

    async fn take_due(&self, consumer: &ConsumerKey, max: usize) -> Result<Option<Taken<Tx>>, StoreError> {
        let (tx, rows, _) = self.open_and_take_due(consumer, max, None).await?;
        if rows.is_empty() {
            self.rollback(tx).await?;
            return Ok(None);
        }
        Ok(Some((tx, rows)))
    }

    async fn take_again(&self, consumer: &ConsumerKey, keys: &[Dedup]) -> Result<Taken<Tx>, StoreError> {
        self.open_and_take_again(consumer, keys, None).await
    }

    async fn savepoint(&self, tx: &mut Tx) -> Result<(), StoreError> {
        let moves = std::mem::replace(&mut tx.saved, true);
        let sql =
            if moves { "RELEASE handstamp_row; SAVEPOINT handstamp_row" } else { "SAVEPOINT handstamp_row" };
        self.within(tx, "setting a savepoint", async {
            tx.slot.client().batch_execute(sql).await.map_err(guard_error)
        })
        .await
    }

    async fn take_back(&self, tx: &mut Tx) -> Result<(), StoreError> {
        self.within(tx, "going back to a savepoint", async {
            tx.slot.client().batch_execute("ROLLBACK TO handstamp_row").await.map_err(guard_error)
        })
        .await
    }

    async fn resume(
        &self,
        tx: &mut Tx,
        consumer: &ConsumerKey,
        outcomes: &[(Dedup, Resumed)],
    ) -> Result<(), StoreError> {
        self.within(tx, "writing what became of parked messages", async {
            let statements = self.parking(&tx.slot).await?;
            resume_all(&tx.slot, statements, consumer.id, outcomes).await
        })
        .await
    }

    /// Counts up to [`COUNTED_MAX`]: an index read of some 80 milliseconds.
    async fn parked_status(&self, consumer: &ConsumerKey) -> Result<ParkedStatus, StoreError> {
        self.with_slot(async |slot| {
            let statements = self.parking(slot).await?;
            let count_max = i64::try_from(COUNTED_MAX).unwrap_or(i64::MAX);
            let row = slot.client().query_one(&statements.status, &[&consumer.id, &count_max]).await;
            status_of(&row.map_err(|e| failed("counting parked messages", e))?).map_err(read_error)
        })
        .await
    }
}

/// Parks some messages and marks their inbox rows, in one flight.
async fn park_chunk(
    slot: &Slot,
    statements: &Statements,
    consumer: i16,
    chunk: &[Park],
    outcomes: &mut Vec<Recorded>,
) -> Result<(), StoreError> {
    let letters: Vec<LetterRow<'_>> = chunk.iter().map(|row| LetterRow::new(consumer, &row.letter)).collect();
    let own: Vec<Own<'_>> = chunk
        .iter()
        .zip(&letters)
        .map(|(row, letter)| {
            (letter.dedup(), millis(row.wait), row.order_key.as_ref().map(|key| key.0.as_slice()))
        })
        .collect();
    let values: Vec<Vec<Value<'_>>> = letters
        .iter()
        .zip(&own)
        .map(|(letter, (dedup, wait, order_key))| {
            let mut values = letter.values(dedup).to_vec();
            values.extend([wait as Value<'_>, order_key]);
            values
        })
        .collect();
    let marked: Vec<Vec<u8>> = chunk
        .iter()
        .filter(|row| row.letter.marks_inbox())
        .filter_map(|row| row.letter.id.as_ref().map(MessageId::to_stored))
        .collect();
    let marking: [Value<'_>; 2] = [&marked, &consumer];
    let client = slot.client();
    let mut sent: Vec<_> = values.iter().map(|values| execute(client, &statements.insert, values)).collect();
    if !marked.is_empty() {
        sent.push(execute(client, &statements.mark, &marking));
    }
    let flight = slot.coalesce();
    let answers = CrashPoint::MidPark.between_sending_and_answer(in_order(sent)).await;
    drop(flight);
    for (at, answer) in answers.into_iter().enumerate() {
        let kept = answer.map_err(|e| failed("parking messages", e))?;
        if at < chunk.len() {
            outcomes.push(if kept == 0 { Recorded::Known } else { Recorded::New });
        }
    }
    Ok(())
}

/// One statement for each kind of outcome, one for the history and one for start records, in one flight.
async fn resume_all(
    slot: &Slot,
    statements: &Statements,
    consumer: i16,
    outcomes: &[(Dedup, Resumed)],
) -> Result<(), StoreError> {
    let mut applied: Vec<&[u8]> = Vec::new();
    let (mut again, mut waits) = (Vec::new(), Vec::new());
    let (mut dead, mut charges) = (Vec::new(), Vec::new());
    let mut noted = Vec::new();
    for (dedup, outcome) in outcomes {
        match outcome {
            Resumed::Applied => applied.push(dedup),
            Resumed::Again { wait, failed } => {
                again.push((dedup, failed));
                waits.push(millis(*wait));
                noted.push((dedup, failed));
            }
            Resumed::Dead { failed, charged } => {
                dead.push((dedup, failed));
                charges.push(i64::from(*charged));
                noted.extend(charged.then_some((dedup, failed)));
            }
        }
    }
    let resumed: Vec<&[u8]> = outcomes.iter().map(|(dedup, _)| dedup.as_slice()).collect();
    let dead_keys = dead.iter().map(|(dedup, _)| dedup.as_slice());
    let ended: Vec<&[u8]> = applied.iter().copied().chain(dead_keys).collect();
    let [again, dead, noted] = [again, dead, noted].map(|failures| Failures::of(failures.into_iter()));
    let applied_values: [Value<'_>; 2] = [&consumer, &applied];
    let again_values = again.outcomes(&consumer, &waits);
    let dead_values = dead.outcomes(&consumer, &charges);
    let noted_values = noted.history(&consumer);
    let started_values: [Value<'_>; 3] = [&consumer, &resumed, &ended];
    let groups: [(bool, &Statement, &[Value<'_>]); 5] = [
        (applied.is_empty(), &statements.applied, &applied_values),
        (again.is_empty(), &statements.again, &again_values),
        (dead.is_empty(), &statements.dead, &dead_values),
        (noted.is_empty(), &statements.note, &noted_values),
        (resumed.is_empty(), &statements.started, &started_values),
    ];
    let client = slot.client();
    let sent = groups.iter().filter(|(empty, ..)| !empty);
    let sent = sent.map(|(_, statement, values)| execute(client, statement, values)).collect();
    let flight = slot.coalesce();
    let answers = in_order(sent).await;
    drop(flight);
    for answer in answers {
        answer.map_err(|e| failed("writing what became of parked messages", e))?;
    }
    Ok(())
}

/// Failed attempts, a vector a column.
#[derive(Default)]
struct Failures<'a> {
    dedups: Vec<&'a [u8]>,
    times: Vec<i64>,
    nodes: Vec<String>,
    classes: Vec<&'static str>,
    codes: Vec<Option<&'a str>>,
    reasons: Vec<&'a str>,
}

impl<'a> Failures<'a> {
    fn of(attempts: impl Iterator<Item = (&'a Dedup, &'a FailedAttempt)>) -> Self {
        let mut all = Self::default();
        for (dedup, failed) in attempts {
            all.dedups.push(dedup);
            all.times.push(failed.at.0);
            // text holds no NUL; no host's name does either.
            all.nodes.push(failed.node.replace('\0', "\u{fffd}"));
            all.classes.push(failed.class.as_str());
            all.codes.push(failed.code.as_deref());
            all.reasons.push(failed.reason.as_str());
        }
        all
    }

    fn is_empty(&self) -> bool {
        self.dedups.is_empty()
    }

    /// The parameters of `attempts_insert.sql`.
    fn history<'b>(&'b self, consumer: &'b i16) -> [Value<'b>; 7] {
        [consumer, &self.dedups, &self.times, &self.nodes, &self.classes, &self.codes, &self.reasons]
    }

    /// The parameters of `resume_again.sql` and `resume_dead.sql`; `numbers` is the wait or the charge.
    fn outcomes<'b>(&'b self, consumer: &'b i16, numbers: &'b Vec<i64>) -> [Value<'b>; 7] {
        [consumer, &self.dedups, numbers, &self.times, &self.classes, &self.codes, &self.reasons]
    }
}

/// Never shorter than the wait.
fn millis(wait: Duration) -> i64 {
    let ms = wait.as_nanos().div_ceil(1_000_000);
    i64::try_from(ms).unwrap_or(i64::MAX).min(WAIT_MAX_MS)
}

/// How many rows, from the first on, may be handled together.
fn together(rows: &[Row]) -> Result<usize, tokio_postgres::Error> {
    for (at, row) in rows.iter().enumerate() {
        if row.try_get(SUSPECTED)? {
            return Ok(at.max(1));
        }
    }
    Ok(rows.len())
}

fn parked_of(row: &Row) -> Result<Result<ParkedMessage, StoreError>, tokio_postgres::Error> {
    let letter = match letter_of(row)? {
        Ok(letter) => letter,
        Err(error) => return Ok(Err(error)),
    };
    let (Ok(dedup), Ok(order_key)) = (
        Dedup::try_from(row.try_get::<_, &[u8]>(19)?),
        row.try_get::<_, Option<&[u8]>>(22)?.map(<[u8; 16]>::try_from).transpose(),
    ) else {
        return Ok(Err(strange("key")));
    };
    Ok(Ok(ParkedMessage {
        dedup,
        letter,
        parked_at: Timestamp(row.try_get(20)?),
        parked_for: duration(row.try_get(21)?),
        order_key: order_key.map(OrderKey),
        crashes: Vec::new(),
        suspected: row.try_get(SUSPECTED)?,
    }))
}

pub(super) fn status_of(row: &Row) -> Result<ParkedStatus, tokio_postgres::Error> {
    Ok(ParkedStatus {
        count: u64::try_from(row.try_get::<_, i64>(0)?).unwrap_or_default(),
        due_in: row.try_get::<_, Option<i64>>(1)?.map(duration),
        oldest: row.try_get::<_, Option<i64>>(2)?.map(duration),
    })
}

/// Negative is zero: a clock that was set back.
fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_never_shorter_than_asked_and_always_end() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::MAX), WAIT_MAX_MS);
    }
}
