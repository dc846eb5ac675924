//! `dlq show`, `dlq export`: dead letters whole, and what waits for a retry.

use super::super::inbox::may_be_stale;
use super::{PAGE, nobody, parked, text};
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::dlq::{DlqExportArgs, DlqShowArgs};
use crate::config::{self, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, Reader, json, table, width};
use handstamp_core::ConsumerName;
use handstamp_core::message_id::shown_text;
use handstamp_core::parked::FailedAttempt;
use handstamp_stores::redrive::{AuditFilter, AuditRow, ParkedRow};
use handstamp_stores::rows::{DeadLetterKey, DeadLetterRow};
use serde_json::{Value, json};

/// Lines of the audit shown of one message.
const AUDIT_MAX: u32 = 1000;

/// Shows one message that is a dead letter, is parked or was: its failed attempts, and what operators did to it.
///
/// # Errors
/// The key is not known, or what the store answered.
pub(super) fn show(args: &DlqShowArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let (name, key) = (&config.name, args.key);
    let runtime = super::super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let row = store.letter(name, key).await?;
        let parked = store.parked_one(name, key).await?;
        let attempts = store.failed_attempts(name, key).await?;
        let filter = AuditFilter { message: Some(key), ..AuditFilter::default() };
        let audit = store.audit_where(name, &filter, None, AUDIT_MAX).await?;
        if row.is_none() && parked.is_none() && attempts.is_empty() && audit.is_empty() {
            let text = format!("consumer {name} has no dead letter and no parked message {key}");
            return Err(CliError::new(Exit::CheckFailed, text)
                .hint("`handstamp dlq list` and `handstamp dlq parked` show the keys"));
        }
        let mut object = object(name, key, row.as_ref(), parked.as_ref());
        if row.is_none() && parked.is_none()
            && let Some(id) = audit.first().and_then(|line| line.id.as_ref())
        {
            let state = store.inbox_row(name, id).await?.map(|row| row.state);
            object["state"] = json!(state.map(|state| state.as_str()));
            if state.is_some_and(|state| may_be_stale(&config, state)) {
                object["may_be_stale"] = json!(true);
            }
        }
        object["failures"] = Value::Array(text::attempts(&attempts));
        object["audit"] = Value::Array(text::audit(&audit));
        // What was asked for is shown as it is: no redaction.
        let text = if args.json { json::line(&object) } else { person(&object, &attempts, &audit) };
        output::print_raw(text.as_bytes())?;
        Ok(Exit::Ok)
    }))
}

/// What is known of the message itself.
fn object(
    name: &ConsumerName,
    key: DeadLetterKey,
    row: Option<&DeadLetterRow>,
    parked: Option<&ParkedRow>,
) -> Value {
    let mut object = match (row, parked) {
        (Some(row), _) => text::whole(row),
        (None, Some(parked)) => text::whole(&parked.message),
        (None, None) => json!({ "key": key.to_string(), "consumer": name.as_str() }),
    };
    match (row, parked) {
        (Some(_), None) => {}
        (Some(_), Some(_)) => object["is"] = json!("dead letter, and parked under an id that it was given"),
        (None, Some(_)) => object["is"] = json!("parked"),
        (None, None) => object["is"] = json!("no dead letter any more"),
    }
    if let Some(parked) = parked {
        parked::add_to(&mut object, parked);
    }
    object
}

fn person(object: &Value, attempts: &[FailedAttempt], audit: &[AuditRow]) -> String {
    let (mut out, columns) = (text::person(object), width::columns());
    let shown = |text: &str| shown_text(text.as_bytes());
    if !attempts.is_empty() {
        let rows = attempts.iter().enumerate().map(|(at, attempt)| {
            let class = match &attempt.code {
                Some(code) => format!("{} {code}", attempt.class.as_str()),
                None => attempt.class.as_str().to_owned(),
            };
            let reason = shown(&attempt.reason.as_str().replace('\n', " "));
            let cells = vec![(at + 1).to_string(), attempt.at.to_string(), class, shown(&attempt.node)];
            (cells, width::behind("    ", &reason, columns))
        });
        out.push_str("\nfailed attempts\n");
        let header = ["", "at", "class", "node"];
        out.push_str(&table::with_below(&header, "    reason\n", rows.collect(), columns));
    }
    if !audit.is_empty() {
        out.push_str("\nwhat operators did\n");
        out.push_str(&audit_table(audit, columns));
    }
    out
}

/// Lines of the audit as a table; below each is why, where somebody said so.
pub(super) fn audit_table(audit: &[AuditRow], columns: usize) -> String {
    let shown = |text: &str| shown_text(text.as_bytes());
    let rows = audit.iter().map(|row| {
        let cells = vec![
            text::to_the_second(row.at),
            row.action.as_str().to_owned(),
            row.dead_letter.to_string(),
            shown(&row.operation.done_by),
        ];
        let why = shown(&row.operation.why);
        let below =
            if why.is_empty() { why } else { format!("{}\n", width::cut(&format!("    {why}"), columns)) };
        (cells, below)
    });
    table::with_below(&["at", "what", "key", "by"], "    why\n", rows.collect(), columns)
}

/// Writes every dead letter that fits as a JSON line.
///
/// # Errors
/// What the store answered.
pub(super) fn export(args: &DlqExportArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let filter = args.filter.filter();
    let runtime = super::super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let mut after = None;
        loop {
            let page = store.letters(&config.name, &filter, after.clone(), PAGE).await?;
            match (page.last(), &filter.id) {
                (Some(last), _) => after = Some(last.cursor()),
                // What was named was to be there.
                (None, Some(id)) if after.is_none() => {
                    return Err(nobody::with_id(&*store, &config.name, &args.file, id).await?);
                }
                (None, _) => return Ok(Exit::Ok),
            }
            for letter in &page {
                // One at a time: a page of bodies could be larger than memory.
                if let Some(row) = store.letter(&config.name, letter.key).await?
                    && output::print_raw(json::line(&text::whole(&row)).as_bytes())? == Reader::Gone
                {
                    return Ok(Exit::Ok);
                }
            }
        }
    }))
}
