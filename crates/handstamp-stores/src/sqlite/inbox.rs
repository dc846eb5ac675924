//! Claims: a batch inside our own transaction, and level 0: a claim inside the user's own transaction.
//!
//! Authoritative: the primary key (id, consumer). A claim never catches a unique violation and never
//! says OR IGNORE (which would hide other errors): it inserts with ON CONFLICT DO NOTHING, and one
//! changed row means First. There is one writer, so what was not inserted can be read at once.

use super::classify::is_busy;
use super::migrate::own_error;
use handstamp_core as core;
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, CrashPoint, Fingerprint, InboxState, MessageId, StoreError,
    StoreErrorKind, Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Transaction};
use std::ops::Range;

/// Seconds between 1970 and the start of the inbox's clock, 2020-01-01 UTC.
const EPOCH_S: i64 = 1_577_836_800;

const CLAIM: &str = include_str!("sql/claim.sql");
const CLAIM_FIRST: &str = include_str!("sql/claim_first.sql");
const KNOWN: &str = include_str!("sql/known.sql");
const CONSUMER: &str = include_str!("sql/consumer.sql");
const CONSUMER_INSERT: &str = include_str!("sql/consumer_insert.sql");
const CONSUMER_ADOPT: &str = include_str!("sql/consumer_adopt.sql");

/// A consumer's name registered in one database: level 0's handle for [`claim`].
///
/// It belongs to the database it was registered in, and holds the number that inbox rows carry there. The bare
/// name, checked and not yet registered anywhere, is [`handstamp_core::ConsumerName`]; level 1's
/// `Consumer::builder` takes that one. [`ConsumerName::key`] leads from here to there (`key().name`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConsumerName {
    key: ConsumerKey,
}

impl ConsumerName {
    /// Registers a consumer's name, or finds it (idempotent, no DDL). Takes a connection or an open
    /// transaction.
    ///
    /// # Errors
    /// `Config` for a name outside `[A-Za-z0-9._-]{1,64}`, `NotMigrated`, `Conflict`, `Unavailable`.
    pub fn register(connection: &Connection, name: &str) -> Result<Self, StoreError> {
        let name = core::ConsumerName::new(name)
            .map_err(|e| StoreError::new(StoreErrorKind::Config, e.to_string()))?;
        let key = match find_consumer(connection, &name)? {
            Some((key, _)) => key,
            None => insert_consumer(connection, &name, None)?,
        };
        Ok(Self { key })
    }

    /// The name and its number in this database.
    #[must_use]
    pub fn key(&self) -> &ConsumerKey {
        &self.key
    }
}

/// Claims one id inside the transaction you already have: First exactly when this transaction is the
/// one whose commit makes the id known. Roll back, and the id is free again.
///
/// The id's digest is not kept, so another body under the same id goes unnoticed; see
/// [`claim_with_digest`]. Begin the transaction IMMEDIATE: one that has read before it writes cannot
/// wait for another writer.
///
/// # Errors
/// `UnknownConsumer`; `Conflict`: roll back, begin IMMEDIATE and run the transaction again;
/// `Unavailable`, `NotMigrated`.
pub fn claim(tx: &mut Transaction<'_>, consumer: &ConsumerName, id: &MessageId) -> Result<Claim, StoreError> {
    claim_one(tx, consumer, ClaimRequest { id: id.clone(), digest: None })
}

/// [`claim`] with a digest of the body: another digest under the same id answers `IdReused`.
///
/// # Errors
/// As [`claim`].
pub fn claim_with_digest(
    tx: &mut Transaction<'_>,
    consumer: &ConsumerName,
    id: &MessageId,
    digest: i64,
) -> Result<Claim, StoreError> {
    claim_one(tx, consumer, ClaimRequest { id: id.clone(), digest: Some(digest) })
}

/// Claims many ids. The n-th claim answers the n-th request; the same id twice is answered First, then
/// Duplicate (or `IdReused`).
///
/// # Errors
/// As [`claim`]; some of the ids may then be claimed: roll back.
pub fn claim_many(
    tx: &mut Transaction<'_>,
    consumer: &ConsumerName,
    requests: &[ClaimRequest],
) -> Result<Vec<Claim>, StoreError> {
    claim_batch(tx, &consumer.key, requests).map(|batch| batch.claims)
}

