//! A level 1 consumer as a process of its own, with one thing bent on request.
//!
//! `subject key=value …`: consumer, source=file|kafka, path or topic and group, store=sqlite|postgres,
//! db (path or URL), state, bend-store, bend-source, batch, lanes, pause-us, idle-ms, attempts, shutdown-ms,
//! handler-ms (the server ends an idle transaction after twice as long), forgive=1 (messages that ask to
//! fail do not), option.KEY (a setting of librdkafka), hang-ms (at SIGUSR1 the thread of the Kafka client
//! polls nothing for so long), poison (the id of a message that ends the process) and poison-by=abort|overflow|loop|wait,
//! poison-after-ms (so long it is in hand before), max-crashes,
//! immediate (how many of the attempts are made in place), backoff-ms (the longest wait of a parked message),
//! version and version-key (JSON pointers), inbox=0, idempotent=1.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "test harness")]

use handstamp::file::{FileOptions, FileSource};
use handstamp::kafka::hooks::Hooks;
use handstamp::kafka::{KafkaOptions, KafkaSource};
use handstamp::postgres::{PostgresOptions, PostgresStore};
use handstamp::sqlite::{SqliteOptions, SqliteStore};
use handstamp::{
    Consumer, ConsumerName, ConsumerOptions, Identity, Message, Report, RunError, Store, VersionGuard,
    json::Pointer,
};
use handstamp_e2e::{bent_store, money};
use handstamp_lab::bent::{BentSource, BentStore, SettleBend};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn text(&self, key: &str, default: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| default.to_owned())
    }

    fn number(&self, key: &str, default: u64) -> u64 {
        self.0.get(key).map_or(default, |value| value.parse().unwrap())
    }

    fn source(&self) -> (BentSource, Identity) {
        let bend = self.settle_bend();
        if self.text("source", "file") == "kafka" {
            let commit_every = Duration::from_millis(self.number("commit-every-ms", 200));
            let mut options =
                KafkaOptions::new(self.text("brokers", ""), self.text("group", ""), [self.text("topic", "")])
                    .with_commit_every(commit_every);
            if self.text("option.group.protocol", "classic") == "classic" {
                options = options.option("session.timeout.ms", "1500").option("heartbeat.interval.ms", "300");
            }
            for (key, value) in &self.0 {
                if let Some(key) = key.strip_prefix("option.") {
                    options = options.option(key, value);
                }
            }
            let hooks = Arc::new(Hooks::default());
            if let Some(ms) = self.0.get("hang-ms") {
                hang_at_sigusr1(Arc::clone(&hooks), ms.parse().unwrap());
            }
            let source = KafkaSource::with_hooks(options, hooks);
            (BentSource::new(Box::new(source), bend), Identity::Header("event_id".into()))
        } else {
            let state = self.text("state", ".");
            let options = FileOptions::new(self.text("path", ""), self.consumer()).with_state_dir(state);
            let source = BentSource::new(Box::new(FileSource::new(options)), bend);
            (source, Identity::Field(Pointer::parse("/id").unwrap()))
        }
    }

    fn settle_bend(&self) -> Option<SettleBend> {
        match self.text("bend-source", "none").as_str() {
            "none" => None,
            "settle-first" => Some(SettleBend::First),
            "lose-settles" => Some(SettleBend::Lost),
            other => panic!("no such bend: {other}"),
        }
    }

    fn consumer(&self) -> ConsumerName {
        ConsumerName::new(&self.text("consumer", "wallet")).unwrap()
    }

    fn options(&self) -> ConsumerOptions {
        let mut options = ConsumerOptions {
            batch_max: usize::try_from(self.number("batch", 500)).unwrap(),
            concurrency: usize::try_from(self.number("lanes", 1)).unwrap(),
            shutdown_timeout: Duration::from_millis(self.number("shutdown-ms", 25_000)),
            handler_timeout: Duration::from_millis(self.number("handler-ms", 30_000)),
            ..ConsumerOptions::default()
        };
        let attempts = u32::try_from(self.number("attempts", 3)).unwrap();
        // All of them in place: none is parked unless it is asked for.
        options.policy.retry.immediate =
            u32::try_from(self.number("immediate", u64::from(attempts))).unwrap();
        options.policy.retry.max_attempts = attempts;
        if let Some(ms) = self.0.get("backoff-ms") {
            let backoff = &mut options.policy.retry.backoff;
            backoff.cap = Duration::from_millis(ms.parse().unwrap());
            backoff.base = backoff.cap;
        }
        let max_crashes = u64::from(options.policy.retry.max_crashes);
        options.policy.retry.max_crashes = u32::try_from(self.number("max-crashes", max_crashes)).unwrap();
        let field = |key: &str| self.0.get(key).map(|text| Pointer::parse(text).unwrap());
        options.version = field("version").map(|version| VersionGuard { version, key: field("version-key") });
        options.inbox = self.number("inbox", 1) == 1;
        options.naturally_idempotent = self.number("idempotent", 0) == 1;
        options.until_idle = self.0.get("idle-ms").map(|ms| Duration::from_millis(ms.parse().unwrap()));
        options
    }

    fn poison(&self) -> Poison {
        let after = Duration::from_millis(self.number("poison-after-ms", 0));
        Poison { id: self.text("poison", ""), by: self.text("poison-by", "abort"), after }
    }

    fn bent<S: Store>(&self, store: S) -> BentStore<S, bent_store::Bent> {
        bent_store::bent(store, bent_store::Bend::parse(&self.text("bend-store", "none")))
    }
}

