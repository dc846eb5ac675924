//! `dlq`: dead letters, listed, shown, exported byte for byte.

use crate::backend::{Backend, with_backend};
use crate::cli::{DlqExportArgs, DlqListArgs, DlqShowArgs};
use crate::config::{self, Config, Uses};
use crate::exit::{CliError, Exit};
use crate::output::{self, Reader, json, table};
use handstamp_core::FailureClass;
use handstamp_core::message_id::shown_text;
use handstamp_stores::rows::{DeadLetterKey, DeadLetterRow, DeadLetterSummary};
use serde_json::{Value, json};

/// Rows read at a time.
const PAGE: u32 = 500;
/// Characters of a reason in a table.
const REASON_CHARS: usize = 200;
/// Characters of an id in a table.
const ID_CHARS: usize = 64;
/// Stands where a message has no id, or none that can be used.
const NO_ID: &str = "(none)";

/// Lists dead letters.
///
/// # Errors
/// An unknown class, or what the store answered.
pub(crate) fn list(args: &DlqListArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let class = class(args.class.as_deref())?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
        let (letters, more) = collect(&backend, &config, class, limit).await?;
        if args.json {
            let letters: Vec<Value> = letters.iter().map(summary).collect();
            let object = json!({ "consumer": config.name.as_str(), "dead_letters": letters, "more": more });
            output::print_json(&object)?;
        } else {
            print_table(&letters, more)?;
        }
        Ok(Exit::Ok)
    }))
}

/// Shows one dead letter.
///
/// # Errors
/// The key is none or not known, or what the store answered.
pub(crate) fn show(args: &DlqShowArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let key: DeadLetterKey = args.key.parse().map_err(|error| CliError::usage(format!("{error}")))?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let row = backend.dead_letter(&config, key).await?.ok_or_else(|| {
            CliError::usage(format!("consumer {} has no dead letter {key}", config.name))
                .hint("`handstamp dlq list` shows the keys")
        })?;
        let object = whole(&row);
        // What was asked for is shown as it is: no redaction.
        let text = if args.json { json::line(&object) } else { person(&object) };
        output::print_raw(text.as_bytes())?;
        Ok(Exit::Ok)
    }))
}

/// Writes every dead letter as a JSON line.
///
/// # Errors
/// An unknown class, or what the store answered.
pub(crate) fn export(args: &DlqExportArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let class = class(args.class.as_deref())?;
    let runtime = super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let mut after = None;
        loop {
            let page = backend.dead_letters(&config, class, after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(Exit::Ok) };
            after = Some(last.cursor());
            for letter in &page {
                // One at a time: a page of bodies could be larger than memory.
                if let Some(row) = backend.dead_letter(&config, letter.key).await?
                    && output::print_raw(json::line(&whole(&row)).as_bytes())? == Reader::Gone
                {
                    return Ok(Exit::Ok);
                }
            }
        }
    }))
}

async fn collect<B: Backend>(
    backend: &B,
    config: &Config,
    class: Option<FailureClass>,
    limit: usize,
) -> Result<(Vec<DeadLetterSummary>, bool), CliError> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = backend.dead_letters(config, class, after, PAGE).await?;
        let Some(last) = page.last() else { return Ok((found, false)) };
        after = Some(last.cursor());
        for letter in page {
            if found.len() == limit {
                return Ok((found, true));
            }
            found.push(letter);
        }
    }
}

fn class(word: Option<&str>) -> Result<Option<FailureClass>, CliError> {
    let Some(word) = word else { return Ok(None) };
    FailureClass::from_word(word).map(Some).ok_or_else(|| {
        let words: Vec<&str> = FailureClass::ALL.iter().map(|class| class.as_str()).collect();
        CliError::usage(format!("--class: {word:?} is none of {}", words.join(", ")))
    })
}

