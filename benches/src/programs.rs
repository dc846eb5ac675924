//! What is compared with what, and the bars.

use crate::bare_kafka::{self, Loop};
use crate::credits::Plan;
use crate::harness::{Bar, Figure, Options, Program, Res, Sample, Side, float};
use crate::kafka::{Topic, delete_group};
use crate::ours;
use crate::postgres::{self, Database};
use crate::wrap::Marks;
use crate::{bare_sqlite, claim, hot, process, set};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Every program, in the document's order.
pub(crate) const NAMES: [&str; 9] =
    ["batch", "set", "single", "inbox", "starts", "hot", "claim", "sqlite", "process"];

const ACCOUNTS: u64 = 1_000;
const LAG: Duration = Duration::from_millis(200);

/// A name that no other run has: topic, group and database of one run.
pub(crate) fn unique(what: &str) -> String {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    format!("hs_bench_{what}_{}_{run}", std::process::id())
}

/// The program of that name.
pub(crate) fn by_name(name: &str, options: &Options) -> Res<Option<Program>> {
    Ok(Some(match name {
        "batch" => batch(options),
        "set" => set::program(options),
        "single" => single(options),
        "inbox" => inbox(options),
        "starts" => starts(options),
        "hot" => hot(options),
        "claim" => claim::program(options),
        "sqlite" => bare_sqlite::program(options),
        "process" => process::program(options)?,
        _ => return Ok(None),
    }))
}

/// Who runs a consumer over a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Ours,
    Bare,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) who: Who,
    pub(crate) count: u64,
    pub(crate) lanes: usize,
    pub(crate) batch_max: usize,
    pub(crate) commit_every: Duration,
    pub(crate) inbox: bool,
    pub(crate) starts: bool,
    pub(crate) set: bool,
}

impl Setting {
    /// One lane, offsets every 200 ms, and everything that a consumer does by default.
    pub(crate) fn new(who: Who, count: u64, batch_max: usize) -> Self {
        let (inbox, starts, set) = (true, true, false);
        Self { who, count, lanes: 1, batch_max, commit_every: LAG, inbox, starts, set }
    }
}

/// One run from Kafka to Postgres with everything of its own; its data is checked.
pub(crate) fn kafka_run(what: &str, setting: Setting) -> Res<Sample> {
    let name = unique(what);
    let database = Database::create(&name, ACCOUNTS)?;
    let (topic, sent) = Topic::filled(&name, &Plan::new(setting.count, ACCOUNTS))?;
    let options = Loop {
        topic: topic.name.clone(),
        group: name.clone(),
        url: database.url.clone(),
        lanes: setting.lanes,
        batch_max: setting.batch_max,
        commit_every: setting.commit_every,
        inbox: setting.inbox,
        starts: setting.starts,
        set: setting.set,
        count: Some(sent.count),
    };
    let marks = Arc::new(Marks::default());
    let before = database.counters()?;
    let cpu = process::cpu_seconds();
    match setting.who {
        Who::Ours => ours::run_kafka(&options, &marks, std::future::pending())?,
        Who::Bare => bare_kafka::run(&options, &marks, || false).map(drop)?,
    }
    let cpu = process::cpu_seconds() - cpu;
    let mut sample = Sample::timed(sent.count, marks.seconds().ok_or("nothing was committed")?);
    sample.set("transactions_per_message", float(marks.commits()) / float(sent.count));
    sample.set("cpu_us_per_message", cpu * 1e6 / float(sent.count));
    if setting.lanes == 1 {
        marks.phases(&mut sample);
    }
    database.settle_counters()?;
    database.counters()?.since(before, sent.count, &mut sample);
    database.check(&sent, setting.inbox)?;
    delete_group(&name);
    Ok(sample)
}

fn side(label: &str, what: &'static str, setting: Setting) -> Side {
    Side::new(label, move || kafka_run(what, setting))
}