/// A message that ends the process, or keeps it until somebody else ends it.
struct Poison {
    id: String,
    by: String,
    after: Duration,
}

impl Poison {
    async fn meet(&self, message: &Message) {
        if message.id().as_bytes() != self.id.as_bytes() {
            return;
        }
        tracing::info!("poison in hand");
        tokio::time::sleep(self.after).await;
        match self.by.as_str() {
            "abort" => std::process::abort(),
            "overflow" => drop(overflow(0)),
            "loop" => loop {
                std::hint::spin_loop();
            },
            "wait" => std::future::pending().await,
            other => panic!("nothing ends by {other}"),
        }
    }
}

/// Deeper than any stack.
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { overflow(depth + 1) + frame[0] }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let pairs = std::env::args().skip(1).map(|argument| {
        let (key, value) = argument.split_once('=').unwrap_or_else(|| panic!("key=value, not {argument}"));
        (key.to_owned(), value.to_owned())
    });
    let arguments = Arguments(pairs.collect());
    let report = if arguments.text("store", "sqlite") == "postgres" {
        run_postgres(&arguments).await
    } else {
        run_sqlite(&arguments).await
    };
    match report {
        Ok(report) => tracing::info!(counts = ?report.counts, notices = ?report.notices, "report"),
        Err(error) => {
            tracing::error!(%error, kind = ?error.kind, "failed");
            std::process::exit(1);
        }
    }
}

/// The library's own thread goes on with its heartbeats meanwhile, and so does the engine with its work.
fn hang_at_sigusr1(hooks: Arc<Hooks>, ms: u64) {
    let mut asked = signal(SignalKind::user_defined1()).unwrap();
    tokio::spawn(async move {
        while asked.recv().await.is_some() {
            hooks.stall_ms.store(ms, Ordering::Relaxed);
            tracing::info!("nothing is polled for {ms} ms");
        }
    });
}

async fn stop() {
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    terminate.recv().await;
}

async fn run_postgres(arguments: &Arguments) -> Result<Report, RunError> {
    let mut options = PostgresOptions::parse(&arguments.text("db", "")).unwrap();
    options.idle_in_transaction_timeout = arguments.options().handler_timeout * 2;
    let store = arguments.bent(PostgresStore::new(options).unwrap());
    let pause = Duration::from_micros(arguments.number("pause-us", 0));
    let forgive = arguments.number("forgive", 0) == 1;
    let (source, identity) = arguments.source();
    let poison = arguments.poison();
    Consumer::builder(arguments.consumer())
        .source(source, identity)
        .store(store)
        .handler_fn(async move |tx: &mut handstamp::postgres::Tx, message: &Message| {
            poison.meet(message).await;
            money::apply_postgres(tx, message, pause, forgive).await
        })
        .options(arguments.options())
        .run_local(stop())
        .await
}

async fn run_sqlite(arguments: &Arguments) -> Result<Report, RunError> {
    let store = SqliteStore::open(SqliteOptions::new(arguments.text("db", ""))).await.unwrap();
    let store = arguments.bent(store);
    let forgive = arguments.number("forgive", 0) == 1;
    let (source, identity) = arguments.source();
    let poison = arguments.poison();
    Consumer::builder(arguments.consumer())
        .source(source, identity)
        .store(store)
        .handler_fn(async move |tx: &mut handstamp::sqlite::Tx, message: &Message| {
            poison.meet(message).await;
            money::apply_sqlite(tx, message, forgive)
        })
        .options(arguments.options())
        .run_local(stop())
        .await
}