fn print_table(letters: &[DeadLetterSummary], more: bool) -> Result<(), CliError> {
    if letters.is_empty() {
        return output::print("no dead letters\n");
    }
    let rows = letters
        .iter()
        .map(|letter| {
            let id = letter.id.as_ref().map_or_else(|| NO_ID.to_owned(), ToString::to_string);
            vec![
                letter.key.to_string(),
                cut(&id, ID_CHARS),
                letter.class.as_str().to_owned(),
                letter.attempts.to_string(),
                letter.origin.to_string(),
                cut(&one_line(letter), REASON_CHARS),
            ]
        })
        .collect();
    output::print(&table::plain(&["key", "id", "class", "attempts", "origin", "reason"], rows))?;
    if more {
        output::say("there are more; see --limit");
    }
    Ok(())
}

fn one_line(letter: &DeadLetterSummary) -> String {
    letter.reason.as_str().replace('\n', " ")
}

fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Why a message was given up, where and when, for a person.
pub(super) fn fields(letter: &DeadLetterSummary) -> Vec<(&'static str, String)> {
    let origin = &letter.origin;
    let mut fields = vec![
        ("dead letter", letter.key.to_string()),
        ("failed at", letter.failed_at.to_string()),
        ("class", letter.class.as_str().to_owned()),
        ("reason", one_line(letter)),
        ("attempts", letter.attempts.to_string()),
        ("topic", origin.topic.to_string()),
        ("partition", origin.partition.to_string()),
        ("offset", origin.offset.to_string()),
    ];
    if let Some(code) = &letter.code {
        fields.insert(3, ("code", code.clone()));
    }
    if let Some(line) = origin.line {
        fields.push(("line", line.to_string()));
    }
    fields
}

/// The same for a program.
pub(super) fn summary(letter: &DeadLetterSummary) -> Value {
    json!({
        "key": letter.key.to_string(),
        "id": json::bytes(letter.id.as_ref().map(|id| id.as_bytes())),
        "class": letter.class.as_str(),
        "code": letter.code,
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "failed_at": letter.failed_at.to_string(),
        "value_bytes": letter.value_bytes,
        "topic": letter.origin.topic.as_ref(),
        "partition": letter.origin.partition,
        "offset": letter.origin.offset,
        "line": letter.origin.line,
    })
}

/// Everything that was kept.
fn whole(row: &DeadLetterRow) -> Value {
    let letter = &row.letter;
    let record = &letter.record;
    let headers: Vec<Value> = record
        .headers
        .as_slice()
        .iter()
        .map(|header| json!([json::bytes(Some(&header.name)), json::bytes(header.value.as_deref())]))
        .collect();
    let truncated = letter.truncation.as_ref().map(|truncation| {
        let hash = truncation.blake3.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        json!({ "full_bytes": truncation.full_bytes, "blake3": hash })
    });
    json!({
        "key": row.key.to_string(),
        "consumer": row.consumer.as_str(),
        "id": json::bytes(letter.id.as_ref().map(|id| id.as_bytes())),
        "class": letter.class.as_str(),
        "code": letter.code,
        "reason": letter.reason.as_str(),
        "attempts": letter.attempts,
        "received_at": letter.received_at.to_string(),
        "failed_at": letter.failed_at.to_string(),
        "topic": record.origin.topic.as_ref(),
        "partition": record.origin.partition,
        "offset": record.origin.offset,
        "line": record.origin.line,
        "timestamp_ms": record.timestamp.map(|timestamp| timestamp.0),
        "record_key": json::bytes(record.key.as_deref()),
        "record_value": json::bytes(record.value.as_deref()),
        "record_headers": headers,
        "truncated": truncated,
    })
}

/// One field a line; control characters escaped.
fn person(object: &Value) -> String {
    let mut out = String::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let shown = match value {
            Value::Null => continue,
            Value::String(text) => shown_text(text.as_bytes()),
            other => other.to_string(),
        };
        out.push_str(&format!("{:<15} {shown}\n", key.replace('_', " ")));
    }
    out
}
