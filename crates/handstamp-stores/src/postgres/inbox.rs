//! Claims: one statement for a batch, and level 0: a claim inside the user's own transaction.
//!
//! Authoritative: the primary key (id, consumer) of the inbox. A claim never catches a unique
//! violation; it inserts with `ON CONFLICT DO NOTHING` and reads what was known.
//!
//! One statement and one round trip for many ids, whatever the answer. There are two of them, which answer the
//! same: one inserts first, which is fastest where nearly every id is new; the other looks up first, for batches
//! after one that was mostly known (a replay, a rewind).
//!
//! ```text
//!  id ─┬─ inserted ──────────────────────────► First
//!      ├─ visible before the statement ──────► Duplicate, or IdReused when the digest differs
//!      └─ neither: the statement waited for ─► read again with a new snapshot ─► Duplicate / IdReused
//!         another transaction                    └─ still neither ─► claim again (its holder is gone)
//! ```

use super::classify::store_error;
use super::config::{PostgresOptions, SchemaName};
use super::migrate::{self, missing_tables};
use handstamp_core as core;
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, Fingerprint, InboxState, MessageId, StoreError, StoreErrorKind,
    Timestamp,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{GenericClient, Row, Transaction};

/// Seconds between 1970 and the start of the inbox's clock, 2020-01-01 UTC.
const EPOCH_S: i64 = 1_577_836_800;
/// How often a claim is tried when holders of its ids vanish meanwhile.
const TRIES_MAX: u32 = 3;
/// How often a registration is tried when other processes register at the same time.
const REGISTER_TRIES_MAX: u32 = 1000;
/// Asks whether the transaction is still the one in which our limits were set: the mark is local to it.
pub(crate) const GUARD: &str = "current_setting('handstamp.tx', true) IS NOT DISTINCT FROM '1'";
/// The claim's statements for one schema.
#[derive(Debug)]
pub(crate) struct ClaimSql {
    one: String,
    pub(crate) many: String,
    pub(crate) many_known: String,
    pub(crate) insert_one: String,
    pub(crate) known: String,
    consumer: String,
    /// The last batch was mostly known. Decides nothing but how fast the next claim is.
    mostly_known: AtomicBool,
}

impl ClaimSql {
    /// For our own transactions: they open with the claim, and nothing is claimed outside of them.
    pub(crate) fn opening(options: &PostgresOptions) -> Self {
        let (schema, open) = (&options.schema, open_sql(options, "$5::int8", "$6::bool"));
        Self {
            insert_one: schema.render(include_str!("sql/insert_one.sql"), &open),
            many: schema.render(include_str!("sql/claim_many.sql"), &open),
            many_known: schema.render(include_str!("sql/claim_known.sql"), &open),
            ..Self::with_guard(schema, GUARD)
        }
    }

    /// For transactions of the user.
    pub(crate) fn unguarded(schema: &SchemaName) -> Self {
        Self::with_guard(schema, "true")
    }

    fn with_guard(schema: &SchemaName, guard: &str) -> Self {
        Self {
            one: schema.render(include_str!("sql/claim_one.sql"), guard),
            many: schema.render(include_str!("sql/claim_many.sql"), guard),
            many_known: schema.render(include_str!("sql/claim_known.sql"), guard),
            insert_one: schema.render(include_str!("sql/insert_one.sql"), guard),
            known: schema.render(include_str!("sql/known.sql"), guard),
            consumer: schema.render(include_str!("sql/consumer.sql"), guard),
            mostly_known: AtomicBool::new(false),
        }
    }

    pub(crate) fn expects_known(&self) -> bool {
        self.mostly_known.load(Ordering::Relaxed)
    }

    /// Takes note of a batch that is answered.
    pub(crate) fn note(&self, batch: &Batch) {
        if batch.len() > 1 {
            let known = batch.found.iter().flatten().filter(|found| found.state.is_some()).count();
            self.mostly_known.store(known * 2 > batch.len(), Ordering::Relaxed);
        }
    }
}

