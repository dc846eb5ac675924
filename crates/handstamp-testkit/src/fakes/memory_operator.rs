//! What an operator does to dead letters of the store in memory.

use super::breaks::StartBreak;
use super::memory_parked::ParkedRow;
use super::memory_store::{MemoryStore, State};
use handstamp_core::parked::{Dedup, OrderKey};
use handstamp_core::{ConsumerName, DeadLetter, InboxState, clock};
use tokio::time::Instant;

impl MemoryStore {
    /// Sends a dead letter back as an operator does: parked, due at once, no attempts and no crashes counted any
    /// more, the history kept. False, and nothing is done, where there is none or where it is not its id's own message.
    pub fn redrive(&self, consumer: &ConsumerName, dedup: &Dedup, order_key: Option<OrderKey>) -> bool {
        let mut state = self.shared.lock();
        let Some((number, mut letter)) = self.give_back(&mut state, consumer, dedup, InboxState::Parked)
        else {
            return false;
        };
        letter.attempts = 0;
        if self.shared.start_broken != Some(StartBreak::RedriveKeepsCrashes) {
            state.disk.starts.absolve((number, *dedup));
        }
        let (seq, since) = (state.disk.parking.next_seq(), Instant::now());
        let row = ParkedRow { seq, letter, parked_at: clock::now(), since, due: since, order_key };
        state.disk.parking.rows.insert((number, *dedup), row);
        true
    }

    /// Gives a dead letter up for good. False as in [`redrive`](Self::redrive).
    pub fn discard(&self, consumer: &ConsumerName, dedup: &Dedup) -> bool {
        let mut state = self.shared.lock();
        self.give_back(&mut state, consumer, dedup, InboxState::Discarded).is_some()
    }

    /// Takes a dead letter out and says so in its inbox row.
    fn give_back(
        &self,
        state: &mut State,
        consumer: &ConsumerName,
        dedup: &Dedup,
        to: InboxState,
    ) -> Option<(i16, DeadLetter)> {
        let number = state.number_of(consumer)?;
        let key = (number, dedup.to_vec());
        let letter = state.disk.dead.get(&key).filter(|letter| letter.marks_inbox())?;
        let id = self.shared.inbox_id(number, letter.id.as_ref()?);
        state.disk.inbox.get_mut(&id)?.state = to;
        Some((number, state.disk.dead.remove(&key)?))
    }
}
