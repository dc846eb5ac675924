//! What a transaction makes of each of its messages: planned by the claims, kept with them, counted once durable.
//!
//! ```text
//! claim ─► plan: handle | skip | record (dead letter) | park | behind (parked behind another of its key)
//! ```
//!
//! Authoritative: the store's answers. With `order = "key"` a message is behind when the store says that its key
//! has a parked message, or when one of its key is parked in front of it in the same transaction.

use super::batch::Shared;
use super::item::{End, Failure, Item, Unknown};
use super::versions::other_kind;
use crate::decide::{Case, Order, Outcome, Place, Verdict, decide};
use crate::message::Timestamp;
use crate::message_id::shown_text;
use crate::parked::{Dedup, FailedAttempt, OrderKey, Park};
use crate::start::StartStore;
use crate::store::{
    Claim, DeadLetter, FailureClass, InboxState, Reason, Recorded, StoreError, StoreErrorKind,
};
use crate::telemetry::Counts;
use crate::version::VersionKind;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// What the claims make of each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    Handle,
    Skip {
        state: InboxState,
        first_seen: Timestamp,
    },
    Record,
    RecordReused,
    CountReused,
    Park,
    /// Parked without having run.
    Behind,
    /// What is applied of its key is as new, or newer.
    Stale,
    /// A dead letter: what is applied of its key has a version of the other kind.
    OtherKind,
}

impl Plan {
    /// What a commit without an answer would have made of its message.
    pub(super) fn if_unknown(self) -> Option<Unknown> {
        match self {
            Self::Handle => Some(Unknown::Applied),
            Self::Record | Self::RecordReused | Self::OtherKind => Some(Unknown::Dead),
            Self::Stale => Some(Unknown::Stale),
            Self::Park | Self::Behind => Some(Unknown::Parked),
            Self::Skip { .. } | Self::CountReused => None,
        }
    }
}

/// The rows that go with the claims; each in the order of its messages.
#[derive(Default)]
struct Rows {
    letters: Vec<DeadLetter>,
    parks: Vec<Park>,
    attempts: Vec<(Dedup, FailedAttempt)>,
}

/// What the store said of the rows.
#[derive(Default)]
pub(super) struct Kept {
    letters: Vec<Recorded>,
    parks: Vec<Recorded>,
    /// The shortest wait of what is parked.
    soonest: Option<Duration>,
}

impl Kept {
    /// Whether anything is parked.
    pub(super) fn has_parked(&self) -> bool {
        self.soonest.is_some()
    }
}

impl<S: StartStore> Shared<S> {
    pub(super) fn plan(&self, chunk: &[Item], claims: Vec<Claim>) -> Vec<Plan> {
        let mut claims = claims.into_iter();
        let reused = match self.without_a_run(Outcome::IdReused) {
            Verdict::DeadLetter => Plan::RecordReused,
            _ => Plan::CountReused,
        };
        chunk
            .iter()
            .map(|item| {
                if item.id().is_none() {
                    return Plan::Record;
                }
                let claim = if self.options.inbox { claims.next() } else { Some(Claim::First) };
                match claim {
                    Some(Claim::IdReused { .. }) => reused,
                    Some(Claim::Duplicate { state, first_seen }) => Plan::Skip { state, first_seen },
                    Some(Claim::First) => match item.end() {
                        None => Plan::Handle,
                        Some(End::Parked(..)) => Plan::Park,
                        Some(End::Dead(_)) => Plan::Record,
                    },
                    None => Plan::Record,
                }
            })
            .collect()
    }

    /// What the table says of an outcome that needs no attempt.
    fn without_a_run(&self, outcome: Outcome) -> Verdict {
        let (place, waits) = (Place::Delivered, false);
        let case = Case { outcome, attempts: 0, code: None, place, waits, random: 0 };
        decide(&case, &self.options.policy)
    }

