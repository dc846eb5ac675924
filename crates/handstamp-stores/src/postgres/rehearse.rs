//! A rehearsal: what a run does before and with its first message, in a transaction that is rolled back.
//!
//! Authoritative: the server's answers to the statements that a run sends. Only executing them shows a role
//! without rights, a database that is read-only and limits that the server does not take.
//!
//! ```text
//!  schema's version ─► BEGIN, limits ─► register ─► claim, start ─► dead letter, mark ─► park … ─► ROLLBACK
//! ```

use super::classify::store_error;
use super::connect::Slot;
use super::inbox::{self, Batch, ConsumerParameters, Opening};
use super::store::{PostgresStore, advisory_key};
use super::{config::SchemaName, failure, versions};
use crate::rehearsal::{rehearsed_letter, rehearsed_marks};
use handstamp_core::{ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, Fingerprint, StoreError};
use tokio_postgres::types::Type;

/// No consumer has it.
const NOBODY: i16 = 0;

impl PostgresStore {
    /// Does what a run does up to its first message, and a claim, a dead letter, start records, a mark of a version
    /// and a parked message of its own, and takes everything back. True when the consumer's name was registered before.
    ///
    /// # Errors
    /// Whatever would end or stop a run: `NotMigrated`, `FingerprintMismatch`, `SchemaMismatch` where the
    /// role lacks a right, `Unavailable` where the database is away or takes no writes.
    pub async fn rehearse(&self, name: &ConsumerName, fingerprint: &Fingerprint) -> Result<bool, StoreError> {
        // An error leaves the slot open: it is then closed, and the server rolls back.
        self.with_slot(async |slot| {
            let (known, consumer, letter) = rehearse_in(slot, self.schema(), name, fingerprint).await?;
            self.rehearse_starts(slot, &consumer, &letter).await?;
            versions::raise(slot, self.schema(), consumer.id, &rehearsed_marks(&letter)).await?;
            self.rehearse_parking(slot, consumer.id, letter).await?;
            let rolled_back = slot.client().batch_execute("ROLLBACK").await;
            rolled_back.map(|()| known).map_err(|e| store_error("rolling back", e))
        })
        .await
    }
}

async fn rehearse_in(
    slot: &Slot,
    schema: &SchemaName,
    name: &ConsumerName,
    fingerprint: &Fingerprint,
) -> Result<(bool, ConsumerKey, DeadLetter), StoreError> {
    let client = slot.client();
    let failed = |e| store_error("opening a transaction", e);
    client.execute(&slot.prepared.begin, &[]).await.map_err(failed)?;
    let lock = advisory_key(b"handstamp batch", schema, NOBODY);
    let opening = Opening { lock, alone: false, looks_first: false };
    client.query(&slot.prepared.open, &[&opening.lock, &opening.alone]).await.map_err(failed)?;
    let find = schema.render(include_str!("sql/consumer.sql"), "true");
    let found = client.query_typed(&find, &[(&name.as_str(), Type::TEXT)]).await;
    let known = !found.map_err(inbox::claim_error)?.is_empty();
    let consumer = inbox::register_key(client, schema, name, Some(fingerprint), false).await?;
    let letter = rehearsed_letter();
    let requests: Vec<ClaimRequest> =
        letter.id.iter().map(|id| ClaimRequest { id: id.clone(), digest: Some(letter.digest) }).collect();
    let batch = Batch::new(&requests);
    let parameters = ConsumerParameters::from(&consumer);
    let claimed =
        client.query(&slot.prepared.insert_one, &batch.opening_parameters(&parameters, &opening)).await;
    claimed.map_err(inbox::claim_error)?;
    client
        .query(&slot.prepared.known, &[&batch.missing(), &consumer.id])
        .await
        .map_err(inbox::claim_error)?;
    failure::record(client, schema, consumer.id, std::slice::from_ref(&letter)).await?;
    Ok((known, consumer, letter))
}