/// The expression that opens a transaction behind its BEGIN.
pub(crate) fn open_sql(options: &PostgresOptions, lock: &str, alone: &str) -> String {
    let sql = options.schema.render(include_str!("sql/open.sql"), "true");
    let ms = |limit: Duration| limit.as_millis().to_string();
    sql.replace("{lock}", lock)
        .replace("{alone}", alone)
        .replace("{lock_timeout_ms}", &ms(options.lock_timeout))
        .replace("{statement_timeout_ms}", &ms(options.statement_timeout))
        .replace("{idle_timeout_ms}", &ms(options.idle_in_transaction_timeout))
}

/// How a transaction of ours opens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Opening {
    /// The key of the consumer's advisory lock.
    pub(crate) lock: i64,
    /// After a deadlock: no other batch of this consumer meanwhile.
    pub(crate) alone: bool,
    /// Most ids are likely to be known: look them up before anything is inserted.
    pub(crate) looks_first: bool,
}

/// The distinct ids of a claim in the order they are locked, and what is known of each.
pub(crate) struct Batch {
    stored: Vec<Vec<u8>>,
    digests: Vec<Option<i64>>,
    /// For each request: its id's place in `stored`, and whether it is the first with that id.
    places: Vec<(usize, bool)>,
    found: Vec<Option<Found>>,
}

#[derive(Clone, Copy)]
struct Found {
    seen_at: i32,
    digest: Option<i64>,
    /// `None`: inserted by us.
    state: Option<InboxState>,
}

impl Batch {
    pub(crate) fn new(requests: &[ClaimRequest]) -> Self {
        let mut order: Vec<(Vec<u8>, usize)> =
            requests.iter().enumerate().map(|(at, request)| (request.id.to_stored(), at)).collect();
        order.sort_unstable();
        let mut batch = Self {
            stored: Vec::with_capacity(order.len()),
            digests: Vec::with_capacity(order.len()),
            places: vec![(0, false); requests.len()],
            found: Vec::new(),
        };
        for (stored, at) in order {
            let first = batch.stored.last() != Some(&stored);
            if first {
                batch.stored.push(stored);
                batch.digests.push(requests[at].digest);
            }
            batch.places[at] = (batch.stored.len() - 1, first);
        }
        batch.found = vec![None; batch.stored.len()];
        batch
    }

    pub(crate) fn len(&self) -> usize {
        self.stored.len()
    }

