//! `dlq redrive`, `dlq discard`: what is done to those dead letters that are meant.
//!
//! Authoritative: the store. Each chunk is one transaction with its audit rows; what was answered is done. So the
//! same command again finds only what is left, however this one ended.

use super::before::Asked;
use super::next::Next;
use super::parked::ParkedJob;
use super::selection::{Meant, Selection};
use super::verdicts::Verdicts;
use super::{nobody, who};
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::dlq::{DlqDiscardArgs, DlqRedriveArgs, SelectionArgs};
use crate::config::{self, Config, Uses};
use crate::dlq::pace::{Pace, Rate};
use crate::exit::{CliError, Exit};
use crate::output::{self, live::Progress};
use crate::signals;
use handstamp_core::parked::OrderKey;
use handstamp_core::retry::Backoff;
use handstamp_core::{ConsumerName, CrashPoint, FailureClass, MessageId, Order, StoreError, StoreErrorKind};
use handstamp_stores::redrive::{Action, AuditFilter, Operation, Redrive, Redriven};
use handstamp_stores::rows::{DeadLetterKey, DeadLetterSummary};
use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

/// Most dead letters of one transaction. Beside a busy writer each one waits for its turn.
const CHUNK: u64 = 1000;
/// The shortest pause between two transactions of a redrive with a rate.
const BREATH: Duration = Duration::from_millis(50);
/// A transaction that lost against another is tried so often.
const TRIES: u32 = 10;

/// What a command does.
struct Job<'a> {
    config: &'a Config,
    selection: &'a SelectionArgs,
    action: Action,
    operation: Operation,
    as_id: Option<&'a MessageId>,
    rate: Option<Rate>,
}

impl Job<'_> {
    fn asked(&self) -> Asked<'_> {
        Asked { name: &self.config.name, action: self.action, as_id: self.as_id }
    }
}

/// Sends dead letters back.
///
/// # Errors
/// Nothing is meant, or what the store answered.
pub(super) fn redrive(args: &DlqRedriveArgs) -> Result<Exit, CliError> {
    if args.as_id.is_some() && args.selection.keys.len() != 1 {
        return Err(CliError::usage("--as-id: name exactly one dead letter by its KEY"));
    }
    let config = config::load(&args.selection.file, Uses::StoreAndIdentity)?;
    let operation = operation(&args.selection, args.why.as_deref().unwrap_or_default());
    let (selection, as_id, rate) = (&args.selection, args.as_id.as_ref(), args.rate);
    run(&Job { config: &config, selection, action: Action::Redrive, operation, as_id, rate })
}

/// Gives dead letters up for good.
///
/// # Errors
/// Nothing is meant, or what the store answered.
pub(super) fn discard(args: &DlqDiscardArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.selection.file, Uses::Store)?;
    let operation = operation(&args.selection, &args.why);
    let selection = &args.selection;
    run(&Job { config: &config, selection, action: Action::Discard, operation, as_id: None, rate: None })
}

fn operation(args: &SelectionArgs, why: &str) -> Operation {
    let done_by = args.by.clone().filter(|by| !by.trim().is_empty()).unwrap_or_else(who::user);
    Operation { number: uuid::Uuid::new_v4().into_bytes(), done_by, why: why.to_owned() }
}

fn run(job: &Job<'_>) -> Result<Exit, CliError> {
    let stop = signals::listen(job.config.options.shutdown_timeout, |_| {})?;
    let runtime = super::super::runtime()?;
    let verdicts = with_backend!(job.config, backend => runtime.block_on(async {
        let store = backend.existing(job.config).await?;
        work(&*store, job, stop.asked()).await
    }))?;
    let consumer = job.config.name.as_str();
    if job.selection.json {
        output::print_json(&verdicts.object(consumer, &job.operation, &Next::of(job.config)))?;
    } else {
        output::print(&verdicts.text(&Next::of(job.config)))?;
    }
    if verdicts.stopped {
        output::say("stopped: what was said is done, and the same command goes on with the rest");
    }
    Ok(verdicts.exit())
}

/// Does it, chunk after chunk, until all is done or a stop is asked for.
async fn work<S: Operations>(
    store: &S,
    job: &Job<'_>,
    stop: impl Future<Output = ()>,
) -> Result<Verdicts, CliError> {
    let mut stop = pin!(stop);
    let mut meant = Selection::count(store, &job.config.name, job.selection).await?;
    let mut verdicts = Verdicts::new(job.action, job.selection.dry_run, meant.left());
    if meant.left() == 0 {
        nothing(store, job, &mut verdicts).await?;
    }
    let mut paced = Paced::new(job.rate.filter(|_| !job.selection.dry_run));
    let mut progress = Progress::start();
    let mut promised = HashSet::new();
    while meant.left() > 0 {
        let at_most = tokio::select! {
            biased;
            () = &mut stop => {
                verdicts.stopped = true;
                break;
            }
            at_most = paced.turn() => at_most,
        };
        let done = verdicts.done;
        let outcome = match meant.next(at_most).await {
            Ok(chunk) if chunk.is_empty() => break,
            Ok(chunk) => act(store, job, chunk, &mut promised, &mut verdicts).await,
            Err(error) => Err(error),
        };
        if let Err(mut error) = outcome {
            let object = verdicts.object(job.config.name.as_str(), &job.operation, &Next::of(job.config));
            error.object = Some(Box::new(object));
            return Err(error.hint("what was answered is done; the same command goes on with the rest"));
        }
        paced.went(verdicts.done - done);
        progress.show(&verdicts.progress());
    }
    Ok(verdicts)
}

