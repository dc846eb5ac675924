//! Start records of the smallest store: written at once, whatever becomes of the transaction behind them.

use super::{MiniStore, Tx};
use handstamp_core::parked::Taken;
use handstamp_core::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

#[derive(Default)]
pub struct Starts {
    pub lanes: BTreeMap<(Arc<str>, Owner), Start>,
    /// Of parked messages: who, and whether it was the only one.
    pub parked: BTreeMap<(Dedup, Owner), (Starter, bool)>,
    pub crashes: Vec<Crash>,
}

impl Starts {
    /// A crash of a message, once an owner.
    fn charge(&mut self, dedup: Dedup, by: Starter) {
        let known = |crash: &Crash| crash.dedup == dedup && crash.by.owner == by.owner;
        if !self.crashes.iter().any(known) {
            self.crashes.push(Crash { dedup, by, at: Timestamp(0), is_new: false });
        }
    }

    /// What was resumed has no start record any more, and no crash where it came to its end.
    pub(super) fn resumed(&mut self, resumed: &[(Dedup, bool)]) {
        for (dedup, ended) in resumed {
            self.parked.retain(|(started, _), _| started != dedup);
            self.crashes.retain(|crash| !(*ended && crash.dedup == *dedup));
        }
    }

    /// Starts these messages in place of those that the owner had started.
    fn start_parked(&mut self, rows: &[ParkedMessage], by: &Starter, company: Company) {
        self.parked.retain(|(_, owner), _| *owner != by.owner);
        let alone = rows.len() == 1 && company == Company::None;
        let started = rows.iter().map(|row| ((row.dedup, by.owner), (by.clone(), alone)));
        self.parked.extend(started);
    }

    /// Charges those that another owner had started alone; whether it had started it at all.
    fn suspect(&mut self, dedup: Dedup, by: &Starter) -> bool {
        let of_others =
            self.parked.iter().filter(|((started, owner), _)| *started == dedup && *owner != by.owner);
        let of_others: Vec<(Starter, bool)> = of_others.map(|(_, start)| start.clone()).collect();
        for (starter, _) in of_others.iter().filter(|(_, alone)| *alone) {
            self.charge(dedup, starter.clone());
        }
        !of_others.is_empty()
    }

    fn tell(&self, rows: &mut [ParkedMessage], by: &Starter) {
        for row in rows {
            let others = |(dedup, owner): &(Dedup, Owner)| *dedup == row.dedup && *owner != by.owner;
            row.suspected = self.parked.keys().any(others);
            let crashes = self.crashes.iter().filter(|crash| crash.dedup == row.dedup);
            row.crashes = crashes.cloned().collect();
        }
    }
}

impl StartStore for MiniStore {
    async fn start_and_begin(
        &self,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
    ) -> Result<(Tx, Vec<Claim>), StoreError> {
        let key = (Arc::clone(&start.lane), start.by.owner);
        self.0.lock().unwrap().starts.lanes.insert(key, start.clone());
        self.begin(consumer, ids).await
    }

    async fn commit_start_and_begin(
        &self,
        tx: Tx,
        consumer: &ConsumerKey,
        ids: &[ClaimRequest],
        start: &Start,
        durable: oneshot::Sender<()>,
    ) -> Result<Option<(Tx, Vec<Claim>)>, StoreError> {
        self.commit(tx).await?;
        let _ = durable.send(());
        tokio::task::yield_now().await;
        let begun = self.start_and_begin(consumer, ids, start).await.ok();
        self.0.lock().unwrap().chained += usize::from(begun.is_some());
        Ok(begun)
    }

