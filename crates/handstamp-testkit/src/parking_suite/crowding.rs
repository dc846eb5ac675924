//! Many takers at once, as on many nodes: each row is one taker's, and a key keeps its order.

use super::given::{Given, again, due, failed, of_key};
use super::{ParkingHarness, history_is, parked_count};
use crate::check::{ensure, same};
use crate::store_suite::{id, name};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, OrderKey, Park, ParkedMessage, ParkingStore, Resumed};
use handstamp_core::{ConsumerKey, InboxState, MessageId, StoreErrorKind};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const TAKERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(5);

/// What the takers saw, each while it held its rows.
#[derive(Debug, Default)]
struct Seen {
    held: HashSet<Dedup>,
    keys_held: HashSet<OrderKey>,
    applied: BTreeMap<Option<OrderKey>, Vec<MessageId>>,
    failed: HashSet<Dedup>,
}

impl Seen {
    /// A taker has these rows now: nobody else may.
    fn take(&mut self, rows: &[ParkedMessage]) -> CaseResult {
        for row in rows {
            let id = &row.letter.id;
            ensure(self.held.insert(row.dedup), || format!("{id:?} is taken twice"))?;
            let alone = row.order_key.is_none_or(|key| self.keys_held.insert(key));
            ensure(alone, || format!("{id:?} is taken beside another one of its key"))?;
        }
        Ok(())
    }

    /// What becomes of them: each fails once, then it is applied.
    fn decide(&mut self, rows: &[ParkedMessage]) -> Result<Vec<(Dedup, Resumed)>, CaseFailure> {
        let mut outcomes = Vec::with_capacity(rows.len());
        for row in rows {
            let first = row.letter.attempts == 3;
            if first {
                let id = &row.letter.id;
                ensure(self.failed.insert(row.dedup), || format!("the attempt of {id:?} is forgotten"))?;
            } else {
                self.applied.entry(row.order_key).or_default().extend(row.letter.id.clone());
            }
            outcomes.push((row.dedup, if first { again(Duration::ZERO, 1) } else { Resumed::Applied }));
            // From here on the store's lock alone keeps others away.
            self.held.remove(&row.dedup);
            if let Some(key) = row.order_key {
                self.keys_held.remove(&key);
            }
        }
        Ok(outcomes)
    }
}

async fn taker<S: ParkingStore>(store: S, consumer: ConsumerKey, seen: Arc<Mutex<Seen>>) -> CaseResult {
    let locked = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match store.take_due(&consumer, 7).await {
            Ok(Some((mut tx, rows))) => {
                locked().take(&rows)?;
                tokio::time::sleep(PAUSE).await;
                let outcomes = locked().decide(&rows)?;
                store.resume(&mut tx, &consumer, &outcomes).await?;
                store.commit(tx).await?;
            }
            Ok(None) if store.parked_status(&consumer).await?.count == 0 => return Ok(()),
            Ok(None) => tokio::time::sleep(PAUSE).await,
            Err(error) if error.kind == StoreErrorKind::Conflict => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Parks, lets the takers work until nothing is left, and tells what they saw.
async fn drained<H: ParkingHarness>(
    harness: &H,
    given: &Given<H::Store>,
    rows: &[Park],
) -> Result<Seen, CaseFailure> {
    given.parked(rows).await?;
    let seen = Arc::new(Mutex::new(Seen::default()));
    let mut takers = vec![];
    for _ in 0..TAKERS {
        let store = harness.open().await;
        takers.push(tokio::spawn(taker(store, given.consumer.clone(), Arc::clone(&seen))));
    }
    for taker in takers {
        let ended = tokio::time::timeout(harness.features().patience, taker).await;
        ended.map_err(|_| CaseFailure("the takers never came to an end".into()))???;
    }
    same("rows", &parked_count(&given.store, &given.consumer).await?, &0)?;
    Ok(std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner)))
}

pub(crate) async fn many_takers_count_each_attempt_once<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let rows = (0..100).map(|n| due(&format!("id-{n:03}"))).collect::<Result<Vec<Park>, CaseFailure>>()?;
    let mut seen = drained(harness, &given, &rows).await?;
    same("attempts that failed", &seen.failed.len(), &100)?;
    let mut applied = seen.applied.remove(&None).unwrap_or_default();
    applied.sort();
    let expected: Vec<MessageId> = rows.iter().filter_map(|row| row.letter.id.clone()).collect();
    same("what was applied", &applied, &expected)?;
    for row in rows.iter().step_by(10) {
        history_is(harness, &row.letter.dedup(), &[failed(1)]).await?;
        let of = row.letter.id.clone().ok_or_else(|| CaseFailure("no id".into()))?;
        let state = harness.inbox_state(&name("wallet")?, &of).await;
        same("the inbox row", &state, &Some(InboxState::Applied))?;
    }
    Ok(())
}

pub(crate) async fn many_takers_keep_the_order_of_each_key<H: ParkingHarness>(harness: &H) -> CaseResult {
    let given = Given::new(harness).await?;
    let ids = |key: u8| (0..8).map(move |n| format!("{key}-{}", (n * 5 + 3) % 8));
    // One after the other for all keys, so that the rows of one are spread.
    let rows = (0..8).flat_map(|turn| (1..=6).map(move |key| (key, turn)));
    let rows = rows.map(|(key, turn)| of_key(&ids(key).nth(turn).unwrap_or_default(), key));
    let rows = rows.collect::<Result<Vec<Park>, CaseFailure>>()?;
    let seen = drained(harness, &given, &rows).await?;
    for key in 1..=6 {
        let applied = seen.applied.get(&Some(OrderKey([key; 16]))).cloned().unwrap_or_default();
        let expected = ids(key).map(id).collect::<Result<Vec<MessageId>, CaseFailure>>()?;
        same("what was applied, in its order", &applied, &expected)?;
    }
    Ok(())
}