fn statements() -> Vec<(&'static str, String)> {
    vec![
        ("effects", format!("{}; {}", postgres::UPDATE, postgres::INSERT)),
        ("partitions", crate::kafka::PARTITIONS.to_string()),
        ("accounts", ACCOUNTS.to_string()),
        ("queue", "16 MiB, half of it librdkafka's".into()),
    ]
}

fn batch(options: &Options) -> Program {
    let count = options.count(100_000, 10_000);
    let of = |who, lanes| Setting { lanes, ..Setting::new(who, count, 500) };
    let mut settings = statements();
    settings.push(("batch_max", "500".into()));
    settings.push(("commit_every", "200ms".into()));
    settings.push(("messages", count.to_string()));
    Program {
        name: "batch",
        title: "Kafka to Postgres, two statements a message, 500 messages a transaction",
        about: "The loop beside it pipelines all statements of a batch, as Handstamp does.",
        settings,
        sides: vec![
            side("ours 1 lane", "batch", of(Who::Ours, 1)),
            side("bare 1 lane", "batch", of(Who::Bare, 1)),
            side("ours 2 lanes", "batch", of(Who::Ours, 2)),
            side("bare 2 lanes", "batch", of(Who::Bare, 2)),
        ],
        figures: vec![
            Figure::ratio(
                "batch of 500, one lane: ours / bare",
                "ours 1 lane",
                "bare 1 lane",
                Bar::AtLeast(0.9),
            ),
            Figure::ratio("batch of 500, two lanes: ours / bare", "ours 2 lanes", "bare 2 lanes", Bar::None),
        ],
    }
}

fn single(options: &Options) -> Program {
    let count = options.count(5_000, 500);
    let of = |who, commit_every| Setting { commit_every, ..Setting::new(who, count, 1) };
    let mut settings = statements();
    settings.push(("batch_max", "1".into()));
    settings.push(("messages", count.to_string()));
    Program {
        name: "single",
        title: "Kafka to Postgres, one transaction a message",
        about: "Offsets are committed after each transaction (0s) or every 200 ms. The loop commits \
                synchronously; Handstamp sends the commit and goes on, so with 0s one commit may cover several \
                transactions that ended while the one before was under way.",
        settings,
        sides: vec![
            side("ours 0s", "single", of(Who::Ours, Duration::ZERO)),
            side("bare 0s", "single", of(Who::Bare, Duration::ZERO)),
            side("ours 200ms", "single", of(Who::Ours, LAG)),
            side("bare 200ms", "single", of(Who::Bare, LAG)),
        ],
        figures: vec![
            Figure::ratio(
                "one message a transaction, commit_every 0s: ours / bare",
                "ours 0s",
                "bare 0s",
                Bar::AtLeast(0.93),
            ),
            Figure::ratio(
                "one message a transaction, commit_every 200ms: ours / bare",
                "ours 200ms",
                "bare 200ms",
                Bar::AtLeast(0.93),
            ),
        ],
    }
}

fn inbox(options: &Options) -> Program {
    let count = options.count(5_000, 500);
    let of = |who, inbox| Setting { inbox, ..Setting::new(who, count, 1) };
    let mut settings = statements();
    settings.push(("batch_max", "1".into()));
    settings.push(("commit_every", "200ms".into()));
    settings.push(("messages", count.to_string()));
    Program {
        name: "inbox",
        title: "What the inbox costs at one transaction a message",
        about: "Without the inbox Handstamp runs on a bench-only store that claims nothing, and the loop leaves \
                its claim out; nothing then protects against redelivery.",
        settings,
        sides: vec![
            side("ours with inbox", "inbox", of(Who::Ours, true)),
            side("ours without", "inbox", of(Who::Ours, false)),
            side("bare with inbox", "inbox", of(Who::Bare, true)),
            side("bare without", "inbox", of(Who::Bare, false)),
        ],
        figures: vec![
            Figure::ratio("inbox / no inbox, ours", "ours with inbox", "ours without", Bar::AtLeast(0.9)),
            Figure::ratio("inbox / no inbox, bare", "bare with inbox", "bare without", Bar::None),
            Figure::ratio("ours with inbox / bare without", "ours with inbox", "bare without", Bar::None),
        ],
    }
}