/// Nothing fits. A filter may find nothing; what was named by its group or id was to be there, unless this was
/// done to it before.
async fn nothing<S: Operations>(store: &S, job: &Job<'_>, verdicts: &mut Verdicts) -> Result<(), CliError> {
    let (name, file, asked) = (&job.config.name, &job.selection.file, job.asked());
    match (&job.selection.filter.id, job.selection.group) {
        (Some(id), _) => {
            let before = AuditFilter { id: Some(id.clone()), ..AuditFilter::default() };
            let Some(row) = asked.newest(store, &before).await? else {
                return Err(nobody::with_id(store, name, file, id).await?);
            };
            verdicts.mean_one_more();
            asked.judge(store, &row, verdicts).await
        }
        (None, Some(group)) => {
            asked.of_group(store, group, verdicts).await?;
            if verdicts.is_empty() { Err(nobody::in_group(file, group)) } else { Ok(()) }
        }
        (None, None) => Ok(()),
    }
}

/// When the next chunk may go.
struct Paced {
    pace: Option<Pace>,
    began: tokio::time::Instant,
}

impl Paced {
    fn new(rate: Option<Rate>) -> Self {
        Self { pace: rate.map(Pace::new), began: tokio::time::Instant::now() }
    }

    /// Waits until something may go, and says how much.
    async fn turn(&mut self) -> u64 {
        let Some(pace) = &mut self.pace else { return CHUNK };
        loop {
            match pace.may(self.began.elapsed()) {
                0 => tokio::time::sleep(pace.wait().max(BREATH)).await,
                may => return may.min(CHUNK),
            }
        }
    }

    fn went(&mut self, count: u64) {
        if let Some(pace) = &mut self.pace {
            pace.went(count);
        }
    }
}

/// One chunk; `promised` are the new ids of a dry run.
async fn act<S: Operations>(
    store: &S,
    job: &Job<'_>,
    chunk: Vec<Meant>,
    promised: &mut HashSet<MessageId>,
    verdicts: &mut Verdicts,
) -> Result<(), CliError> {
    let (mut letters, mut parked) = (Vec::new(), Vec::new());
    for meant in chunk {
        match meant {
            Meant::Letter(letter) => letters.push(*letter),
            Meant::Parked(row) => parked.push(*row),
            Meant::Missing(key) => missing(store, job, key, verdicts).await?,
        }
    }
    if !parked.is_empty() {
        let parked_job =
            ParkedJob { asked: job.asked(), operation: &job.operation, dry_run: job.selection.dry_run };
        for key in parked_job.run(store, &parked, verdicts).await? {
            missing(store, job, key, verdicts).await?;
        }
    }
    match job.action {
        Action::Redrive => send(store, job, &letters, promised, verdicts).await,
        Action::Discard => give_up(store, job, &letters, verdicts).await,
    }
}

/// One that is not there: this was done to it before, or there never was one.
async fn missing<S: Operations>(
    store: &S,
    job: &Job<'_>,
    key: DeadLetterKey,
    verdicts: &mut Verdicts,
) -> Result<(), CliError> {
    let asked = job.asked();
    match asked.newest_of(store, key).await? {
        Some(row) => asked.judge(store, &row, verdicts).await?,
        None => verdicts.stays(key, "there is no such dead letter, and nothing parked of this key"),
    }
    Ok(())
}

async fn give_up<S: Operations>(
    store: &S,
    job: &Job<'_>,
    letters: &[DeadLetterSummary],
    verdicts: &mut Verdicts,
) -> Result<(), CliError> {
    let keys: Vec<DeadLetterKey> = letters.iter().map(|letter| letter.key).collect();
    if job.selection.dry_run || keys.is_empty() {
        verdicts.done += u64::try_from(keys.len()).unwrap_or(u64::MAX);
        return Ok(());
    }
    let name = &job.config.name;
    let answers = again(async || store.discard(name, &keys, &job.operation).await).await?;
    CrashPoint::AfterDiscard.reached();
    for (key, was_there) in keys.into_iter().zip(answers) {
        match was_there {
            true => verdicts.done += 1,
            false => missing(store, job, key, verdicts).await?,
        }
    }
    Ok(())
}

