//! `run --dry-run`: what would become of the next messages. Everything but COMMIT and settle.
//!
//! Authoritative: the store and the effects, in one transaction that is rolled back. The messages are looked at where
//! they lie; nothing is taken from the source, no group is joined, no position is written.
//!
//! ```text
//!  peek ─► BEGIN, register, claim all ─► each: savepoint ─► version, effects ─► applied
//!                                               └ fails: taken back ─► would be parked, or is recorded as dead
//!                                                                              … ─► ROLLBACK
//! ```
//!
//! A message that fails is tried once: what further attempts would do depends on what happens meanwhile. What the
//! policy would do next is said by the function that decides for `run`.

mod shown;

use crate::backend::dry_run::{DryRun, peek};
use crate::backend::source;
use crate::cli::RunArgs;
use crate::config::Config;
use crate::exit::{CliError, Exit};
use crate::output;
use crate::signals::Stop;
use handstamp_core::consumer::preview::{Preview, PreviewFailure};
use handstamp_core::decide::{Case, Outcome, Place, Policy, Verdict, decide};
use handstamp_core::version::{Judged, greatest, judge};
use handstamp_core::{
    BatchError, BatchHandler, Claim, ConsumerKey, Decision, FailureClass, InboxState, Message, MessageId,
    OnIdReuse, Order, OrderKey, ParkingStore, Reason, Recorded, Store, StoreError, StoreErrorKind,
    VersionStore,
};
use std::collections::{HashMap, HashSet};
use std::error::Error;

/// How many messages are looked at unless said.
const MESSAGES: u64 = 10;
/// Most messages: all of them are in one transaction, which others wait for.
const MESSAGES_MAX: u64 = 1000;

/// What would become of a message.
#[derive(Debug, Clone)]
enum Fate {
    Applied,
    Duplicate(InboxState),
    /// A dead letter that is kept already.
    KnownLetter,
    IdReused {
        kept: bool,
    },
    Stale,
    /// No effect wants it.
    Unmatched,
    DeadLettered(PreviewFailure),
    Parked(PreviewFailure),
    /// It holds its partition.
    Blocks(PreviewFailure),
    /// Parked behind another of its key.
    Behind,
    /// What was in front of it ended the look.
    NotTried,
}

impl Fate {
    /// What the inbox would say of its id.
    fn state(&self) -> InboxState {
        match self {
            Self::Duplicate(state) => *state,
            Self::DeadLettered(_) | Self::KnownLetter => InboxState::Dead,
            Self::Parked(_) | Self::Behind | Self::Blocks(_) => InboxState::Parked,
            _ => InboxState::Applied,
        }
    }
}

/// A message and what would become of it.
struct Looked {
    preview: Preview,
    fate: Fate,
}

/// All that was found.
struct Findings {
    looked: Vec<Looked>,
    /// Nothing lies behind them.
    ended: bool,
    /// The store has no tables yet.
    is_new: bool,
}

/// Looks at the next messages and says what would become of each.
///
/// # Errors
/// As `run`: the source or the store cannot be reached, the tables are missing, the name is another stream's.
pub(super) async fn dry_run<B: DryRun>(
    backend: &B,
    config: &Config,
    args: &RunArgs,
    stop: Stop,
) -> Result<Exit, CliError> {
    let findings = tokio::select! {
        biased;
        () = stop.asked() => return Err(CliError::new(Exit::Unfinished, "stopped before everything was looked at")),
        findings = look(backend, config, args) => findings?,
    };
    if args.json {
        output::print_json(&shown::object(config, &findings))?;
    } else {
        output::print(&shown::text(&findings))?;
    }
    Ok(Exit::Ok)
}

async fn look<B: DryRun>(backend: &B, config: &Config, args: &RunArgs) -> Result<Findings, CliError> {
    let most = args.max_messages.unwrap_or(MESSAGES);
    if most > MESSAGES_MAX {
        return Err(CliError::usage(format!(
            "--max-messages: at most {MESSAGES_MAX} with --dry-run: they are in one transaction"
        )));
    }
    source::look(config).refuse()?;
    let fingerprint = source::source(config, true, None)?.fingerprint();
    let (dry, effects) = backend.open_dry(config).await?;
    let is_new = B::is_new(&dry);
    let from_start = is_new || source::strange_position(backend, config).await?.is_some();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let peeked = peek(config, most, from_start).await?;
    let mut previews = Vec::new();
    for delivery in peeked.deliveries {
        let mut preview = Preview::of(delivery, &config.identity, &config.options);
        let is_wanted = preview.route(&effects);
        previews.push((preview, is_wanted));
    }
    let claiming = |(preview, is_wanted): &(Preview, bool)| match config.options.inbox && *is_wanted {
        true => preview.claim(),
        false => None,
    };
    let ids: Vec<_> = previews.iter().filter_map(claiming).collect();
    let (consumer, (mut tx, claims)) = B::begin_dry(&dry, config, &fingerprint, args.adopt, &ids).await?;
    let look = Look {
        store: B::store(&dry),
        effects: &effects,
        config,
        consumer,
        fates: HashMap::new(),
        parked: HashSet::new(),
        over: false,
    };
    let (looked, left) = look.all::<B>(&mut tx, previews, claims).await;
    match left {
        Left::Idle => B::store(&dry).rollback(tx).await?,
        Left::Running => B::store(&dry).abandon(tx).await,
    }
    Ok(Findings { looked: looked?, ended: peeked.ended, is_new })
}