    /// The claim's parameters; `one` when the batch has exactly one id.
    pub(crate) fn parameters<'a>(&'a self, consumer: &'a ConsumerParameters) -> [&'a (dyn ToSql + Sync); 4] {
        match (self.stored.as_slice(), self.digests.as_slice()) {
            ([id], [digest]) => [id, digest, &consumer.id, &consumer.name],
            _ => [&self.stored, &self.digests, &consumer.id, &consumer.name],
        }
    }

    /// The parameters of a claim that opens its transaction.
    pub(crate) fn opening_parameters<'a>(
        &'a self,
        consumer: &'a ConsumerParameters,
        opening: &'a Opening,
    ) -> [&'a (dyn ToSql + Sync); 6] {
        let [ids, digests, id, name] = self.parameters(consumer);
        [ids, digests, id, name, &opening.lock, &opening.alone]
    }

    /// Takes the rows of a claim or of a reading, in any order: rows of two columns are an id of ours each,
    /// rows of four an id each, and those of a claim of many are taken by [`take_many`](Self::take_many).
    pub(crate) fn take(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        for row in rows {
            if row.len() > 4 {
                self.take_many(row)?;
                continue;
            }
            let id: &[u8] = row.try_get(0).map_err(read_error)?;
            let seen_at: i32 = row.try_get(1).map_err(read_error)?;
            let (digest, state) = if row.len() > 2 {
                let state: Option<i8> = row.try_get(3).map_err(read_error)?;
                (row.try_get(2).map_err(read_error)?, state.map(state_of).transpose()?)
            } else {
                (None, None)
            };
            self.answer(id, Found { seen_at, digest, state });
        }
        Ok(())
    }

    /// Takes one row about many ids: all of ours, some of ours, or those that were known.
    fn take_many(&mut self, row: &Row) -> Result<(), StoreError> {
        let seen_at: Vec<i32> = row.try_get(2).map_err(read_error)?;
        let ours = seen_at.first().map(|&seen_at| Found { seen_at, digest: None, state: None });
        let ids: Option<Vec<&[u8]>> = row.try_get(0).map_err(read_error)?;
        let places: Option<Vec<i32>> = row.try_get(1).map_err(read_error)?;
        match (ids, places, ours) {
            (None, None, ours) => self.found.fill(ours),
            (Some(ids), _, Some(ours)) => ids.into_iter().for_each(|id| self.answer(id, ours)),
            (None, Some(places), _) => {
                let digests: Vec<Option<i64>> = row.try_get(3).map_err(read_error)?;
                let states: &str = row.try_get(4).map_err(read_error)?;
                let states = states.chars().map(|letter| i8::try_from(u32::from(letter)).unwrap_or_default());
                for (((place, seen_at), digest), state) in
                    places.into_iter().zip(seen_at).zip(digests).zip(states)
                {
                    let state = Some(state_of(state)?);
                    let at = usize::try_from(place).unwrap_or_default().wrapping_sub(1);
                    if let Some(found) = self.found.get_mut(at) {
                        *found = Some(Found { seen_at, digest, state });
                    }
                }
            }
            (Some(_), _, None) => {}
        }
        Ok(())
    }

    fn answer(&mut self, id: &[u8], found: Found) {
        if let Ok(at) = self.stored.binary_search_by(|stored| stored.as_slice().cmp(id)) {
            self.found[at] = Some(found);
        }
    }

    pub(crate) fn missing(&self) -> Vec<&[u8]> {
        let ids = self.stored.iter().zip(&self.found);
        ids.filter(|(_, found)| found.is_none()).map(|(id, _)| id.as_slice()).collect()
    }

    /// The batch of the ids without an answer, for another try.
    fn rest(&self) -> Self {
        let missing = (0..self.len()).filter(|&at| self.found[at].is_none());
        let (stored, digests): (Vec<_>, Vec<_>) =
            missing.map(|at| (self.stored[at].clone(), self.digests[at])).unzip();
        Self { places: Vec::new(), found: vec![None; stored.len()], stored, digests }
    }

    fn take_rest(&mut self, rest: Self) {
        for (id, found) in rest.stored.iter().zip(rest.found) {
            if let (Ok(at), Some(found)) = (self.stored.binary_search(id), found) {
                self.found[at] = Some(found);
            }
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }

    /// The n-th answer belongs to the n-th request. Empty when an id has no answer.
    pub(crate) fn claims(&self, requests: &[ClaimRequest]) -> Vec<Claim> {
        let mut claims = Vec::with_capacity(requests.len());
        for (request, &(at, first)) in requests.iter().zip(&self.places) {
            let Some(found) = self.found[at] else { return Vec::new() };
            claims.push(match found.state {
                None if first => Claim::First,
                None => known(request.digest, self.digests[at], InboxState::Applied, found.seen_at),
                Some(state) => known(request.digest, found.digest, state, found.seen_at),
            });
        }
        claims
    }
}

fn read_error(error: tokio_postgres::Error) -> StoreError {
    store_error("reading the answer to a claim", error)
}

fn known(asked: Option<i64>, kept: Option<i64>, state: InboxState, seen_at: i32) -> Claim {
    let first_seen = timestamp_of(seen_at);
    match (asked, kept) {
        (Some(asked), Some(kept)) if asked != kept => Claim::IdReused { state, first_seen },
        _ => Claim::Duplicate { state, first_seen },
    }
}