    /// Finds those that must wait behind a parked message of their key.
    pub(super) async fn put_behind(
        &self,
        tx: &mut S::Tx,
        chunk: &[Item],
        plans: &mut [Plan],
    ) -> Result<(), StoreError> {
        let key_of = |(item, plan): (&Item, &Plan)| match plan {
            Plan::Handle | Plan::Park => OrderKey::of(item.record()),
            _ => None,
        };
        let keys: Vec<Option<OrderKey>> = chunk.iter().zip(&*plans).map(key_of).collect();
        let mut distinct: Vec<OrderKey> = keys.iter().copied().flatten().collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.is_empty() {
            return Ok(());
        }
        let answers = self.store.parked_keys(tx, &self.consumer, &distinct).await?;
        if answers.len() != distinct.len() {
            let text = format!("the store answered {} of {} order keys", answers.len(), distinct.len());
            return Err(StoreError::new(StoreErrorKind::Config, text));
        }
        let parked = distinct.into_iter().zip(answers).filter_map(|(key, parked)| parked.then_some(key));
        let mut parked: HashSet<OrderKey> = parked.collect();
        for (plan, key) in plans.iter_mut().zip(keys) {
            let Some(key) = key else { continue };
            match plan {
                Plan::Park => drop(parked.insert(key)),
                _ if parked.contains(&key) => *plan = Plan::Behind,
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes what is parked or given up; nothing where nothing is.
    pub(super) async fn keep(
        &self,
        tx: &mut S::Tx,
        chunk: &[Item],
        plans: &[Plan],
    ) -> Result<Kept, StoreError> {
        let mut rows = rows(chunk, plans, self.options.order);
        self.starts.add_crashes(chunk[0].lane, &rows.letters, &mut rows.attempts);
        let mut kept = Kept::default();
        if !rows.parks.is_empty() {
            let parked = self.store.park(tx, &self.consumer, &rows.parks).await;
            kept.parks =
                parked.map_err(|error| refused(error, "parked message", rows.parks.len(), chunk, plans))?;
            kept.soonest = rows.parks.iter().map(|park| park.wait).min();
        }
        if !rows.letters.is_empty() {
            let recorded = self.store.record(tx, &self.consumer, &rows.letters).await;
            kept.letters =
                recorded.map_err(|error| refused(error, "dead letter", rows.letters.len(), chunk, plans))?;
        }
        if !rows.attempts.is_empty() {
            self.store.note_attempts(tx, &self.consumer, &rows.attempts).await?;
        }
        let decided = self.starts.decided(chunk, plans);
        if !decided.is_empty() {
            self.store.absolve(tx, &self.consumer, &decided).await?;
        }
        Ok(kept)
    }

    /// The chunk is durable: counts each item once and says what was skipped.
    pub(super) fn tally(&self, chunk: &[Item], plans: &[Plan], kept: &Kept) -> Counts {
        let mut counts = Counts { commits: 1, ..Counts::default() };
        let (mut letters, mut parks) = (kept.letters.iter(), kept.parks.iter());
        for (item, plan) in chunk.iter().zip(plans) {
            let is_new = |recorded: Option<&Recorded>| {
                recorded != Some(&Recorded::Known) || item.unknown != Unknown::Nothing
            };
            match plan {
                Plan::Handle => counts.applied += 1,
                Plan::Skip { state, .. } if item.unknown != Unknown::Nothing => {
                    match (item.unknown, state) {
                        // What became of it since then is somebody else's.
                        (Unknown::Parked, _) => counts.parked += 1,
                        (Unknown::Stale, _) => counts.stale += 1,
                        (_, InboxState::Dead) => {
                            counts.dead_lettered += 1;
                            counts.dead_letter_rows += 1;
                        }
                        (_, InboxState::Parked) => counts.duplicate += 1,
                        _ => counts.applied += 1,
                    }
                }
                Plan::Skip { state, first_seen } => {
                    counts.duplicate += 1;
                    self.say_duplicate(item, *state, *first_seen);
                }
                Plan::Record | Plan::OtherKind if is_new(letters.next()) => {
                    counts.dead_lettered += 1;
                    counts.dead_letter_rows += 1;
                    say_dead(item, *plan);
                }
                Plan::RecordReused if is_new(letters.next()) => {
                    counts.id_reused += 1;
                    counts.dead_letter_rows += 1;
                    tracing::warn!(target: "handstamp", "id reused with another body, dead letter: {}", item.shown());
                }
                Plan::Park | Plan::Behind if is_new(parks.next()) => {
                    counts.parked += 1;
                    self.say_parked(item);
                }
                Plan::Record | Plan::RecordReused | Plan::OtherKind | Plan::Park | Plan::Behind => {
                    counts.duplicate += 1;
                }
                Plan::CountReused => counts.id_reused += 1,
                // Without an inbox the mark alone remembers a commit of our own that had no answer.
                Plan::Stale if item.unknown == Unknown::Applied && !self.options.inbox => counts.applied += 1,
                Plan::Stale => {
                    counts.stale += 1;
                    tracing::debug!(target: "handstamp", "stale: {}", item.shown());
                }
            }
        }
        if let Some(soonest) = kept.soonest {
            self.parked.added(counts.parked, soonest);
        }
        counts
    }

    /// One line for a parked message, at most 100 a second.
    fn say_parked(&self, item: &Item) {
        let (shown, left_out) = self.parked_lines.borrow_mut().take(Instant::now());
        if left_out > 0 {
            tracing::info!(target: "handstamp", left_out, "more messages were parked without a line each");
        }
        if !shown {
            return;
        }
        match item.end() {
            Some(End::Parked(failure, wait)) => tracing::info!(
                target: "handstamp",
                class = failure.class.as_str(),
                reason = %shown_text(failure.reason.as_str().as_bytes()),
                attempts = item.attempts,
                wait_s = wait.as_secs_f64(),
                "parked for a retry: {}",
                item.shown()
            ),
            _ => tracing::info!(
                target: "handstamp",
                "parked behind another of its key: {}",
                item.shown()
            ),
        }
    }
}

fn rows(chunk: &[Item], plans: &[Plan], order: Order) -> Rows {
    let mut rows = Rows::default();
    for (item, plan) in chunk.iter().zip(plans) {
        let dedup = match plan {
            Plan::Record | Plan::RecordReused | Plan::OtherKind => {
                let letter = dead_letter(item, *plan);
                let dedup = (!item.history().is_empty()).then(|| letter.dedup());
                rows.letters.push(letter);
                dedup
            }
            Plan::Park | Plan::Behind => {
                let park = park(item, order);
                let dedup = park.letter.dedup();
                rows.parks.push(park);
                Some(dedup)
            }
            Plan::Handle | Plan::Skip { .. } | Plan::CountReused | Plan::Stale => continue,
        };
        if let Some(dedup) = dedup {
            rows.attempts.extend(item.history().iter().map(|failed| (dedup, failed.clone())));
        }
    }
    rows
}

pub(super) fn dead_letter(item: &Item, plan: Plan) -> DeadLetter {
    match (plan, item.end()) {
        (Plan::RecordReused, _) => {
            item.dead_letter(&failure(FailureClass::IdReused, "the id is known with another body"))
        }
        (Plan::OtherKind, _) => item.dead_letter(&of_other_kind(item)),
        (_, Some(End::Dead(failure) | End::Parked(failure, _))) => item.dead_letter(failure),
        (_, None) => item.dead_letter(&failure(FailureClass::Failed, "the store did not answer its claim")),
    }
}

fn of_other_kind(item: &Item) -> Failure {
    let kind = item.version.as_ref().map_or(VersionKind::Number, |found| found.version.kind());
    other_kind(kind)
}

/// With its own failure and wait; behind another of its key with its last failure, where it has one.
fn park(item: &Item, order: Order) -> Park {
    let order_key = if order == Order::Key { OrderKey::of(item.record()) } else { None };
    let (letter, wait) = match (item.end(), item.history().last()) {
        (Some(End::Parked(failure, wait)), _) => (item.dead_letter(failure), *wait),
        (_, Some(failed)) => {
            let FailedAttempt { class, code, reason, .. } = failed.clone();
            (item.dead_letter(&Failure { class, code, reason }), Duration::ZERO)
        }
        _ => {
            let waiting = failure(FailureClass::Waiting, "waits behind a parked message of its key");
            (item.dead_letter(&waiting), Duration::ZERO)
        }
    };
    Park { letter, wait, order_key }
}

fn failure(class: FailureClass, reason: &str) -> Failure {
    Failure { class, code: None, reason: Reason::new(reason) }
}

/// What the store refuses to keep is never dropped: the lane waits and says which message.
fn refused(mut error: StoreError, what: &str, count: usize, chunk: &[Item], plans: &[Plan]) -> StoreError {
    let is_kept = |plan: &Plan| match what {
        "dead letter" => matches!(plan, Plan::Record | Plan::RecordReused | Plan::OtherKind),
        _ => matches!(plan, Plan::Park | Plan::Behind),
    };
    if let Some((first, _)) = chunk.iter().zip(plans).find(|(_, plan)| is_kept(plan)) {
        let origin = &first.record().origin;
        error.message = format!("cannot keep {count} {what}(s), the first from {origin}: {}", error.message);
    }
    error
}

fn say_dead(item: &Item, plan: Plan) {
    let judged = (plan == Plan::OtherKind).then(|| of_other_kind(item));
    let ended = match item.end() {
        Some(End::Dead(failure)) => Some(failure),
        _ => judged.as_ref(),
    };
    if let Some(failure) = ended {
        tracing::warn!(
            target: "handstamp",
            class = failure.class.as_str(),
            // One line; what is escaped already is not escaped again.
            reason = %shown_text(failure.reason.as_str().as_bytes()),
            "dead letter {}",
            item.shown()
        );
    }
}