fn starts(options: &Options) -> Program {
    let many = options.count(100_000, 10_000);
    let few = options.count(10_000, 500);
    let kafka = |label: &str, batch_max, starts| {
        let count = if batch_max == 1 { few } else { many };
        side(label, "starts", Setting { starts, ..Setting::new(Who::Ours, count, batch_max) })
    };
    let sqlite = |label: &str, batch_max, starts| {
        let count = if batch_max == 1 { few } else { many };
        Side::new(label, move || {
            bare_sqlite::run(count, |folder, marks| ours::run_sqlite(folder, batch_max, starts, marks))
        })
    };
    let mut settings = statements();
    settings.push(("commit_every", "200ms".into()));
    settings.push(("messages", format!("{many}; {few} at one message a transaction")));
    let ratio =
        |name: &str, with: &str, without: &str, bar| Figure::ratio(name, with, without, Bar::AtLeast(bar));
    Program {
        name: "starts",
        title: "What start records cost",
        about: "With `max_crashes = 0` nothing is recorded before a transaction, and a message that kills its \
                process is tried for ever.",
        settings,
        sides: vec![
            kafka("Postgres 500 with", 500, true),
            kafka("Postgres 500 without", 500, false),
            kafka("Postgres 1 with", 1, true),
            kafka("Postgres 1 without", 1, false),
            sqlite("SQLite 500 with", 500, true),
            sqlite("SQLite 500 without", 500, false),
            sqlite("SQLite 1 with", 1, true),
            sqlite("SQLite 1 without", 1, false),
        ],
        figures: vec![
            ratio(
                "start records / none, Kafka to Postgres, batch of 500",
                "Postgres 500 with",
                "Postgres 500 without",
                0.97,
            ),
            ratio(
                "start records / none, Kafka to Postgres, one message",
                "Postgres 1 with",
                "Postgres 1 without",
                0.92,
            ),
            ratio(
                "start records / none, file to SQLite, batch of 500",
                "SQLite 500 with",
                "SQLite 500 without",
                0.97,
            ),
            ratio(
                "start records / none, file to SQLite, one message",
                "SQLite 1 with",
                "SQLite 1 without",
                0.92,
            ),
        ],
    }
}

fn hot(options: &Options) -> Program {
    let count = options.count(100_000, 5_000);
    let side = |label: &str, kind: &'static str, processes| {
        Side::new(label, move || hot::run(kind, processes, count))
    };
    let mut settings = statements();
    settings.retain(|(name, _)| *name != "accounts");
    settings.push(("accounts", format!("{}, keys unrelated to them", hot::ACCOUNTS)));
    settings.push(("batch_max", "500".into()));
    settings.push(("messages", count.to_string()));
    Program {
        name: "hot",
        title: "Two processes of one group on hot accounts",
        about: "Batches of two processes update the same few rows in different orders: without care they \
                deadlock. The loop only runs a deadlocked batch again.",
        settings,
        sides: vec![
            side("ours 1 process", "ours", 1),
            side("ours 2 processes", "ours", 2),
            side("bare 1 process", "bare", 1),
            side("bare 2 processes", "bare", 2),
        ],
        figures: vec![
            Figure::ratio(
                "two processes / one, hot accounts, ours",
                "ours 2 processes",
                "ours 1 process",
                Bar::AtLeast(0.8),
            ),
            Figure::ratio(
                "two processes / one, hot accounts, bare",
                "bare 2 processes",
                "bare 1 process",
                Bar::None,
            ),
        ],
    }
}