/// The time behind an inbox row's seconds.
pub(crate) fn timestamp_of(seen_at: i32) -> Timestamp {
    Timestamp((i64::from(seen_at) + EPOCH_S) * 1000)
}

/// The seconds of an inbox row at a time, as far as they reach.
pub(crate) fn seconds_of(time: Timestamp) -> i32 {
    let seconds = time.0.div_euclid(1000) - EPOCH_S;
    i32::try_from(seconds).unwrap_or(if seconds < 0 { i32::MIN } else { i32::MAX })
}

/// The state behind an inbox row's letter. A letter of a newer version may mean that the outcome is not
/// durable yet: it is refused, never guessed.
pub(crate) fn state_of(letter: i8) -> Result<InboxState, StoreError> {
    let known = u8::try_from(letter).ok().and_then(|byte| InboxState::from_letter(char::from(byte)));
    known.ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::SchemaMismatch,
            format!("an inbox row carries the state {letter}, which this version does not know: update the program"),
        )
    })
}

/// A consumer as claim parameters.
pub(crate) struct ConsumerParameters {
    pub(crate) id: i16,
    pub(crate) name: String,
}

impl From<&ConsumerKey> for ConsumerParameters {
    fn from(key: &ConsumerKey) -> Self {
        Self { id: key.id, name: key.name.as_str().to_owned() }
    }
}

/// Answers the ids that the claim statement neither inserted nor saw.
///
/// # Errors
/// `UnknownConsumer`, `Conflict`, or the driver's.
pub(crate) async fn answer_the_rest<C: GenericClient + Sync>(
    client: &C,
    sql: &ClaimSql,
    consumer: &ConsumerParameters,
    batch: &mut Batch,
) -> Result<(), StoreError> {
    for again in 1..=TRIES_MAX {
        let known = client
            .query_typed(&sql.known, &[(&batch.missing(), Type::BYTEA_ARRAY), (&consumer.id, Type::INT2)])
            .await
            .map_err(claim_error)?;
        batch.take(&known)?;
        if batch.is_answered() {
            return Ok(());
        }
        check_registered(client, sql, consumer).await?;
        if again == TRIES_MAX {
            break;
        }
        let mut rest = batch.rest();
        let rows = claim_typed(client, sql, consumer, &rest).await?;
        rest.take(&rows)?;
        batch.take_rest(rest);
        if batch.is_answered() {
            return Ok(());
        }
    }
    Err(StoreError::new(
        StoreErrorKind::Conflict,
        "an id is held by another transaction and this transaction's snapshot cannot see it: run the transaction again (READ COMMITTED needs it least)",
    ))
}

async fn check_registered<C: GenericClient + Sync>(
    client: &C,
    sql: &ClaimSql,
    consumer: &ConsumerParameters,
) -> Result<(), StoreError> {
    let rows =
        client.query_typed(&sql.consumer, &[(&consumer.name, Type::TEXT)]).await.map_err(claim_error)?;
    let id = rows.first().and_then(|row| row.try_get::<_, i16>(0).ok());
    if id == Some(consumer.id) {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::UnknownConsumer,
        format!(
            "the consumer {:?} is not registered in this database (any more): register it first",
            consumer.name
        ),
    ))
}

pub(crate) async fn claim_typed<C: GenericClient + Sync>(
    client: &C,
    sql: &ClaimSql,
    consumer: &ConsumerParameters,
    batch: &Batch,
) -> Result<Vec<Row>, StoreError> {
    let [ids, digests, id, name] = batch.parameters(consumer);
    let one = batch.len() == 1;
    let (sql, types) = if one {
        (&sql.one, (Type::BYTEA, Type::INT8))
    } else if sql.expects_known() {
        (&sql.many_known, (Type::BYTEA_ARRAY, Type::INT8_ARRAY))
    } else {
        (&sql.many, (Type::BYTEA_ARRAY, Type::INT8_ARRAY))
    };
    let parameters = [(ids, types.0), (digests, types.1), (id, Type::INT2), (name, Type::TEXT)];
    client.query_typed(sql, &parameters).await.map_err(claim_error)
}

