//! Level 0 on sqlx's Postgres driver: a claim inside a [`sqlx::Transaction`](::sqlx::Transaction) of your own.
//!
//! Authoritative: the server's primary key (id, consumer) of `inbox`, as for every other claim. The tables are those of
//! `handstamp migrate`; whoever has no other use for them than this runs what `handstamp migrate --show-sql` prints.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use handstamp_core::{Claim, MessageId};
//! use handstamp_stores::sqlx::{self as handstamp_sqlx, ConsumerName};
//!
//! let consumer = ConsumerName::register(&mut *pool.acquire().await?, "wallet").await?;
//! let mut tx = pool.begin().await?;
//! if handstamp_sqlx::claim(&mut tx, &consumer, &MessageId::try_from("payment-17")?).await? == Claim::First {
//!     sqlx::query("UPDATE accounts SET balance = balance + 1 WHERE id = 7").execute(&mut *tx).await?;
//! }
//! tx.commit().await?;
//! # Ok(()) }
//! ```

use crate::own_table::OwnTable;
use crate::sqlstate::kind_of_code;
use ::sqlx::postgres::PgRow;
use ::sqlx::{AssertSqlSafe, PgConnection, Postgres, Row, Transaction};
use handstamp_core as core;
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, InboxState, MessageId, StoreError, StoreErrorKind, Timestamp,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seconds between 1970 and the start of the inbox's clock, 2020-01-01 UTC.
const EPOCH_S: i64 = 1_577_836_800;
/// How often a claim is tried when holders of its ids vanish meanwhile.
const TRIES_MAX: u32 = 3;
/// The schema of our tables unless said.
const SCHEMA: &str = "handstamp";

/// A consumer's name registered in one database: the handle for [`claim`].
#[derive(Debug, Clone)]
pub struct ConsumerName {
    key: ConsumerKey,
    sql: Arc<Sql>,
}

#[derive(Debug)]
struct Sql {
    claim: String,
    known: String,
    consumer: String,
}

impl ConsumerName {
    /// Registers a consumer's name in the schema `handstamp`, or finds it (idempotent, no DDL). Takes a connection,
    /// or an open transaction as `&mut *tx`.
    ///
    /// # Errors
    /// `Config` for a name outside `[A-Za-z0-9._-]{1,64}`, `NotMigrated`, `Unavailable`.
    pub async fn register(connection: &mut PgConnection, name: &str) -> Result<Self, StoreError> {
        Self::register_in(connection, SCHEMA, name).await
    }

    /// The same in another schema.
    ///
    /// # Errors
    /// As [`ConsumerName::register`]; `Config` also for a schema that does not match `[a-z_][a-z0-9_]{0,62}`.
    pub async fn register_in(
        connection: &mut PgConnection,
        schema: &str,
        name: &str,
    ) -> Result<Self, StoreError> {
        let name = core::ConsumerName::new(name)
            .map_err(|e| StoreError::new(StoreErrorKind::Config, e.to_string()))?;
        let sql = Sql::of(schema)?;
        let failed = |e| store_error(&format!("registering the consumer {name}"), e);
        let register = format!("SELECT \"{schema}\".register($1)");
        ::sqlx::query(AssertSqlSafe(register))
            .bind(name.as_str())
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
        let row = ::sqlx::query(AssertSqlSafe(sql.consumer.clone()))
            .bind(name.as_str())
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        let id: i16 = row.try_get(0).map_err(failed)?;
        Ok(Self { key: ConsumerKey { id, name }, sql: Arc::new(sql) })
    }

    /// The name and its number in this database.
    #[must_use]
    pub fn key(&self) -> &ConsumerKey {
        &self.key
    }
}