async fn send<S: Operations>(
    store: &S,
    job: &Job<'_>,
    letters: &[DeadLetterSummary],
    promised: &mut HashSet<MessageId>,
    verdicts: &mut Verdicts,
) -> Result<(), CliError> {
    let mut asked = Vec::with_capacity(letters.len());
    for letter in letters {
        match ask(store, job, letter).await? {
            Ok(redrive) => asked.push(redrive),
            Err(why) => verdicts.stays(letter.key, why),
        }
    }
    if asked.is_empty() {
        return Ok(());
    }
    let name = &job.config.name;
    if job.selection.dry_run {
        for redrive in asked {
            match would_stay(store, name, &redrive, promised).await? {
                Some(why) => verdicts.stays(redrive.dead_letter, why),
                None => verdicts.done += 1,
            }
        }
        return Ok(());
    }
    let answers = again(async || store.redrive(name, &asked, &job.operation).await).await?;
    CrashPoint::AfterRedrive.reached();
    for (redrive, answer) in asked.iter().zip(answers) {
        match answer {
            Redriven::Parked => verdicts.done += 1,
            Redriven::Known(state) => verdicts.stays(redrive.dead_letter, known_as(redrive, state.as_str())),
            Redriven::NoId => verdicts.stays(redrive.dead_letter, "it has no id of its own"),
            Redriven::Missing => missing(store, job, redrive.dead_letter, verdicts).await?,
        }
    }
    Ok(())
}

/// Why one that gets a new id would stay a dead letter; its own id is nobody else's.
async fn would_stay<S: Operations>(
    store: &S,
    name: &ConsumerName,
    redrive: &Redrive,
    promised: &mut HashSet<MessageId>,
) -> Result<Option<String>, CliError> {
    let Some(id) = &redrive.new_id else { return Ok(None) };
    let known = store.inbox_row(name, id).await?.map(|row| row.state.as_str());
    let is_parked = || async { store.parked_one(name, redrive.dead_letter).await.map(|row| row.is_some()) };
    let known = match known {
        // It was sent back under another id before, or another one of these gets this id.
        None if is_parked().await? || !promised.insert(id.clone()) => Some("parked"),
        known => known,
    };
    Ok(known.map(|state| known_as(redrive, state)))
}

fn known_as(redrive: &Redrive, state: &str) -> String {
    match &redrive.new_id {
        Some(id) => format!("the id {id} is known: {state}"),
        None => format!("its id is known: {state}"),
    }
}

/// What is asked of the store for a dead letter, or why it stays.
async fn ask<S: Operations>(
    store: &S,
    job: &Job<'_>,
    letter: &DeadLetterSummary,
) -> Result<Result<Redrive, String>, CliError> {
    let is_reused = letter.class == FailureClass::IdReused;
    let has_own = letter.id.is_some() && !is_reused;
    if job.as_id.is_some() && has_own {
        return Ok(Err("it has an id of its own: send it back without --as-id".to_owned()));
    }
    if job.as_id.is_none() && is_reused {
        return Ok(Err(
            "its id is another message's: name it alone, with --as-id and an id of its own".to_owned()
        ));
    }
    let keeps_order = job.config.options.order == Order::Key;
    let may_be_cut = letter.class == FailureClass::TooLarge;
    let mut redrive = Redrive { dead_letter: letter.key, new_id: job.as_id.cloned(), order_key: None };
    if !(keeps_order || may_be_cut || letter.id.is_none()) {
        return Ok(Ok(redrive));
    }
    let Some(row) = store.letter(&job.config.name, letter.key).await? else { return Ok(Ok(redrive)) };
    if row.letter.truncation.is_some() {
        return Ok(Err("only a prefix of it was kept: publish it again".to_owned()));
    }
    if letter.id.is_none() && redrive.new_id.is_none() {
        match job.config.identity.message_id(&row.letter.record) {
            Ok(id) => redrive.new_id = Some(id),
            Err(fault) => return Ok(Err(fault.reason.clone())),
        }
    }
    if keeps_order {
        redrive.order_key = OrderKey::of(&row.letter.record);
    }
    Ok(Ok(redrive))
}

/// Tries again what lost against another transaction.
pub(super) async fn again<T>(mut attempt: impl AsyncFnMut() -> Result<T, StoreError>) -> Result<T, CliError> {
    let mut tries = 0;
    loop {
        match attempt().await {
            Err(error) if error.kind == StoreErrorKind::Conflict && tries < TRIES => {
                let jitter = uuid::Uuid::new_v4().as_fields().0;
                tokio::time::sleep(Backoff::CONFLICT.wait(tries, jitter)).await;
                tries += 1;
            }
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
#[path = "redrive_tests.rs"]
mod tests;
