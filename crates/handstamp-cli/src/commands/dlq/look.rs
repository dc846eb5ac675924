//! `dlq list`, `dlq groups`, `dlq parked`, `dlq audit`: what is there, without its bytes.

use super::{PAGE, show, text};
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::dlq::{DlqAuditArgs, DlqGroupsArgs, DlqListArgs, DlqParkedArgs};
use crate::config::{self, Config, Uses};
use crate::dlq::groups::{GROUPS_MAX, Group, Groups};
use crate::exit::{CliError, Exit};
use crate::output::{self, table};
use handstamp_core::ConsumerName;
use handstamp_stores::redrive::{DeadLetterFilter, ParkedSummary};
use handstamp_stores::rows::DeadLetterSummary;
use serde_json::{Value, json};

/// Characters of a reason in a table.
const REASON_CHARS: usize = 200;

/// Lists dead letters.
///
/// # Errors
/// What the store answered.
pub(super) fn list(args: &DlqListArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let filter = args.filter.filter();
    let runtime = super::super::runtime()?;
    with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let (letters, more) = collect(&*store, &config.name, &filter, args.limit).await?;
        if args.json {
            let letters: Vec<Value> = letters.iter().map(text::summary).collect();
            let object = json!({ "consumer": config.name.as_str(), "dead_letters": letters, "more": more });
            output::print_json(&object)?;
        } else if letters.is_empty() {
            output::print("no dead letters\n")?;
        } else {
            output::print(&letters_table(&letters))?;
            say_more(more);
        }
        Ok(Exit::Ok)
    }))
}

async fn collect<S: Operations>(
    store: &S,
    name: &ConsumerName,
    filter: &DeadLetterFilter,
    limit: u32,
) -> Result<(Vec<DeadLetterSummary>, bool), CliError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = store.letters(name, filter, after, PAGE).await?;
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

fn letters_table(letters: &[DeadLetterSummary]) -> String {
    let row = |letter: &DeadLetterSummary| {
        vec![
            letter.key.to_string(),
            text::id(letter),
            letter.class.as_str().to_owned(),
            letter.attempts.to_string(),
            letter.origin.to_string(),
            text::cut(&text::one_line(letter), REASON_CHARS),
        ]
    };
    let rows = letters.iter().map(row).collect();
    table::plain(&["key", "id", "class", "attempts", "origin", "reason"], rows)
}

fn say_more(more: bool) {
    if more {
        output::say("there are more; see --limit");
    }
}

/// Counts dead letters that failed alike.
///
/// # Errors
/// What the store answered.
pub(super) fn groups(args: &DlqGroupsArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let filter = args.filter.filter();
    let runtime = super::super::runtime()?;
    let (groups, other) = with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let mut groups = Groups::new(GROUPS_MAX);
        let mut after = None;
        loop {
            let page = store.letters(&config.name, &filter, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            page.iter().for_each(|letter| groups.add(letter));
        }
        Ok::<_, CliError>(groups.finish())
    }))?;
    print_groups(&config, args, groups, other)
}

fn print_groups(
    config: &Config,
    args: &DlqGroupsArgs,
    mut groups: Vec<Group>,
    other: u64,
) -> Result<Exit, CliError> {
    let all: u64 = groups.iter().map(|group| group.count).sum::<u64>() + other;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let more = groups.len() > limit;
    groups.truncate(limit);
    if args.json {
        let of = |group: &Group| {
            json!({
                "group": group.alike.name().to_string(),
                "count": group.count,
                "class": group.alike.class.as_str(),
                "code": group.alike.code,
                "shape": group.alike.shape,
                "first": group.first.to_string(),
                "last": group.last.to_string(),
                "example": group.example.to_string(),
            })
        };
        let groups: Vec<Value> = groups.iter().map(of).collect();
        let object = json!({
            "consumer": config.name.as_str(), "dead_letters": all, "groups": groups, "other": other, "more": more,
        });
        output::print_json(&object)?;
        return Ok(Exit::Ok);
    }
    if groups.is_empty() {
        output::print("no dead letters\n")?;
        return Ok(Exit::Ok);
    }
    let row = |group: &Group| {
        vec![
            group.alike.name().to_string(),
            table::grouped(group.count),
            group.alike.class.as_str().to_owned(),
            group.alike.code.clone().unwrap_or_default(),
            group.first.to_string(),
            group.last.to_string(),
            group.example.to_string(),
            text::cut(&group.alike.shape, REASON_CHARS),
        ]
    };
    let rows = groups.iter().map(row).collect();
    let header = ["group", "count", "class", "code", "first", "last", "example", "reason"];
    output::print(&table::plain(&header, rows))?;
    if other > 0 {
        output::say(&format!("{} more fit into none of {GROUPS_MAX} groups", table::grouped(other)));
    }
    say_more(more);
    Ok(Exit::Ok)
}

/// Lists messages that wait for a retry.
///
/// # Errors
/// What the store answered.
pub(super) fn parked(args: &DlqParkedArgs) -> Result<Exit, CliError> {
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
        let parked: Vec<Value> = parked.iter().map(parked_object).collect();
        let object = json!({ "consumer": config.name.as_str(), "parked": parked, "more": more });
        output::print_json(&object)?;
    } else if parked.is_empty() {
        output::print("nothing is parked\n")?;
    } else {
        output::print(&parked_table(&parked))?;
        say_more(more);
    }
    Ok(Exit::Ok)
}

fn parked_object(parked: &ParkedSummary) -> Value {
    let mut object = text::summary(&parked.message);
    object["parked_at"] = json!(parked.parked_at.to_string());
    object["due_at"] = json!(parked.due_at.to_string());
    object["keeps_order"] = json!(parked.order_key.is_some());
    object
}

fn parked_table(parked: &[ParkedSummary]) -> String {
    let row = |parked: &ParkedSummary| {
        let letter = &parked.message;
        vec![
            letter.key.to_string(),
            text::id(letter),
            letter.class.as_str().to_owned(),
            letter.attempts.to_string(),
            parked.parked_at.to_string(),
            parked.due_at.to_string(),
            text::cut(&text::one_line(letter), REASON_CHARS),
        ]
    };
    let rows = parked.iter().map(row).collect();
    table::plain(&["key", "id", "class", "attempts", "parked at", "due at", "reason"], rows)
}

/// Lists what operators did.
///
/// # Errors
/// What the store answered.
pub(super) fn audit(args: &DlqAuditArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let runtime = super::super::runtime()?;
    let rows = with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        Ok::<_, CliError>(store.audit(&config.name, None, args.limit).await?)
    }))?;
    if args.json {
        output::print_json(&json!({ "consumer": config.name.as_str(), "audit": text::audit(&rows) }))?;
    } else if rows.is_empty() {
        output::print("nothing was done\n")?;
    } else {
        output::print(&show::audit_table(&rows))?;
    }
    Ok(Exit::Ok)
}