impl Sql {
    fn of(schema: &str) -> Result<Self, StoreError> {
        let first = schema.chars().next().is_some_and(|c| c.is_ascii_lowercase() || c == '_');
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !first || schema.len() > 63 || !schema.chars().all(fits) {
            let shown: String = schema.chars().take(80).collect();
            let what = format!("{shown:?} is no schema name: use 1 to 63 of a-z 0-9 _, no digit first");
            return Err(StoreError::new(StoreErrorKind::Config, what));
        }
        let render = |sql: &str| sql.replace("{schema}", &format!("\"{schema}\""));
        Ok(Self {
            claim: render(include_str!("sql/claim.sql")),
            known: render(include_str!("../postgres/sql/known.sql")),
            consumer: render(include_str!("../postgres/sql/consumer.sql")),
        })
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
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    id: &MessageId,
) -> Result<Claim, StoreError> {
    one(tx, consumer, ClaimRequest { id: id.clone(), digest: None }).await
}

/// [`claim`] with a digest of the body: another digest under the same id answers `IdReused`.
///
/// # Errors
/// As [`claim`].
pub async fn claim_with_digest(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    id: &MessageId,
    digest: i64,
) -> Result<Claim, StoreError> {
    one(tx, consumer, ClaimRequest { id: id.clone(), digest: Some(digest) }).await
}

async fn one(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    request: ClaimRequest,
) -> Result<Claim, StoreError> {
    let mut claims = claim_many(tx, consumer, &[request]).await?;
    claims.pop().ok_or_else(|| StoreError::new(StoreErrorKind::Conflict, "the claim was not answered"))
}

/// What is known of an id after a claim.
#[derive(Debug, Clone, Copy)]
struct Found {
    seen_at: i32,
    digest: Option<i64>,
    /// `None`: inserted by us.
    state: Option<InboxState>,
}

/// Claims many ids: one round trip where all are new, two where not. The n-th answer belongs to the n-th request; the
/// same id twice is answered First, then Duplicate (or `IdReused`).
///
/// # Errors
/// As [`claim`].
pub async fn claim_many(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    requests: &[ClaimRequest],
) -> Result<Vec<Claim>, StoreError> {
    // The first with an id decides what is inserted; they are locked in their order.
    let mut open: BTreeMap<Vec<u8>, Option<i64>> = BTreeMap::new();
    for request in requests {
        open.entry(request.id.to_stored()).or_insert(request.digest);
    }
    let mut found: BTreeMap<Vec<u8>, (Found, Option<i64>)> = BTreeMap::new();
    for _ in 0..TRIES_MAX {
        if open.is_empty() {
            return Ok(answers(requests, &found));
        }
        for id in inserted(tx, consumer, &open).await? {
            answer(&mut open, &mut found, id);
        }
        if !open.is_empty() {
            // A new statement sees what the first one waited for.
            for id in known(tx, consumer, &open).await? {
                answer(&mut open, &mut found, id);
            }
        }
        if !open.is_empty() {
            check_registered(tx, consumer).await?;
        }
    }
    if open.is_empty() {
        return Ok(answers(requests, &found));
    }
    Err(StoreError::new(
        StoreErrorKind::Conflict,
        "an id is held by another transaction and this transaction's snapshot cannot see it: run the transaction again (READ COMMITTED needs it least)",
    ))
}

fn answer(
    open: &mut BTreeMap<Vec<u8>, Option<i64>>,
    found: &mut BTreeMap<Vec<u8>, (Found, Option<i64>)>,
    (id, seen): (Vec<u8>, Found),
) {
    if let Some(digest) = open.remove(&id) {
        found.insert(id, (seen, digest));
    }
}

fn answers(requests: &[ClaimRequest], found: &BTreeMap<Vec<u8>, (Found, Option<i64>)>) -> Vec<Claim> {
    let mut ours: std::collections::BTreeSet<Vec<u8>> = std::collections::BTreeSet::new();
    let claim = |request: &ClaimRequest| {
        let stored = request.id.to_stored();
        let (seen, inserted) = found.get(&stored)?;
        let first_seen = Timestamp((i64::from(seen.seen_at) + EPOCH_S) * 1000);
        let (state, kept) = match seen.state {
            None if ours.insert(stored) => return Some(Claim::First),
            None => (InboxState::Applied, *inserted),
            Some(state) => (state, seen.digest),
        };
        Some(match (request.digest, kept) {
            (Some(asked), Some(kept)) if asked != kept => Claim::IdReused { state, first_seen },
            _ => Claim::Duplicate { state, first_seen },
        })
    };
    requests.iter().filter_map(claim).collect()
}

async fn inserted(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    open: &BTreeMap<Vec<u8>, Option<i64>>,
) -> Result<Vec<(Vec<u8>, Found)>, StoreError> {
    let (ids, digests): (Vec<&[u8]>, Vec<Option<i64>>) =
        open.iter().map(|(id, digest)| (id.as_slice(), *digest)).unzip();
    let rows = ::sqlx::query(AssertSqlSafe(consumer.sql.claim.clone()))
        .bind(ids)
        .bind(digests)
        .bind(consumer.key.id)
        .bind(consumer.key.name.as_str())
        .fetch_all(&mut **tx)
        .await
        .map_err(claim_error)?;
    let read =
        |row: &PgRow| Ok((row.try_get(0)?, Found { seen_at: row.try_get(1)?, digest: None, state: None }));
    rows.iter().map(read).collect::<Result<_, _>>().map_err(claim_error)
}

async fn known(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
    open: &BTreeMap<Vec<u8>, Option<i64>>,
) -> Result<Vec<(Vec<u8>, Found)>, StoreError> {
    let ids: Vec<&[u8]> = open.keys().map(Vec::as_slice).collect();
    let rows = ::sqlx::query(AssertSqlSafe(consumer.sql.known.clone()))
        .bind(ids)
        .bind(consumer.key.id)
        .fetch_all(&mut **tx)
        .await
        .map_err(claim_error)?;
    let read = |row: &PgRow| {
        let (seen_at, digest) = (row.try_get(1).map_err(claim_error)?, row.try_get(2).map_err(claim_error)?);
        let letter: i8 = row.try_get(3).map_err(claim_error)?;
        let state = u8::try_from(letter).ok().and_then(|byte| InboxState::from_letter(char::from(byte)));
        let state = state.ok_or_else(|| {
            let what = format!("an inbox row carries the state {letter}, which this version does not know: update the program");
            StoreError::new(StoreErrorKind::SchemaMismatch, what)
        })?;
        Ok((row.try_get(0).map_err(claim_error)?, Found { seen_at, digest, state: Some(state) }))
    };
    rows.iter().map(read).collect()
}

async fn check_registered(
    tx: &mut Transaction<'_, Postgres>,
    consumer: &ConsumerName,
) -> Result<(), StoreError> {
    let row = ::sqlx::query(AssertSqlSafe(consumer.sql.consumer.clone()))
        .bind(consumer.key.name.as_str())
        .fetch_optional(&mut **tx)
        .await
        .map_err(claim_error)?;
    let id: Option<i16> = row.and_then(|row| row.try_get(0).ok());
    if id == Some(consumer.key.id) {
        return Ok(());
    }
    let name = &consumer.key.name;
    let what =
        format!("the consumer {name:?} is not registered in this database (any more): register it first");
    Err(StoreError::new(StoreErrorKind::UnknownConsumer, what))
}

/// Claims an id on a table of your own: true exactly when this transaction is the one whose commit makes it known.
///
/// # Errors
/// `SchemaMismatch` where table and statement do not fit, such as a unique key that is missing; else as [`claim`].
pub async fn claim_own(
    tx: &mut Transaction<'_, Postgres>,
    table: &OwnTable,
    id: &str,
) -> Result<bool, StoreError> {
    let mut claim = ::sqlx::query(AssertSqlSafe(table.postgres_sql())).bind(id);
    if let Some(name) = table.consumer() {
        claim = claim.bind(name);
    }
    let failed = |error: ::sqlx::Error| {
        let code = error.as_database_error().and_then(|db| db.code());
        let kind = code.map_or(StoreErrorKind::Unavailable, |code| kind_of_code(&code));
        StoreError::new(kind, format!("claiming on a table of your own: {error}")).with_source(error)
    };
    let done = claim.execute(&mut **tx).await.map_err(failed)?;
    Ok(done.rows_affected() == 1)
}

fn claim_error(error: ::sqlx::Error) -> StoreError {
    store_error("claiming", error)
}

/// An error of one of our own statements: missing tables are told from statements that do not fit.
fn store_error(what: &str, error: ::sqlx::Error) -> StoreError {
    let code = error.as_database_error().and_then(|db| db.code()).map(|code| code.into_owned());
    let kind = match code.as_deref() {
        Some("42P01" | "3F000" | "42883") => {
            let text = "Handstamp's tables are missing in this database, or of an older version: run `handstamp migrate`";
            return StoreError::new(StoreErrorKind::NotMigrated, text).with_source(error);
        }
        Some(code) => kind_of_code(code),
        None => StoreErrorKind::Unavailable,
    };
    StoreError::new(kind, format!("{what}: {error}")).with_source(error)
}