fn claim_one(
    tx: &mut Transaction<'_>,
    consumer: &ConsumerName,
    request: ClaimRequest,
) -> Result<Claim, StoreError> {
    let mut claims = claim_many(tx, consumer, &[request])?;
    claims.pop().ok_or_else(|| StoreError::new(StoreErrorKind::SchemaMismatch, "the claim was not answered"))
}

/// The answers to a batch, and the stored ids that are First.
pub(crate) struct Claimed {
    pub(crate) claims: Vec<Claim>,
    pub(crate) first: StoredIds,
}

/// Stored ids in one buffer, sorted.
#[derive(Debug, Default)]
pub(crate) struct StoredIds {
    bytes: Vec<u8>,
    /// Where each of them lies, and its place in the batch.
    ids: Vec<(Range<usize>, usize)>,
}

impl StoredIds {
    fn of(requests: &[ClaimRequest]) -> Self {
        let mut bytes = Vec::with_capacity(requests.len() * 16);
        let mut ids = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter().enumerate() {
            let start = bytes.len();
            request.id.write_stored(&mut bytes);
            ids.push((start..bytes.len(), at));
        }
        // The place in the batch breaks ties: the first of two equal ids is First.
        ids.sort_unstable_by(|(a, at), (b, than)| {
            bytes[a.clone()].cmp(&bytes[b.clone()]).then_with(|| at.cmp(than))
        });
        Self { bytes, ids }
    }

    pub(crate) fn contains(&self, stored: &[u8]) -> bool {
        self.ids.binary_search_by(|(range, _)| self.bytes[range.clone()].cmp(stored)).is_ok()
    }
}

/// Claims in the order of the stored ids, so that neighbours in the index are written together.
pub(crate) fn claim_batch(
    connection: &Connection,
    consumer: &ConsumerKey,
    requests: &[ClaimRequest],
) -> Result<Claimed, StoreError> {
    let failed = |e| claim_error(connection, e);
    let StoredIds { bytes, mut ids } = StoredIds::of(requests);
    let mut claims = vec![Claim::First; requests.len()];
    if ids.is_empty() {
        check_consumer(connection, consumer)?;
        return Ok(Claimed { claims, first: StoredIds::default() });
    }
    let mut insert = connection.prepare_cached(CLAIM).map_err(failed)?;
    let mut checked = false;
    for (range, at) in &ids {
        let (stored, digest) = (&bytes[range.clone()], requests[*at].digest);
        let inserted = if checked {
            insert.execute((stored, consumer.id, digest)).map_err(failed)?
        } else {
            checked = true;
            let mut guarded = connection.prepare_cached(CLAIM_FIRST).map_err(failed)?;
            let changed =
                guarded.execute((stored, consumer.id, digest, consumer.name.as_str())).map_err(failed)?;
            if changed == 0 {
                check_consumer(connection, consumer)?;
            }
            changed
        };
        if inserted != 1 {
            claims[*at] = known(connection, consumer, stored, digest)?;
        }
        CrashPoint::MidClaim.reached();
    }
    ids.retain(|(_, at)| claims[*at] == Claim::First);
    Ok(Claimed { claims, first: StoredIds { bytes, ids } })
}

