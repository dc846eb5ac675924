//! The processes of the cases: each a store opened for itself, and an owner.

use super::StartHarness;
use crate::check::same;
use crate::parking_suite::given::Given;
use crate::parking_suite::{ids_of, patient, strings};
use crate::store_suite::{id, register, request};
use crate::{CaseFailure, CaseResult};
use handstamp_core::parked::{Dedup, ParkedMessage, Resumed, Taken};
use handstamp_core::{
    Claim, ClaimRequest, Company, ConsumerKey, Crash, DeadLetter, Lost, MessageId, Owner, PATIENCE, Start,
    StartStore, Starter, TakenOver,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A lane of the cases.
pub(super) const LANE: &str = "credits/0";

/// One process.
pub(super) struct Process<S> {
    pub(super) store: S,
    pub(super) consumer: ConsumerKey,
    pub(super) by: Starter,
}

impl<S: StartStore> Process<S> {
    pub(super) async fn new<H: StartHarness<Store = S>>(
        harness: &H,
        node: &str,
    ) -> Result<Self, CaseFailure> {
        Self::of(harness, "wallet", node).await
    }

    /// A process of this consumer.
    pub(super) async fn of<H: StartHarness<Store = S>>(
        harness: &H,
        consumer: &str,
        node: &str,
    ) -> Result<Self, CaseFailure> {
        let store = harness.open().await;
        let consumer = register(&store, consumer).await?;
        Ok(Self { store, consumer, by: Starter { owner: Owner::random(), node: node.into() } })
    }

    /// What is parked, by another process.
    pub(super) async fn given<H: StartHarness<Store = S>>(&self, harness: &H) -> Given<S> {
        Given { store: harness.open().await, consumer: self.consumer.clone() }
    }

    /// Many messages of a lane, from a position on.
    pub(super) fn many(&self, lane: &str, first: i64, count: u32) -> Start {
        let last = first + i64::from(count) - 1;
        Start { by: self.by.clone(), lane: lane.into(), first, last, count, alone: None }
    }

    /// One message alone.
    pub(super) fn alone(&self, lane: &str, message: &str) -> Result<Start, CaseFailure> {
        Ok(Start { alone: Some(id(message)?), ..self.many(lane, 7, 1) })
    }

    /// Starts and claims, again where the store asks for that, as the engine does.
    pub(super) async fn start(
        &self,
        start: &Start,
        ids: &[ClaimRequest],
    ) -> Result<(S::Tx, Vec<Claim>), CaseFailure> {
        patient("start_and_begin", async || self.store.start_and_begin(&self.consumer, ids, start).await)
            .await
    }

    /// Starts, and dies before it has claimed anything.
    pub(super) async fn dies_in(&self, start: &Start) -> CaseResult {
        let (tx, _) = self.start(start, &[]).await?;
        Ok(self.store.commit(tx).await?)
    }

    /// Starts one message alone on the lane, and dies.
    pub(super) async fn dies_alone(&self, message: &str) -> CaseResult {
        self.dies_in(&self.alone(LANE, message)?).await
    }

    /// Takes the lanes over: orphans by lane and owner.
    pub(super) async fn takes_over(&self, lanes: &[&str]) -> Result<TakenOver, CaseFailure> {
        let lanes: Vec<Arc<str>> = lanes.iter().map(|lane| (*lane).into()).collect();
        let ask = async || self.store.take_over(&self.consumer, &self.by, &lanes).await;
        let mut taken = patient("take_over", ask).await?;
        taken.orphans.sort_by(|one, other| key_of(&one.start).cmp(&key_of(&other.start)));
        Ok(taken)
    }

    pub(super) async fn ends(&self, lanes: Option<&[&str]>) -> CaseResult {
        let lanes: Option<Vec<Arc<str>>> =
            lanes.map(|lanes| lanes.iter().map(|lane| (*lane).into()).collect());
        let owner = &self.by.owner;
        patient("end_starts", async || self.store.end_starts(&self.consumer, owner, lanes.as_deref()).await)
            .await
    }

    pub(super) async fn withdraws(&self, lost: Lost<'_>) -> CaseResult {
        patient("withdraw", async || self.store.withdraw(&self.consumer, &self.by.owner, lost).await).await
    }

    /// Forgets orphans that these processes left on the lane.
    pub(super) async fn forgets(&self, passed: &[&Self]) -> CaseResult {
        let passed: Vec<_> = passed.iter().map(|process| (LANE.into(), process.by.owner)).collect();
        patient("forget", async || self.store.forget(&self.consumer, &passed).await).await
    }

    /// Forgets the crashes of these messages in a transaction.
    pub(super) async fn absolves(&self, decided: &[&str], commits: bool) -> CaseResult {
        let decided = decided.iter().map(|message| dedup_of(message)).collect::<Result<Vec<_>, _>>()?;
        let (mut tx, _) = self.store.begin(&self.consumer, &[]).await?;
        self.store.absolve(&mut tx, &self.consumer, &decided).await?;
        let ended = if commits { self.store.commit(tx).await } else { self.store.rollback(tx).await };
        Ok(ended?)
    }

    pub(super) async fn start_due(&self, max: usize) -> Result<Option<Taken<S::Tx>>, CaseFailure> {
        self.start_due_in(max, Company::None).await
    }

    pub(super) async fn start_due_in(
        &self,
        max: usize,
        company: Company,
    ) -> Result<Option<Taken<S::Tx>>, CaseFailure> {
        patient("start_due", async || self.store.start_due(&self.consumer, max, &self.by, company).await)
            .await
    }

    /// Starts what is due, which must be these.
    pub(super) async fn takes(&self, messages: &[&str]) -> Result<Taken<S::Tx>, CaseFailure> {
        let taken = self.start_due(10).await?;
        let taken = taken.ok_or_else(|| CaseFailure("nothing is due, though something must be".into()))?;
        same("taken", &ids_of(&taken.1), &strings(messages))?;
        Ok(taken)
    }

    /// Starts what is due, which must be these, and dies. Tells them.
    pub(super) async fn dies_with(&self, messages: &[&str]) -> Result<Vec<ParkedMessage>, CaseFailure> {
        let (tx, rows) = self.takes(messages).await?;
        self.store.rollback(tx).await?;
        Ok(rows)
    }

    pub(super) async fn start_again(
        &self,
        messages: &[&str],
        company: Company,
    ) -> Result<Taken<S::Tx>, CaseFailure> {
        let keys = messages.iter().map(|message| dedup_of(message)).collect::<Result<Vec<_>, _>>()?;
        let again = async || self.store.start_again(&self.consumer, &keys, &self.by, company).await;
        patient("start_again", again).await
    }

    /// Takes one message again, alone, and dies.
    pub(super) async fn dies_again_with(&self, message: &str) -> CaseResult {
        let (tx, rows) = self.start_again(&[message], Company::None).await?;
        self.store.rollback(tx).await?;
        same("taken", &ids_of(&rows), &strings(&[message]))
    }

    /// Says what became of parked messages, and commits.
    pub(super) async fn resumes(&self, mut tx: S::Tx, outcomes: &[(&str, Resumed)]) -> CaseResult {
        let outcome = |(message, outcome): &(&str, Resumed)| Ok((dedup_of(message)?, outcome.clone()));
        let outcomes = outcomes.iter().map(outcome).collect::<Result<Vec<_>, CaseFailure>>()?;
        self.store.resume(&mut tx, &self.consumer, &outcomes).await?;
        Ok(self.store.commit(tx).await?)
    }
}

/// Of a living owner: moves after a third of the time that it has, and ends as long again beyond it.
pub(super) async fn lives(
    moves: impl Future<Output = CaseResult>,
    ends: impl Future<Output = CaseResult>,
) -> CaseResult {
    tokio::time::sleep(PATIENCE / 3).await;
    moves.await?;
    tokio::time::sleep(PATIENCE).await;
    ends.await
}

fn key_of(start: &Start) -> (&Arc<str>, Owner) {
    (&start.lane, start.by.owner)
}

/// The claim of a message.
pub(super) fn claim_of(message: &str) -> Result<ClaimRequest, CaseFailure> {
    request(message, 1)
}

pub(super) fn dedup_of(message: &str) -> Result<Dedup, CaseFailure> {
    Ok(DeadLetter::dedup_of_id(&MessageId::new(message.as_bytes().to_vec())?))
}

/// The orphans that were found, which must be these; all that they say is for a case of its own.
pub(super) fn orphans_are(taken: &TakenOver, expected: &[&Start]) -> CaseResult {
    let which = |start: &Start| (start.lane.clone(), start.by.owner, start.first, start.alone.clone());
    let mut expected: Vec<_> = expected.iter().map(|start| which(start)).collect();
    expected.sort();
    same("orphans", &taken.orphans.iter().map(|orphan| which(&orphan.start)).collect(), &expected)
}

/// Whose crashes are told; how often and in which order is for cases of their own.
pub(super) fn crashes_by<S>(crashes: &[Crash], expected: &[&Process<S>]) -> CaseResult {
    let seen: BTreeSet<Owner> = crashes.iter().map(|crash| crash.by.owner).collect();
    same("crashes by", &seen, &expected.iter().map(|process| process.by.owner).collect())
}

/// The crashes told of one parked message, in their order.
pub(super) fn told<S>(row: &ParkedMessage, expected: &[&Process<S>]) -> CaseResult {
    let crash = |process: &&Process<S>| (row.dedup, process.by.owner);
    let seen: Vec<(Dedup, Owner)> = row.crashes.iter().map(|crash| (crash.dedup, crash.by.owner)).collect();
    same("crashes told", &seen, &expected.iter().map(crash).collect())
}