/// An error of one of our own statements: missing tables are told from statements that do not fit.
pub(crate) fn claim_error(error: tokio_postgres::Error) -> StoreError {
    match error.code().map(tokio_postgres::error::SqlState::code) {
        Some("42P01" | "3F000") => missing_tables().with_source(error),
        _ => store_error("claiming", error),
    }
}

/// A consumer's name registered in one database: level 0's handle for [`claim`].
///
/// It belongs to the database it was registered in, and holds the number that inbox rows carry there. The bare
/// name, checked and not yet registered anywhere, is [`handstamp_core::ConsumerName`]; level 1's
/// `Consumer::builder` takes that one. [`ConsumerName::key`] leads from here to there (`key().name`).
#[derive(Debug, Clone)]
pub struct ConsumerName {
    key: ConsumerKey,
    sql: Arc<ClaimSql>,
}

impl ConsumerName {
    /// Registers a consumer's name in the schema `handstamp`, or finds it (idempotent, no DDL). Takes a
    /// client or an open transaction.
    ///
    /// # Errors
    /// `Config` for a name outside `[A-Za-z0-9._-]{1,64}`, `NotMigrated`, `Unavailable`.
    pub async fn register<C: GenericClient + Sync>(client: &C, name: &str) -> Result<Self, StoreError> {
        Self::register_in(client, &SchemaName::default(), name).await
    }

    /// The same in another schema.
    ///
    /// # Errors
    /// As [`ConsumerName::register`].
    pub async fn register_in<C: GenericClient + Sync>(
        client: &C,
        schema: &SchemaName,
        name: &str,
    ) -> Result<Self, StoreError> {
        let name = core::ConsumerName::new(name)
            .map_err(|e| StoreError::new(StoreErrorKind::Config, e.to_string()))?;
        migrate::check_version(migrate::installed_version(client, schema).await?, schema)?;
        let key = register_key(client, schema, &name, None, false).await?;
        Ok(Self { key, sql: Arc::new(ClaimSql::unguarded(schema)) })
    }

    /// The name and its number in this database.
    #[must_use]
    pub fn key(&self) -> &ConsumerKey {
        &self.key
    }
}

/// Finds or makes a consumer's row. Safe from many processes at once.
pub(crate) async fn register_key<C: GenericClient + Sync>(
    client: &C,
    schema: &SchemaName,
    name: &core::ConsumerName,
    fingerprint: Option<&Fingerprint>,
    adopt: bool,
) -> Result<ConsumerKey, StoreError> {
    let find = schema.render(include_str!("sql/consumer.sql"), "true");
    let insert = schema.render(include_str!("sql/consumer_insert.sql"), "true");
    let fingerprint = fingerprint.map(|f| f.0.as_str());
    let failed = |e| registration_error(name, e);
    for _ in 0..REGISTER_TRIES_MAX {
        let rows = client.query_typed(&find, &[(&name.as_str(), Type::TEXT)]).await.map_err(failed)?;
        if let Some(row) = rows.first() {
            let id: i16 = row.try_get(0).map_err(failed)?;
            let kept: Option<&str> = row.try_get(1).map_err(failed)?;
            adopt_fingerprint(client, schema, name, (id, kept), fingerprint, adopt).await?;
            return Ok(ConsumerKey { id, name: name.clone() });
        }
        let rows = client
            .query_typed(&insert, &[(&name.as_str(), Type::TEXT), (&fingerprint, Type::TEXT)])
            .await
            .map_err(failed)?;
        if let Some(row) = rows.first() {
            return Ok(ConsumerKey { id: row.try_get(0).map_err(failed)?, name: name.clone() });
        }
    }
    let message =
        format!("registering the consumer {name}: other processes were faster {REGISTER_TRIES_MAX} times");
    Err(StoreError::new(StoreErrorKind::Conflict, message))
}