/// What `--json` prints of a dry run that did nothing.
pub(crate) fn nothing() -> serde_json::Value {
    shown::nothing()
}

/// How a transaction is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// No statement runs.
    Idle,
    /// One may still run.
    Running,
}

/// Why nothing more can be looked at.
enum Over {
    /// The store's own fault.
    Store(StoreError),
    /// A handler did not come back: what was found until then counts.
    TimedOut,
}

impl From<StoreError> for Over {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The look at the messages of one transaction.
struct Look<'a, S, E> {
    store: &'a S,
    effects: &'a E,
    config: &'a Config,
    consumer: ConsumerKey,
    /// What became of the ids in front.
    fates: HashMap<MessageId, Fate>,
    /// The keys of what would be parked: nothing is written of it, which would draw numbers that stay drawn.
    parked: HashSet<OrderKey>,
    /// Nothing more is tried.
    over: bool,
}

impl<S, E> Look<'_, S, E>
where
    S: ParkingStore + VersionStore,
    E: BatchHandler<S::Tx>,
{
    async fn all<B: DryRun<Store = S>>(
        mut self,
        tx: &mut S::Tx,
        previews: Vec<(Preview, bool)>,
        claims: Vec<Claim>,
    ) -> (Result<Vec<Looked>, StoreError>, Left) {
        let mut claims = claims.into_iter();
        let mut looked = Vec::with_capacity(previews.len());
        let mut left = Left::Idle;
        for (preview, is_wanted) in previews {
            if !is_wanted {
                looked.push(Looked { preview, fate: Fate::Unmatched });
                continue;
            }
            let claim = match preview.id() {
                Some(_) if self.config.options.inbox => claims.next(),
                Some(_) => Some(Claim::First),
                None => None,
            };
            let fate = match self.over {
                true => Fate::NotTried,
                false => match self.one::<B>(tx, &preview, claim).await {
                    Ok(fate) => fate,
                    Err(Over::Store(error)) => return (Err(error), Left::Running),
                    Err(Over::TimedOut) => {
                        (self.over, left) = (true, Left::Running);
                        let limit = self.config.options.handler_timeout;
                        let reason = Reason::new(&format!("the handler took longer than {limit:?}"));
                        let failure = PreviewFailure { class: FailureClass::TimedOut, code: None, reason };
                        ended(Outcome::Timeout, failure, &self.config.options.policy)
                    }
                },
            };
            if let Some(id) = preview.id() {
                self.fates.entry(id.clone()).or_insert_with(|| fate.clone());
            }
            looked.push(Looked { preview, fate });
        }
        (Ok(looked), left)
    }

    async fn one<B: DryRun<Store = S>>(
        &mut self,
        tx: &mut S::Tx,
        preview: &Preview,
        claim: Option<Claim>,
    ) -> Result<Fate, Over> {
        self.store.savepoint(tx).await?;
        match (claim, preview.message()) {
            (Some(Claim::Duplicate { state, .. }), _) => {
                let earlier = preview.id().and_then(|id| self.fates.get(id));
                Ok(Fate::Duplicate(earlier.map_or(state, Fate::state)))
            }
            (Some(Claim::IdReused { .. }), _) => {
                let kept = self.config.options.policy.on_id_reuse == OnIdReuse::DeadLetter;
                let reason = Reason::new("the id is known with another body");
                let failure = PreviewFailure { class: FailureClass::IdReused, code: None, reason };
                match kept && self.record(tx, preview, &failure).await? == Recorded::Known {
                    true => Ok(Fate::KnownLetter),
                    false => Ok(Fate::IdReused { kept }),
                }
            }
            (Some(Claim::First), Some(message)) if preview.failure().is_none() => {
                self.first::<B>(tx, preview, message).await
            }
            _ => {
                let failure = preview.failure().unwrap_or_else(unanswered);
                match self.record(tx, preview, &failure).await? {
                    Recorded::Known => Ok(Fate::KnownLetter),
                    Recorded::New => Ok(Fate::DeadLettered(failure)),
                }
            }
        }
    }

    /// A message that was not known: its version is judged, its effects run.
    async fn first<B: DryRun<Store = S>>(
        &mut self,
        tx: &mut S::Tx,
        preview: &Preview,
        message: &Message,
    ) -> Result<Fate, Over> {
        let by_key = self.config.options.order == Order::Key;
        let key = OrderKey::of(preview.record()).filter(|_| by_key);
        if let Some(key) = key
            && (self.parked.contains(&key)
                || self.store.parked_keys(tx, &self.consumer, &[key]).await?.first() == Some(&true))
        {
            return Ok(Fate::Behind);
        }
        match self.judged(tx, preview).await? {
            Judged::Newer => {}
            Judged::Stale => return Ok(Fate::Stale),
            Judged::OtherKind => {
                let text = "its version is of another kind than that of what is applied of its key";
                let failure =
                    PreviewFailure { class: FailureClass::Version, code: None, reason: Reason::new(text) };
                self.record(tx, preview, &failure).await?;
                return Ok(Fate::DeadLettered(failure));
            }
        }
        let limit = self.config.options.handler_timeout;
        let run = self.effects.handle_batch(tx, std::slice::from_ref(message));
        let ran = tokio::time::timeout(limit, run).await.map_err(|_| Over::TimedOut)?;
        let ran = match ran {
            Ok(()) => B::judge_deferred(tx).await.map_err(BatchError::from),
            Err(error) => Err(error),
        };
        let Err(failed) = ran else { return Ok(Fate::Applied) };
        let (outcome, failure) = self.failure(tx, failed)?;
        self.store.take_back(tx).await?;
        let fate = ended(outcome, failure.clone(), &self.config.options.policy);
        match &fate {
            Fate::DeadLettered(_) => drop(self.record(tx, preview, &failure).await?),
            _ => self.parked.extend(key),
        }
        Ok(fate)
    }

    async fn judged(&self, tx: &mut S::Tx, preview: &Preview) -> Result<Judged, StoreError> {
        let Some(versioned) = preview.versioned() else { return Ok(Judged::Newer) };
        let raised = greatest(std::iter::once(versioned), |_| None);
        let marks = self.store.raise_marks(tx, &self.consumer, &raised).await?;
        Ok(judge(&marks, &[versioned]).first().copied().unwrap_or(Judged::Newer))
    }

    /// Whose fault it is, as the engine judges it: what is the store's own ends the look.
    fn failure(&self, tx: &S::Tx, failed: BatchError) -> Result<(Outcome, PreviewFailure), StoreError> {
        let error = failed.error;
        let source: &(dyn Error + 'static) = error.source.as_ref();
        let fault = self.store.classify(tx, source);
        let reason = Reason::from_error(source);
        let (kind, code) = fault.map_or((None, None), |fault| (Some(fault.kind), fault.code));
        let (outcome, class) = match (kind, error.decision) {
            (Some(StoreErrorKind::Timeout), _) => (Outcome::Timeout, FailureClass::TimedOut),
            (Some(kind), _) if kind != StoreErrorKind::Statement => {
                return Err(StoreError::new(kind, reason.as_str().to_owned()));
            }
            (_, Decision::Reject) => (Outcome::Reject, FailureClass::Rejected),
            (Some(_), _) => (Outcome::Retry { after: None }, FailureClass::Sql),
            (None, Decision::Retry { after }) => (Outcome::Retry { after }, FailureClass::Failed),
            (None, _) => (Outcome::Retry { after: None }, FailureClass::Failed),
        };
        let class = if outcome == Outcome::Timeout { class } else { error.class.unwrap_or(class) };
        Ok((outcome, PreviewFailure { class, code, reason }))
    }

    async fn record(
        &self,
        tx: &mut S::Tx,
        preview: &Preview,
        failure: &PreviewFailure,
    ) -> Result<Recorded, StoreError> {
        let letter = preview.dead_letter(failure, 1);
        let recorded = self.store.record(tx, &self.consumer, std::slice::from_ref(&letter)).await?;
        Ok(recorded.first().copied().unwrap_or(Recorded::New))
    }
}

fn unanswered() -> PreviewFailure {
    let reason = Reason::new("the store did not answer its claim");
    PreviewFailure { class: FailureClass::Failed, code: None, reason }
}

/// What becomes of a message whose every attempt in place fails so.
fn ended(outcome: Outcome, failure: PreviewFailure, policy: &Policy) -> Fate {
    let code = failure.code.clone();
    let most = policy.retry.attempts_for(code.as_deref()).max(1);
    for attempts in 1..=most {
        let case = Case {
            outcome,
            attempts,
            code: code.as_deref(),
            place: Place::Delivered,
            waits: true,
            random: u32::MAX,
        };
        match decide(&case, policy) {
            Verdict::RetryInPlace { .. } if attempts >= policy.retry.immediate => {
                return Fate::Blocks(failure);
            }
            Verdict::RetryInPlace { .. } => {}
            Verdict::Park { .. } => return Fate::Parked(failure),
            _ => return Fate::DeadLettered(failure),
        }
    }
    Fate::DeadLettered(failure)
}
