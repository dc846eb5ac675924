//! `dlq list`, `dlq groups`, `dlq audit`: what is there, without its bytes.

use super::{PAGE, say_more, show, text};
use crate::backend::{Backend, Operations, with_backend};
use crate::cli::dlq::{DlqAuditArgs, DlqGroupsArgs, DlqListArgs};
use crate::config::{self, Config, Uses};
use crate::dlq::groups::{GROUPS_MAX, Group, Groups};
use crate::exit::{CliError, Exit};
use crate::output::{self, table, width};
use handstamp_core::{ConsumerName, Timestamp};
use handstamp_stores::redrive::{AuditRow, DeadLetterFilter};
use handstamp_stores::rows::DeadLetterSummary;
use serde_json::{Value, json};

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
            output::print(&letters_table(&letters, width::columns()))?;
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

/// Two lines a dead letter: where it came from, and below its id and reason.
fn letters_table(letters: &[DeadLetterSummary], columns: usize) -> String {
    let row = |letter: &DeadLetterSummary| {
        let cells = vec![
            letter.key.to_string(),
            letter.class.as_str().to_owned(),
            letter.attempts.to_string(),
            letter.origin.to_string(),
        ];
        (cells, text::id_and_reason(letter, columns))
    };
    let rows = letters.iter().map(row).collect();
    table::with_below(&["key", "class", "attempts", "origin"], text::ID_AND_REASON, rows, columns)
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
    output::print(&if args.wide { wide(&groups) } else { narrow(&groups, width::columns()) })?;
    if other > 0 {
        output::say(&format!("{} more fit into none of {GROUPS_MAX} groups", table::grouped(other)));
    }
    say_more(more);
    Ok(Exit::Ok)
}

fn cells(group: &Group, time: fn(Timestamp) -> String) -> Vec<String> {
    vec![
        group.alike.name().to_string(),
        table::grouped(group.count),
        group.alike.class.as_str().to_owned(),
        group.alike.code.clone().unwrap_or_default(),
        time(group.first),
        time(group.last),
    ]
}

/// A line a group, with the whole reason.
fn wide(groups: &[Group]) -> String {
    let row = |group: &Group| {
        let cells = cells(group, |time| time.to_string());
        [cells, vec![group.example.to_string(), group.alike.shape.clone()]].concat()
    };
    let header = ["group", "count", "class", "code", "first", "last", "example", "reason"];
    table::plain(&header, groups.iter().map(row).collect())
}

/// Two lines a group, which fit a terminal: below its counts an example, and as much of the reason as there is
/// room for.
fn narrow(groups: &[Group], columns: usize) -> String {
    let row = |group: &Group| {
        let below = format!("    {}  {}", group.example, cause(&group.alike.shape));
        (cells(group, text::to_the_second), format!("{}\n", width::cut(&below, columns)))
    };
    let header = ["group", "count", "class", "code", "first", "last"];
    table::with_below(&header, "", groups.iter().map(row).collect(), columns)
}

/// The reason without the statement that an effect's number already names: what went wrong comes first.
fn cause(shape: &str) -> String {
    let numbered = |head: &str| head.strip_prefix("effect ").is_some_and(|n| n.parse::<u32>().is_ok());
    let Some((head, rest)) = shape.split_once(" (").filter(|(head, _)| numbered(head)) else {
        return shape.to_owned();
    };
    // A long statement is cut, with its parentheses.
    let end = match rest.find("…)") {
        Some(at) => Some(at + "…)".len()),
        None => closing(rest),
    };
    end.map_or_else(|| shape.to_owned(), |end| format!("{head}{}", &rest[end..]))
}

/// Behind the parenthesis that ends what stands within one.
fn closing(within: &str) -> Option<usize> {
    let mut open = 1;
    within.char_indices().find_map(|(at, c)| {
        open += i32::from(c == '(') - i32::from(c == ')');
        (open == 0).then_some(at + 1)
    })
}

/// Lists what operators did.
///
/// # Errors
/// What the store answered.
pub(super) fn audit(args: &DlqAuditArgs) -> Result<Exit, CliError> {
    let config = config::load(&args.file, Uses::Store)?;
    let filter = args.filter();
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let runtime = super::super::runtime()?;
    let (rows, more) = with_backend!(&config, backend => runtime.block_on(async {
        let store = backend.existing(&config).await?;
        let mut found: Vec<AuditRow> = Vec::new();
        while found.len() <= limit {
            let page = store.audit_where(&config.name, &filter, found.last().map(|row| row.number), PAGE).await?;
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        let more = found.len() > limit;
        found.truncate(limit);
        Ok::<_, CliError>((found, more))
    }))?;
    if args.json {
        let object = json!({ "consumer": config.name.as_str(), "audit": text::audit(&rows), "more": more });
        output::print_json(&object)?;
    } else if rows.is_empty() {
        output::print("nothing was done\n")?;
    } else {
        output::print(&show::audit_table(&rows, width::columns()))?;
        say_more(more);
    }
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dlq::groups::tests::letter;

    #[test]
    fn a_group_shows_its_cause_and_not_the_statement() {
        for (shape, shown) in [
            ("effect 2 (INSERT INTO l (a, b) V…): violates fore…", "effect 2: violates fore…"),
            ("effect 1 (UPDATE a SET b = max(b, 1)): no", "effect 1: no"),
            ("effect 1 (UPDATE a) touched # rows", "effect 1 touched # rows"),
            ("effect 1 (UPDATE a SET (b", "effect 1 (UPDATE a SET (b"),
            ("effect none (a): b", "effect none (a): b"),
            ("the handler (mine): no", "the handler (mine): no"),
        ] {
            assert_eq!(cause(shape), shown);
        }
    }

    #[test]
    fn groups_fit_a_terminal_with_their_example_and_wide_ones_say_all() {
        let mut groups = Groups::new(10);
        let reason = format!("the account \u{fc} of the order is missing {}", "and so on ".repeat(30));
        for number in 0..3 {
            groups.add(&letter(number, 1_700_000_000_000 + i64::from(number), Some("23503"), &reason));
        }
        groups.add(&letter(9, 1_700_000_000_000, None, "short"));
        let (groups, _) = groups.finish();
        for columns in [80, 100] {
            let shown = narrow(&groups, columns);
            assert_eq!(shown.lines().count(), 5, "{shown}");
            assert!(shown.lines().all(|line| width::width_of(line) <= columns), "{shown}");
            for group in &groups {
                let name = group.alike.name().to_string();
                assert!(shown.contains(&group.example.to_string()) && shown.contains(&name));
            }
            assert!(shown.contains("short") && shown.contains('…'), "{shown}");
        }
        let wide = wide(&groups);
        assert_eq!(wide.lines().count(), 3, "{wide}");
        assert!(groups.iter().all(|group| wide.contains(group.alike.shape.trim_end())), "{wide}");
    }
}