async fn adopt_fingerprint<C: GenericClient + Sync>(
    client: &C,
    schema: &SchemaName,
    name: &core::ConsumerName,
    (id, kept): (i16, Option<&str>),
    wanted: Option<&str>,
    adopt: bool,
) -> Result<(), StoreError> {
    let Some(wanted) = wanted else { return Ok(()) };
    if kept == Some(wanted) {
        return Ok(());
    }
    if let Some(kept) = kept
        && !adopt
    {
        return Err(StoreError::new(
            StoreErrorKind::FingerprintMismatch,
            format!(
                "the consumer {name} was registered for {kept}, not for {wanted}: another stream under the same name would skip what has the same ids; choose another name, or pass --adopt when it is the same stream"
            ),
        ));
    }
    let sql = schema.render(include_str!("sql/consumer_adopt.sql"), "true");
    client
        .execute_typed(&sql, &[(&id, Type::INT2), (&wanted, Type::TEXT), (&adopt, Type::BOOL)])
        .await
        .map(|_| ())
        .map_err(|e| registration_error(name, e))
}

fn registration_error(name: &core::ConsumerName, error: tokio_postgres::Error) -> StoreError {
    match error.code().map(tokio_postgres::error::SqlState::code) {
        Some("42P01" | "3F000") => missing_tables().with_source(error),
        _ => store_error(&format!("registering the consumer {name}"), error),
    }
}

/// Claims one id inside the transaction you already have: First exactly when this transaction is the
/// one whose commit makes the id known. Roll back, and the id is free again.
///
/// The id's digest is not kept, so another body under the same id goes unnoticed; see
/// [`claim_with_digest`]. Waits while another transaction holds the same id.
///
/// # Errors
/// `UnknownConsumer`; `Conflict`: run the transaction again; `Unavailable`, `Timeout`,
/// `NotMigrated`, `SchemaMismatch`. After any error the transaction can only be rolled back.
pub async fn claim(
    tx: &Transaction<'_>,
    consumer: &ConsumerName,
    id: &MessageId,
) -> Result<Claim, StoreError> {
    claim_request(tx, consumer, &ClaimRequest { id: id.clone(), digest: None }).await
}

/// [`claim`] with a digest of the body: another digest under the same id answers `IdReused`.
///
/// # Errors
/// As [`claim`].
pub async fn claim_with_digest(
    tx: &Transaction<'_>,
    consumer: &ConsumerName,
    id: &MessageId,
    digest: i64,
) -> Result<Claim, StoreError> {
    claim_request(tx, consumer, &ClaimRequest { id: id.clone(), digest: Some(digest) }).await
}

async fn claim_request(
    tx: &Transaction<'_>,
    consumer: &ConsumerName,
    request: &ClaimRequest,
) -> Result<Claim, StoreError> {
    let claims = claim_many(tx, consumer, std::slice::from_ref(request)).await?;
    claims
        .first()
        .copied()
        .ok_or_else(|| StoreError::new(StoreErrorKind::Conflict, "the claim was not answered"))
}

/// Claims many ids in one round trip. The n-th answer belongs to the n-th request; the same id twice is
/// answered First, then Duplicate (or `IdReused`).
///
/// # Errors
/// As [`claim`].
pub async fn claim_many(
    tx: &Transaction<'_>,
    consumer: &ConsumerName,
    requests: &[ClaimRequest],
) -> Result<Vec<Claim>, StoreError> {
    if requests.is_empty() {
        return Ok(Vec::new());
    }
    let mut batch = Batch::new(requests);
    let parameters = ConsumerParameters::from(&consumer.key);
    let rows = claim_typed(tx, &consumer.sql, &parameters, &batch).await?;
    batch.take(&rows)?;
    if !batch.is_answered() {
        answer_the_rest(tx, &consumer.sql, &parameters, &mut batch).await?;
    }
    consumer.sql.note(&batch);
    Ok(batch.claims(requests))
}
