//! The files of a cell: the messages, the user's own tables, the pipeline.
//!
//! The same lines are the file that is read and what is published to the topic, and they are the
//! producer's log: everything that was sent, and nothing else.

use super::outcome::{SourceKind, StoreKind};
use super::plan::{BATCH_MAX, Cell, Operation, is_revoke};
use super::run::Options;
use crate::error::{LabError, Result};
use crate::workload::{Credit, Plan};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Good messages of a cell.
const MESSAGES: u64 = 240;
/// The same where a revoke should find something at work.
const REVOKE_MESSAGES: u64 = 600;
/// Accounts of a cell.
const ACCOUNTS: u64 = 30;
/// Where the late and the bad messages stand among the lines: at the beginning of a file's third batch.
const BAD_AT: usize = 2 * BATCH_MAX as usize;
/// Bad for two reasons: no id, and an account that is not there; one of these for each kill, so that something is
/// parked and retried then.
const NO_ID: &str = r#"{"account_id":1,"amount":1,"note":"no id"}"#;
const NO_ACCOUNT: i64 = 99_999;
/// Accounts that open late, each with one message, which fails until then: so many that every partition of a
/// topic has one at its beginning, and so few that a file's third batch holds them all.
const LATE: u64 = 24;
const LATE_IN_A_FILE: u64 = 4;
/// They open once so many effects are there: while a file's third batch runs, and as soon as a topic's first
/// partition has applied something.
const OPENS_AT: u64 = 22;
const OPENS_AT_ON_KAFKA: u64 = 2;
/// They open when the operator opens them.
const NEVER: u64 = 1_000_000_000;
/// The lines of the late messages alone: delivered once more after an operator's command.
pub(super) const LATE_LINES: &str = "late.jsonl";
/// All lines, in a file's cells the source itself.
pub(super) const LINES: &str = "lines.jsonl";
/// The environment variables of the pipeline.
pub(super) const DATABASE_URL: &str = "DATABASE_URL";

/// A cell's files, and what was sent with them.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    /// Good messages, resends included.
    pub(super) sent: Vec<Credit>,
    /// Bad messages that must be dead letters in the end.
    pub(super) bad: u64,
    /// Messages that an operator's command is to work on.
    pub(super) operated: u64,
}

impl Files {
    /// Writes them into a new folder. `name` is that of the cell's topic and schema. Each further kill gets
    /// more messages, so that something is left for it.
    pub(super) fn write(cell: Cell, options: &Options, number: usize, name: &str) -> Result<Self> {
        let folder = options.folder.join(format!("{number:03}"));
        std::fs::create_dir_all(&folder).map_err(|error| LabError::file("make", &folder, error))?;
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            std::fs::write(&path, text).map_err(|error| LabError::file("write", &path, error))
        };
        let once = if is_revoke(cell.point) { REVOKE_MESSAGES } else { MESSAGES };
        let kills = options.kills;
        let messages = once + u64::from(kills.saturating_sub(1)) * once / 3;
        let seed = options.seed.wrapping_add(number as u64);
        let plan = Plan { seed, messages, accounts: ACCOUNTS, resends: messages / 20 };
        let mut sent: Vec<Credit> = plan.order().map(|n| plan.credit(n)).collect();
        let (late, operation) = (late(cell, kills), Operation::of(cell.point));
        write(LINES, &lines(cell.source, &sent, &late, kills))?;
        write(LATE_LINES, &late.iter().map(line).collect::<String>())?;
        write("setup.sql", &setup(cell, late.len() as u64, name))?;
        write("pipeline.toml", &toml(cell, options, name))?;
        let (bad, mut operated) = (1 + u64::from(kills), 0);
        if operation.is_some() {
            operated = late.len() as u64;
        }
        if operation != Some(Operation::Discard) {
            sent.extend(late);
        }
        Ok(Self { folder, sent, bad, operated })
    }
}

/// The messages to accounts that open late.
fn late(cell: Cell, kills: u32) -> Vec<Credit> {
    let count = match (Operation::of(cell.point), cell.source) {
        // Something is left for each kill.
        (Some(_), _) => LATE * u64::from(kills),
        (None, SourceKind::Kafka) => LATE,
        (None, SourceKind::File) => LATE_IN_A_FILE,
    };
    let amount = |n| i64::try_from(n % 90).unwrap_or_default() + 1;
    (1..=count)
        .map(|n| Credit {
            id: format!("late-{n}"),
            account: i64::try_from(ACCOUNTS + n).unwrap_or(i64::MAX),
            amount: amount(n),
        })
        .collect()
}

fn line(credit: &Credit) -> String {
    let Credit { id, account, amount } = credit;
    format!("{{\"event_id\":\"{id}\",\"account_id\":{account},\"amount\":{amount}}}\n")
}

