//! The files of a cell: the messages, the user's own tables, the pipeline.
//!
//! The same lines are the file that is read and what is published to the topic, and they are the
//! producer's log: everything that was sent, and nothing else.

use super::outcome::{SourceKind, StoreKind};
use super::plan::{BATCH_MAX, Cell, is_revoke};
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
/// Where the bad messages stand among the lines.
const BAD_AT: usize = 25;
/// Bad for two reasons: an account that is not there, and no id.
const BAD: [&str; 2] = [
    r#"{"event_id":"bad-account","account_id":99999,"amount":1}"#,
    r#"{"account_id":1,"amount":1,"note":"no id"}"#,
];
/// The environment variables of the pipeline.
pub(super) const DATABASE_URL: &str = "DATABASE_URL";

/// A cell's files, and what was sent with them.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) folder: PathBuf,
    /// Good messages, resends included.
    pub(super) sent: Vec<Credit>,
    /// Bad messages.
    pub(super) bad: u64,
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
        let messages = once + u64::from(options.kills.saturating_sub(1)) * once / 3;
        let seed = options.seed.wrapping_add(number as u64);
        let plan = Plan { seed, messages, accounts: ACCOUNTS, resends: messages / 20 };
        let sent: Vec<Credit> = plan.order().map(|n| plan.credit(n)).collect();
        write("lines.jsonl", &lines(&sent))?;
        write("setup.sql", &setup(cell.store, name))?;
        write("pipeline.toml", &toml(cell, options, name))?;
        Ok(Self { folder, sent, bad: BAD.len() as u64 })
    }
}

fn lines(sent: &[Credit]) -> String {
    let mut text = String::new();
    for (at, credit) in sent.iter().enumerate() {
        if at == BAD_AT {
            for bad in BAD {
                let _ = writeln!(text, "{bad}");
            }
        }
        let Credit { id, account, amount } = credit;
        let _ = writeln!(text, r#"{{"event_id":"{id}","account_id":{account},"amount":{amount}}}"#);
    }
    text
}

/// The schema of the user's own tables in Postgres.
pub(super) fn own_schema(name: &str) -> String {
    format!("{name}_own")
}

fn setup(store: StoreKind, name: &str) -> String {
    match store {
        StoreKind::Sqlite => format!(
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL DEFAULT 0);
             CREATE TABLE ledger (event_id TEXT NOT NULL, account_id INTEGER NOT NULL, amount INTEGER NOT NULL);
             WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {ACCOUNTS})
             INSERT INTO accounts (id) SELECT id FROM n;\n"
        ),
        StoreKind::Postgres => {
            let own = own_schema(name);
            format!(
                "CREATE SCHEMA {own};
                 CREATE TABLE {own}.accounts (id int8 PRIMARY KEY, balance int8 NOT NULL DEFAULT 0);
                 CREATE TABLE {own}.ledger (event_id text NOT NULL, account_id int8 NOT NULL, amount int8 NOT NULL);
                 INSERT INTO {own}.accounts (id) SELECT generate_series(1, {ACCOUNTS});\n"
            )
        }
    }
}

fn toml(cell: Cell, options: &Options, name: &str) -> String {
    let (brokers, session_ms) = (options.bootstrap(), options.session_timeout_ms);
    let heartbeat_ms = (session_ms / 10).min(300);
    let source = match cell.source {
        SourceKind::File => {
            "[source]\ntype = \"file\"\npath = \"lines.jsonl\"\n\n[identity]\nfield = \"/event_id\"\n"
                .to_owned()
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
    format!(
        "name = \"matrix\"\n\n[consumer]\nbatch_max = {batch_max}\n\n[retry]\nmax_attempts = 2\nwait = \"10ms\"\n\n{source}\n\
         [store]\n{store}setup = \"setup.sql\"\n\n\
         [[effect]]\nsql = \"UPDATE {own}accounts SET balance = balance + :amount WHERE id = :account_id\"\nexpect_rows = 1\n\n\
         [[effect]]\nsql = \"INSERT INTO {own}ledger (event_id, account_id, amount) VALUES (:message_id, :account_id, :amount)\"\n"
    )
}
