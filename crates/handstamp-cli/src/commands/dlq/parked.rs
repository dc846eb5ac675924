//! `dlq parked`; and parked messages where other commands meet them: found by id, shown, sent now, given up.

use super::before::{Asked, Since};
use super::verdicts::Verdicts;
use super::{PAGE, say_more, text};
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::dlq::DlqParkedArgs;
use crate::config::{self, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, table, width};
use handstamp_core::retry::Backoff;
use handstamp_core::{ConsumerName, DeadLetter, MessageId, Timestamp};
use handstamp_stores::redrive::{Action, Operation, ParkedRow, ParkedSummary, Unparked};
use handstamp_stores::rows::DeadLetterKey;
use serde_json::{Value, json};

/// Columns of the key that another one is behind; `dlq show` has all of it.
const FIRST_COLUMNS: usize = 9;
/// So wide is a line that also says since when.
const ALL_COLUMNS: usize = 100;
/// One that a worker is trying is asked for so often.
const TRIES: u32 = 10;

/// Lists messages that wait for a retry.
///
/// # Errors
/// What the store answered.
pub(super) fn list(args: &DlqParkedArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let runtime = super::super::runtime()?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let (parked, more) = with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let mut found: Vec<ParkedSummary> = Vec::new();
        let mut after = None;
        loop {
            let page = store.parked_page(&config.name, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.seq);
            found.extend(page);
            if found.len() > limit {
                break;
            }
        }
        let more = found.len() > limit;
        found.truncate(limit);
        Ok::<_, CliError>((found, more))
    }))?;
    if args.json {
        let parked: Vec<Value> = parked.iter().map(of_summary).collect();
        let object = json!({ "consumer": config.name.as_str(), "parked": parked, "more": more });
        output::print_json(&object)?;
    } else if parked.is_empty() {
        output::print("nothing is parked\n")?;
    } else {
        output::print(&parked_table(&parked, width::columns()))?;
        say_more(more);
    }
    Ok(Exit::Ok)
}

fn of_summary(parked: &ParkedSummary) -> Value {
    let mut object = text::summary(&parked.message);
    add_times(&mut object, parked.parked_at, parked.due_at);
    object["due_in_seconds"] = json!(parked.due_in.as_secs_f64());
    object["keeps_order"] = json!(parked.order_key.is_some());
    object["behind"] = json!(parked.behind.map(|key| key.to_string()));
    object
}

fn add_times(object: &mut Value, parked_at: Timestamp, due_at: Timestamp) {
    object["parked_at"] = json!(parked_at.to_string());
    object["due_at"] = json!(due_at.to_string());
}

/// Two lines a message: when its turn comes, and below its id and reason.
fn parked_table(parked: &[ParkedSummary], columns: usize) -> String {
    let header = ["key", "class", "attempts", "due", "parked at"];
    // The last one is left out where there is no room for it.
    let header = if columns < ALL_COLUMNS { &header[..4] } else { &header[..] };
    let row = |parked: &ParkedSummary| {
        let letter = &parked.message;
        let mut cells = vec![
            letter.key.to_string(),
            letter.class.as_str().to_owned(),
            letter.attempts.to_string(),
            due(parked),
            text::to_the_second(parked.parked_at),
        ];
        cells.truncate(header.len());
        (cells, text::id_and_reason(letter, columns))
    };
    let rows = parked.iter().map(row).collect();
    table::with_below(header, text::ID_AND_REASON, rows, columns)
}

/// When it is tried again. The time of one that is behind another says nothing: its turn comes first.
fn due(parked: &ParkedSummary) -> String {
    match parked.behind {
        Some(first) => format!("behind {}", width::cut(&first.to_string(), FIRST_COLUMNS)),
        None if parked.due_in.is_zero() => "now".to_owned(),
        None => text::to_the_second(parked.due_at),
    }
}

/// Adds to an object of a message what is known of it because it is parked.
pub(super) fn add_to(object: &mut Value, parked: &ParkedRow) {
    add_times(object, parked.parked_at, parked.due_at);
    object["due_in_seconds"] = json!(parked.due_in.as_secs_f64());
    object["keeps_order"] = json!(parked.order_key.is_some());
    object["behind"] = json!(parked.behind.map(|key| key.to_string()));
}