fn lines(source: SourceKind, sent: &[Credit], late: &[Credit], kills: u32) -> String {
    let kills = kills.max(1) as usize;
    let each = sent.len() / kills;
    let late_at = if source == SourceKind::Kafka { 0 } else { BAD_AT };
    let mut text = String::new();
    for (at, credit) in sent.iter().enumerate() {
        if at == late_at {
            text.extend(late.iter().map(line));
        }
        if at == BAD_AT {
            let _ = writeln!(text, "{NO_ID}");
        }
        if let Some(past) = at.checked_sub(BAD_AT)
            && past.is_multiple_of(each)
            && past / each < kills
        {
            let id = format!("no-account-{}", past / each);
            text.push_str(&line(&Credit { id, account: NO_ACCOUNT, amount: 1 }));
        }
        text.push_str(&line(credit));
    }
    text
}

/// The schema of the user's own tables in Postgres.
pub(super) fn own_schema(name: &str) -> String {
    format!("{name}_own")
}

/// An account takes credits once so many effects are there: until then a check fails.
fn setup(cell: Cell, late: u64, name: &str) -> String {
    let opens_at = match (Operation::of(cell.point), cell.source) {
        (Some(_), _) => NEVER,
        (None, SourceKind::Kafka) => OPENS_AT_ON_KAFKA,
        (None, SourceKind::File) => OPENS_AT,
    };
    let all = ACCOUNTS + late;
    let opens_at = format!("CASE WHEN id > {ACCOUNTS} THEN {opens_at} ELSE 0 END");
    let rows = format!("id, {opens_at}, {opens_at}");
    match cell.store {
        StoreKind::Sqlite => format!(
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0,
                 opens_at INTEGER NOT NULL, effects INTEGER NOT NULL, CHECK (effects >= opens_at));
             CREATE TABLE ledger (event_id TEXT NOT NULL, account_id INTEGER NOT NULL, amount INTEGER NOT NULL);
             WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {all})
             INSERT INTO accounts (id, opens_at, effects) SELECT {rows} FROM n;\n"
        ),
        StoreKind::Postgres => {
            let own = own_schema(name);
            format!(
                "CREATE SCHEMA {own};
                 CREATE TABLE {own}.accounts (id int8 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0,
                     opens_at int8 NOT NULL, effects int8 NOT NULL, CHECK (effects >= opens_at));
                 CREATE TABLE {own}.ledger (event_id text NOT NULL, account_id int8 NOT NULL, amount int8 NOT NULL);
                 INSERT INTO {own}.accounts (id, opens_at, effects) SELECT {rows} FROM generate_series(1, {all}) AS n (id);\n"
            )
        }
    }
}

fn toml(cell: Cell, options: &Options, name: &str) -> String {
    let (brokers, session_ms) = (options.bootstrap(), options.session_timeout_ms);
    let heartbeat_ms = (session_ms / 10).min(300);
    let source = match cell.source {
        SourceKind::File => {
            format!("[source]\ntype = \"file\"\npath = \"{LINES}\"\n\n[identity]\nfield = \"/event_id\"\n")
        }
        SourceKind::Kafka => format!(
            "[source]\ntype = \"kafka\"\nbrokers = \"{brokers}\"\ntopics = [\"{name}\"]\ngroup = \"{name}_group\"\n\
             commit_every = \"0s\"\n\n[source.options]\n\"session.timeout.ms\" = \"{session_ms}\"\n\"heartbeat.interval.ms\" = \"{heartbeat_ms}\"\n\n\
             [identity]\nheader = \"event_id\"\n"
        ),
    };
    let (store, own) = match cell.store {
        StoreKind::Sqlite => ("type = \"sqlite\"\npath = \"store.db\"\n".to_owned(), String::new()),
        StoreKind::Postgres => (
            format!("type = \"postgres\"\nurl = \"${{{DATABASE_URL}}}\"\nschema = \"{name}\"\n"),
            format!("{}.", own_schema(name)),
        ),
    };
    let batch_max = if is_revoke(cell.point) { 1 } else { BATCH_MAX };
    // What an operator works on is to be dead soon: it is given up in place. Otherwise it is parked and retried.
    // Those without an account are dead at their tenth attempt; the late ones may wait for a group that misses a
    // killed member.
    let attempts = match (Operation::of(cell.point), cell.store) {
        (Some(_), _) => "max_attempts = 2",
        (None, StoreKind::Sqlite) => "on.275.max_attempts = 100000",
        (None, StoreKind::Postgres) => "on.23514.max_attempts = 100000",
    };
    // No message is to blame for the lab's kills.
    let crashes = options.kills.saturating_add(3);
    format!(
        "name = \"matrix\"\n\n[consumer]\nbatch_max = {batch_max}\n\n[retry]\n{attempts}\nmax_crashes = {crashes}\nwait = \"10ms\"\nbackoff_base = \"10ms\"\nbackoff_cap = \"50ms\"\n\n{source}\n\
         [store]\n{store}setup = \"setup.sql\"\n\n\
         [[effect]]\nsql = \"UPDATE {own}accounts SET balance = balance + :amount, effects = (SELECT count(*) FROM {own}ledger) WHERE id = :account_id\"\nexpect_rows = 1\n\n\
         [[effect]]\nsql = \"INSERT INTO {own}ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)\"\n"
    )
}