/// The answer for an id that has a row.
fn known(
    connection: &Connection,
    consumer: &ConsumerKey,
    stored: &[u8],
    digest: Option<i64>,
) -> Result<Claim, StoreError> {
    let failed = |e| claim_error(connection, e);
    let mut known = connection.prepare_cached(KNOWN).map_err(failed)?;
    let (letter, seen_at, had): (String, i64, Option<i64>) = known
        .query_row((stored, consumer.id), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .map_err(failed)?;
    let state = state_of(&letter)?;
    let first_seen = first_seen(seen_at);
    Ok(match (digest, had) {
        (Some(digest), Some(had)) if digest != had => Claim::IdReused { state, first_seen },
        _ => Claim::Duplicate { state, first_seen },
    })
}

/// A letter of a newer version may mean that the outcome is not durable yet: refused, never guessed.
pub(crate) fn state_of(letter: &str) -> Result<InboxState, StoreError> {
    let mut chars = letter.chars();
    match (chars.next().and_then(InboxState::from_letter), chars.next()) {
        (Some(state), None) => Ok(state),
        _ => Err(StoreError::new(
            StoreErrorKind::NotMigrated,
            format!(
                "an inbox row has the state {letter:?}, which this program does not know: use a newer one"
            ),
        )),
    }
}

/// The time behind an inbox row's seconds.
pub(crate) fn first_seen(seen_at: i64) -> Timestamp {
    Timestamp(seen_at.saturating_add(EPOCH_S).saturating_mul(1000))
}

/// The seconds of an inbox row at a time.
pub(crate) fn seconds_of(time: Timestamp) -> i64 {
    time.0.div_euclid(1000).saturating_sub(EPOCH_S)
}

fn claim_error(connection: &Connection, error: rusqlite::Error) -> StoreError {
    if is_busy(&error) {
        let text = "the transaction cannot write now: roll back, begin IMMEDIATE and run it again (a transaction that read before it writes cannot wait)";
        return StoreError::new(StoreErrorKind::Conflict, text).with_source(error);
    }
    own_error(connection, "claiming ids", error)
}

pub(crate) fn check_consumer(connection: &Connection, consumer: &ConsumerKey) -> Result<(), StoreError> {
    match find_consumer(connection, &consumer.name)? {
        Some((found, _)) if found.id == consumer.id => Ok(()),
        _ => Err(StoreError::new(
            StoreErrorKind::UnknownConsumer,
            format!(
                "the consumer {} is not registered under number {} in this file: register it",
                consumer.name, consumer.id
            ),
        )),
    }
}

pub(crate) fn find_consumer(
    connection: &Connection,
    name: &core::ConsumerName,
) -> Result<Option<(ConsumerKey, Option<String>)>, StoreError> {
    let failed = |e| own_error(connection, "looking for the consumer", e);
    let mut consumer = connection.prepare_cached(CONSUMER).map_err(failed)?;
    let found: Option<(i16, Option<String>)> = consumer
        .query_row([name.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
        .map_err(failed)?;
    Ok(found.map(|(id, fingerprint)| (ConsumerKey { id, name: name.clone() }, fingerprint)))
}

fn insert_consumer(
    connection: &Connection,
    name: &core::ConsumerName,
    fingerprint: Option<&Fingerprint>,
) -> Result<ConsumerKey, StoreError> {
    let failed = |e| own_error(connection, "registering the consumer", e);
    connection
        .execute(CONSUMER_INSERT, (name.as_str(), fingerprint.map(|fingerprint| fingerprint.0.as_str())))
        .map_err(failed)?;
    let found = find_consumer(connection, name)?;
    found.map(|(key, _)| key).ok_or_else(|| {
        StoreError::new(StoreErrorKind::SchemaMismatch, format!("the consumer {name} was not registered"))
    })
}

/// Registers a consumer with its fingerprint; the caller holds the write lock.
pub(crate) fn register(
    connection: &Connection,
    name: &core::ConsumerName,
    fingerprint: &Fingerprint,
    adopt: bool,
) -> Result<ConsumerKey, StoreError> {
    let Some((key, known)) = find_consumer(connection, name)? else {
        return insert_consumer(connection, name, Some(fingerprint));
    };
    match known {
        Some(known) if known == fingerprint.0 => return Ok(key),
        Some(known) if !adopt => {
            let text = format!(
                "the consumer {name} was registered for {known}, not for {fingerprint}: its remembered ids belong to that stream; choose another name, or take it over with --adopt"
            );
            return Err(StoreError::new(StoreErrorKind::FingerprintMismatch, text));
        }
        _ => {}
    }
    connection
        .execute(CONSUMER_ADOPT, (name.as_str(), fingerprint.0.as_str(), adopt))
        .map_err(|e| own_error(connection, "registering the consumer", e))?;
    Ok(key)
}