/// One parked message in a few words, for a program.
pub(in crate::commands) fn summary(parked: &ParkedRow) -> Value {
    let mut object = text::summary(&parked.message.summary());
    add_to(&mut object, parked);
    object
}

/// The same for a person: a fact a line.
pub(in crate::commands) fn fields(parked: &ParkedRow) -> Vec<(&'static str, String)> {
    let mut fields = text::fields(&parked.message.summary());
    fields[0].0 = "parked message";
    fields.push(("parked at", parked.parked_at.to_string()));
    fields.push(("due at", parked.due_at.to_string()));
    fields.extend(parked.behind.map(|key| ("waits behind", key.to_string())));
    fields
}

/// The parked message with this id. One that got its id by a redrive is found by looking through all.
///
/// # Errors
/// What the store answered.
pub(in crate::commands) async fn with_id<S: Operations>(
    store: &S,
    name: &ConsumerName,
    id: &MessageId,
) -> Result<Option<ParkedRow>, CliError> {
    let own = store.parked_one(name, DeadLetterKey(DeadLetter::dedup_of_id(id))).await?;
    if own.is_some() {
        return Ok(own);
    }
    let mut after = None;
    loop {
        let page = store.parked_page(name, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok(None) };
        after = Some(last.seq);
        if let Some(found) = page.iter().find(|row| row.message.id.as_ref() == Some(id)) {
            return Ok(store.parked_one(name, found.message.key).await?);
        }
    }
}

/// What is done to parked messages that were named.
pub(super) struct ParkedJob<'a> {
    pub(super) asked: Asked<'a>,
    pub(super) operation: &'a Operation,
    pub(super) dry_run: bool,
}

impl ParkedJob<'_> {
    /// Sends them now or gives them up; answers those that are not parked any more.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn run<S: Operations>(
        &self,
        store: &S,
        parked: &[ParkedRow],
        verdicts: &mut Verdicts,
    ) -> Result<Vec<DeadLetterKey>, CliError> {
        let mut keys = Vec::with_capacity(parked.len());
        for row in parked {
            let waits = row.behind.is_some() || row.due_in.is_zero();
            if self.asked.as_id.is_some_and(|id| row.message.letter.id.as_ref() != Some(id)) {
                let why = "it is parked and has an id of its own: name it without --as-id";
                verdicts.stays(row.message.key, why);
            } else if self.asked.action == Action::Redrive && waits {
                self.needs_no_sending(store, row, verdicts).await?;
            } else {
                keys.push(row.message.key);
            }
        }
        if self.dry_run {
            verdicts.done += u64::try_from(keys.len()).unwrap_or(u64::MAX);
            return Ok(Vec::new());
        }
        let mut missing = Vec::new();
        for tries in 0..TRIES {
            if keys.is_empty() {
                break;
            }
            if tries > 0 {
                tokio::time::sleep(Backoff::CONFLICT.wait(tries, u32::MAX)).await;
            }
            let answers = super::redrive::again(async || match self.asked.action {
                Action::Redrive => store.send_now(self.asked.name, &keys, self.operation).await,
                Action::Discard => store.discard_parked(self.asked.name, &keys, self.operation).await,
            })
            .await?;
            let mut busy = Vec::new();
            for (key, answer) in keys.into_iter().zip(answers) {
                match answer {
                    Unparked::Done => verdicts.done += 1,
                    Unparked::Busy => busy.push(key),
                    Unparked::Missing => missing.push(key),
                }
            }
            keys = busy;
        }
        for key in keys {
            verdicts.stays(key, "it is being tried now: say it again");
        }
        Ok(missing)
    }

    /// One that is due, or whose turn comes later: it was sent back before, or else there is nothing to send.
    async fn needs_no_sending<S: Operations>(
        &self,
        store: &S,
        row: &ParkedRow,
        verdicts: &mut Verdicts,
    ) -> Result<(), CliError> {
        let key = row.message.key;
        let newest = self.asked.newest_of(store, key).await?;
        match (newest.is_some_and(|line| line.action == Action::Redrive), row.behind) {
            (true, _) => verdicts.was_done(Since::of_parked(row)),
            (false, None) => verdicts.is_due(),
            (false, Some(first)) => verdicts.stays(
                key,
                format!("it waits behind {first}, which is of its key and comes first: send that one"),
            ),
        }
        Ok(())
    }
}