    async fn take_over(
        &self,
        _: &ConsumerKey,
        by: &Starter,
        lanes: &[Arc<str>],
    ) -> Result<TakenOver, StoreError> {
        let mut durable = self.0.lock().unwrap();
        let durable = &mut *durable;
        let inbox = &durable.inbox;
        let theirs = |start: &Start| start.by.owner != by.owner && lanes.contains(&start.lane);
        let is_known =
            |start: &Start| start.alone.as_ref().is_some_and(|id| inbox.contains_key(id.as_bytes()));
        durable.starts.lanes.retain(|_, start| !(theirs(start) && is_known(start)));
        let starts: Vec<Start> =
            durable.starts.lanes.values().filter(|start| theirs(start)).cloned().collect();
        let mut alone = vec![];
        for start in &starts {
            if let Some(id) = &start.alone {
                alone.push(DeadLetter::dedup_of_id(id));
                durable.starts.charge(DeadLetter::dedup_of_id(id), start.by.clone());
            }
        }
        let crashes = durable.starts.crashes.iter().filter(|crash| alone.contains(&crash.dedup));
        let crashes = crashes.cloned().collect();
        let orphan = |start| Orphan { start, at: Timestamp(0) };
        Ok(TakenOver { orphans: starts.into_iter().map(orphan).collect(), crashes })
    }

    async fn end_starts(
        &self,
        _: &ConsumerKey,
        owner: &Owner,
        lanes: Option<&[Arc<str>]>,
    ) -> Result<(), StoreError> {
        let starts = &mut self.0.lock().unwrap().starts;
        let ends = |lane: &Arc<str>| lanes.is_none_or(|lanes| lanes.contains(lane));
        starts.lanes.retain(|(lane, by), _| by != owner || !ends(lane));
        if lanes.is_none() {
            starts.parked.retain(|(_, by), _| by != owner);
        }
        Ok(())
    }

    async fn withdraw(&self, _: &ConsumerKey, owner: &Owner, lost: Lost<'_>) -> Result<(), StoreError> {
        let starts = &mut self.0.lock().unwrap().starts;
        let goes = |lane: &Arc<str>| match lost {
            Lost::Lanes(lanes) => lanes.contains(lane),
            Lost::Parked => false,
            Lost::Everything => true,
        };
        starts.lanes.retain(|(lane, by), _| by != owner || !goes(lane));
        if !matches!(lost, Lost::Lanes(_)) {
            starts.parked.retain(|(_, by), _| by != owner);
        }
        starts.crashes.retain(|crash| crash.by.owner != *owner);
        Ok(())
    }

    async fn forget(&self, _: &ConsumerKey, passed: &[(Arc<str>, Owner)]) -> Result<(), StoreError> {
        self.0.lock().unwrap().starts.lanes.retain(|start, _| !passed.contains(start));
        Ok(())
    }

    /// At once: nobody dies between this and its commit.
    async fn absolve(&self, _: &mut Tx, _: &ConsumerKey, decided: &[Dedup]) -> Result<(), StoreError> {
        let starts = &mut self.0.lock().unwrap().starts;
        starts.crashes.retain(|crash| !decided.contains(&crash.dedup));
        Ok(())
    }

    async fn start_due(
        &self,
        consumer: &ConsumerKey,
        max: usize,
        by: &Starter,
        company: Company,
    ) -> Result<Option<Taken<Tx>>, StoreError> {
        let Some((tx, mut rows)) = self.take_due(consumer, max).await? else { return Ok(None) };
        let starts = &mut self.0.lock().unwrap().starts;
        let suspects: Vec<bool> = rows.iter().map(|row| starts.suspect(row.dedup, by)).collect();
        let ahead = suspects.iter().position(|suspect| *suspect).unwrap_or(rows.len());
        rows.truncate(ahead.max(1));
        starts.start_parked(&rows, by, company);
        starts.tell(&mut rows, by);
        Ok(Some((tx, rows)))
    }

    async fn start_again(
        &self,
        consumer: &ConsumerKey,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<Taken<Tx>, StoreError> {
        let (tx, mut rows) = self.take_again(consumer, keys).await?;
        let starts = &mut self.0.lock().unwrap().starts;
        starts.start_parked(&rows, by, company);
        starts.tell(&mut rows, by);
        Ok((tx, rows))
    }
}
