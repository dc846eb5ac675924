//! A dry run: transactions that are registered in, claimed in and written to like any other, and never committed.
//!
//! Authoritative: the same statements that a run sends. The claims wait for those of a run that is under way, as any
//! claim does, and a run waits for them until the transaction is rolled back.

use super::inbox::{self, Batch, ClaimSql, ConsumerParameters};
use super::store::{PostgresStore, Tx};
use handstamp_core::{Begun, Claim, ClaimRequest, ConsumerKey, ConsumerName, Fingerprint, StoreError};

/// No consumer has it: a run of this consumer that wants to be alone does not wait.
const NOBODY: i16 = 0;

impl PostgresStore {
    /// Opens a transaction, registers the consumer and claims the ids in it. It must be rolled back.
    ///
    /// # Errors
    /// As `register` and `begin`; nothing is open then.
    pub async fn begin_dry(
        &self,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Begun<Tx>), StoreError> {
        // Nothing is claimed yet, so nobody asks who it is.
        let nobody = ConsumerKey { id: NOBODY, name: name.clone() };
        let (tx, _) = self.begin_with(&nobody, &[], None).await?;
        match self.register_and_claim(&tx, name, fingerprint, adopt, ids).await {
            Ok((consumer, claims)) => Ok((consumer, (tx, claims))),
            Err(error) => {
                self.shared.end_failed(tx, &error).await;
                Err(error)
            }
        }
    }

    async fn register_and_claim(
        &self,
        tx: &Tx,
        name: &ConsumerName,
        fingerprint: &Fingerprint,
        adopt: bool,
        ids: &[ClaimRequest],
    ) -> Result<(ConsumerKey, Vec<Claim>), StoreError> {
        let client = tx.slot.client();
        let consumer = inbox::register_key(client, self.schema(), name, Some(fingerprint), adopt).await?;
        if ids.is_empty() {
            return Ok((consumer, vec![]));
        }
        let sql = ClaimSql::unguarded(self.schema());
        let parameters = ConsumerParameters::from(&consumer);
        let mut batch = Batch::new(ids);
        batch.take(&inbox::claim_typed(client, &sql, &parameters, &batch).await?)?;
        if !batch.is_answered() {
            inbox::answer_the_rest(client, &sql, &parameters, &mut batch).await?;
        }
        Ok((consumer, batch.claims(ids)))
    }
}
