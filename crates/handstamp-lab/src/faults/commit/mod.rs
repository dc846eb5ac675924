//! `lab faults commit`: the connection between subject and database is cut at every byte position of the
//! COMMIT exchange and of the messages around it.
//!
//! ```text
//!  rehearsal (no fault) ─► layout ─► targets ─► lanes: subject ─► proxy with taps ─► Postgres
//!                                                                   │ struck             │ ledger
//!                                                                   └───────► history ◄──┘
//! ```
//!
//! The verdict comes from the credits written for the subjects and from the database alone (`checker`). Whether
//! a transaction that was cut was committed is read from the database too: each ledger line keeps the
//! connection and the transaction that wrote it, and the tap knows how many the connection had begun.
//! The control is the same without an inbox: cut in the same places, it must double.
//!
//! | file | owns |
//! |---|---|
//! | `aim` | where to cut |
//! | `tap`, `wire` | what passes, and the cut |
//! | `subjects` | the consumers |
//! | `row` | what a history proves |

mod aim;
mod row;
mod subjects;
mod tap;
mod wire;

pub(crate) use aim::BEHIND;
pub use aim::{Anchor, Blow, Layout, Target};
pub use row::CommitRow;
pub(crate) use row::{Came, aimed, blows};
pub use tap::Struck;

use super::outcome::{self, Outcome};
use super::record::{Seen, Written};
use super::settings::{Command, RowKey, Settings};
use super::through::{self, PostgresUrl, Through};
use crate::cancel::Cancel;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{Event, History};
use crate::ledger::{Database, Ledger, Place, probe};
use crate::names::{self, LAB};
use crate::proxy::{Proxy, ProxyOptions, Totals};
use crate::workload::{Credit, Plan, SentLog};
use aim::aim;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use subjects::Job;
use tap::SharedAim;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

/// Accounts of a run: few, so that transactions meet one another's locks.
const ACCOUNTS: u64 = 20;
/// Messages of the rehearsal.
const REHEARSED: u64 = 12;
/// Without any new cut or effect for this long a subject is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// How often the run is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// When the server misses a client that fell silent, as its keep-alive probes would find out: a backend that
/// was given half a statement sequence waits in it without any time limit of its own and keeps its locks.
const MISSED_AFTER: Duration = Duration::from_secs(3);

/// What to run.
#[derive(Clone)]
pub struct CommitOptions {
    /// The database; the run makes a schema of its own in it.
    pub url: String,
    /// Decides positions, their order and the messages.
    pub seed: u64,
    /// At least so many faults for our runtime, eight of them silences and the others cuts; every position of
    /// the exchange is aimed at in any case.
    pub cuts: usize,
    /// The same for the control without an inbox.
    pub control_cuts: usize,
    /// Subjects side by side, each with a connection and a proxy of its own.
    pub lanes: u32,
    /// The run's folder: histories and producers' logs, and the messages' files while the run goes on.
    pub folder: PathBuf,
}

impl CommitOptions {
    /// The quick profile.
    #[must_use]
    pub fn quick(url: impl Into<String>, seed: u64, folder: impl Into<PathBuf>) -> Self {
        Self { url: url.into(), seed, cuts: 310, control_cuts: 80, lanes: 4, folder: folder.into() }
    }

    /// The long profile, by hand.
    #[must_use]
    pub fn long(url: impl Into<String>, seed: u64, folder: impl Into<PathBuf>) -> Self {
        Self { cuts: 5_000, control_cuts: 500, ..Self::quick(url, seed, folder) }
    }

    fn settings(&self) -> Settings {
        let Self { seed, cuts, control_cuts, lanes, .. } = *self;
        Settings { seed, side_by_side: 1, command: Command::Commit { cuts, control_cuts, lanes } }
    }
}

impl std::fmt::Debug for CommitOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("CommitOptions").field("settings", &self.settings()).finish_non_exhaustive()
    }
}

/// Who is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contender {
    /// Our runtime.
    Handstamp,
    /// Database, then offset, no inbox: the control.
    WithoutInbox,
}

impl Contender {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Handstamp => "handstamp",
            Self::WithoutInbox => "no inbox (control)",
        }
    }
}

/// Runs both consumers and says what that proves; `progress` is told faults dealt and planned.
///
/// # Errors
/// `Usage` when the folder holds a run, `Unreachable` when the database does not answer, `Subject` when a
/// consumer stops or is stuck, `Cancelled`.
pub fn run(options: &CommitOptions, cancel: &Cancel, progress: &dyn Fn(usize, usize)) -> Result<Outcome> {
    let settings = options.settings();
    let servers = probe(&Place::Postgres(options.url.clone()))?;
    settings.save(&options.folder)?;
    crate::report::note(&options.folder, &servers, &serde_json::Value::Null)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
    let bench = Bench { options, cancel, runtime: &runtime, progress };
    bench.row(Contender::Handstamp, options.cuts)?;
    bench.row(Contender::WithoutInbox, options.control_cuts)?;
    outcome::recompute(&options.folder)
}

struct Bench<'a> {
    options: &'a CommitOptions,
    cancel: &'a Cancel,
    runtime: &'a Runtime,
    progress: &'a dyn Fn(usize, usize),
}

/// One subject with its proxy.
struct Lane {
    proxy: Proxy,
    aim: SharedAim,
    credits: Vec<Credit>,
    file: PathBuf,
    subject: JoinHandle<Result<()>>,
}

impl Lane {
    /// The producer's log of its messages.
    fn note_sent(&self, log: &mut SentLog) -> Result<()> {
        self.credits.iter().try_for_each(|credit| log.note(credit))
    }
}

impl Bench<'_> {
    /// Does one row; its history and the producer's log are complete when it returns `Ok`.
    fn row(&self, subject: Contender, cuts: usize) -> Result<()> {
        let name = format!("{LAB}commit_{}", names::token());
        let stem = self.options.folder.join(RowKey::Commit(subject).file_stem());
        let history = History::create(&stem.with_extension("jsonl"))?;
        let mut log = SentLog::create(&stem.with_extension("sent.jsonl"))?;
        let mut ledger = Ledger::create(&Place::Postgres(self.options.url.clone()), &name, ACCOUNTS)?;
        self.remember_connections(&name)?;
        let rehearsal = self.start(subject, &name, 0, 1_000, &[], REHEARSED)?;
        rehearsal.note_sent(&mut log)?;
        let layout = self.finish(vec![rehearsal], &mut ledger, 0)?.layout;
        if layout.exchange_up == 0 || layout.exchange_down == 0 {
            let message = format!("no COMMIT of {} went through the proxy", subject.name());
            return Err(LabError::new(LabErrorKind::Subject, message));
        }
        let targets = aim(&layout, self.options.seed, cuts);
        let lanes = self.options.lanes.max(1);
        let mut running = Vec::new();
        for lane in 0..lanes {
            let every = usize::try_from(lanes).unwrap_or(1);
            let skip = usize::try_from(lane).unwrap_or(0);
            let own: Vec<Target> = targets.iter().copied().skip(skip).step_by(every).collect();
            // A cut costs at most four transactions that take messages: three before it and one with it.
            let messages = own.len() as u64 * 4 * batch_of(lane) as u64 + REHEARSED;
            let lane = self.start(subject, &name, lane, lane, &own, messages)?;
            lane.note_sent(&mut log)?;
            running.push(lane);
        }
        log.finish()?;
        let messages = running.iter().map(|lane| lane.credits.len() as u64).sum::<u64>() + REHEARSED;
        let planned = targets.len();
        history.note(outcome::begun(RowKey::Commit(subject), self.options.seed, messages));
        history.note(Event::Fault(Seen::Aimed { planned, layout }));
        history.note(passed(Totals::default()));
        let done = self.finish(running, &mut ledger, planned)?;
        for cut in done.struck {
            history.note(Event::Fault(Seen::Struck(cut)));
        }
        history.note(passed(done.totals));
        history.note(Event::Fault(Seen::Written { connections: self.written(&name)? }));
        history.note_repeated(&ledger.repeated_ms()?);
        history.note(Event::End(ledger.end_state()?));
        history.finish()
    }

    /// Each ledger line keeps which connection and transaction wrote it.
    fn remember_connections(&self, schema: &str) -> Result<()> {
        let sql = format!(
            "ALTER TABLE {schema}.ledger ADD COLUMN port int4 DEFAULT inet_client_port(), \
             ADD COLUMN backend int4 DEFAULT pg_backend_pid(), ADD COLUMN xact xid8 DEFAULT pg_current_xact_id()"
        );
        self.ask(async |client| client.batch_execute(&sql).await)
    }

    /// Asks the database around the proxies.
    fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&tokio_postgres::Client) -> std::result::Result<T, tokio_postgres::Error>,
    ) -> Result<T> {
        let answer = self.runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.options.url, NoTls).await?;
            drop(tokio::spawn(connection));
            question(&client).await
        });
        answer.map_err(|error| {
            LabError::new(LabErrorKind::Unreachable, "the Postgres database does not answer").because(error)
        })
    }

    fn start(
        &self,
        subject: Contender,
        schema: &str,
        lane: u32,
        stream: u32,
        targets: &[Target],
        messages: u64,
    ) -> Result<Lane> {
        let server = PostgresUrl::parse(&self.options.url)?;
        let aim = SharedAim::at(targets.iter().copied());
        let seed = self.options.seed.wrapping_add(u64::from(stream));
        let options = ProxyOptions {
            seed,
            missed_after: Some(MISSED_AFTER),
            taps: Some(aim.taps()),
            ..ProxyOptions::before(server.place)
        };
        let proxy = through::start(self.runtime, options)?;
        let plan = Plan { seed: seed.wrapping_mul(1_000_003), messages, accounts: ACCOUNTS, resends: 0 };
        let credits: Vec<Credit> = (0..messages).map(|n| plan.credit(n)).collect();
        let file = self.options.folder.join(format!("{schema}-{stream}.jsonl"));
        subjects::write_lines(&file, &credits)?;
        let job = Job {
            database: Database::Postgres { url: server.by(&[proxy.address()]), schema: schema.to_owned() },
            lane: stream,
            batch: batch_of(lane),
            declared: lane.is_multiple_of(2),
        };
        let subject = match subject {
            Contender::Handstamp => self.runtime.spawn(subjects::ours(job, file.clone())),
            Contender::WithoutInbox => self.runtime.spawn(subjects::without_inbox(job, credits.clone())),
        };
        Ok(Lane { proxy, aim, credits, file, subject })
    }

    /// Waits until every subject has come to the end of its messages by itself.
    fn finish(&self, mut lanes: Vec<Lane>, ledger: &mut Ledger, planned: usize) -> Result<Done> {
        let waited = self.wait(&lanes, ledger, planned);
        let mut done = Done::default();
        let mut failed = None;
        for lane in lanes.drain(..) {
            lane.subject.abort();
            if let Ok(Err(error)) = self.runtime.block_on(lane.subject) {
                failed.get_or_insert(error);
            }
            done.totals = done.totals.plus(self.runtime.block_on(lane.proxy.stop()));
            let aim = lane.aim.lock();
            done.struck.extend(&aim.struck);
            done.layout = aim.layout;
            // One that is left behind is in the run's folder.
            let _ = std::fs::remove_file(&lane.file);
        }
        waited?;
        failed.map_or(Ok(done), Err)
    }

    fn wait(&self, lanes: &[Lane], ledger: &mut Ledger, planned: usize) -> Result<()> {
        let (mut last, mut moved) = ((0, 0), Instant::now());
        loop {
            self.cancel.sleep(LOOK_EVERY)?;
            let dealt: usize = lanes.iter().map(|lane| lane.aim.lock().struck.len()).sum();
            if planned > 0 {
                (self.progress)(dealt, planned);
            }
            if lanes.iter().all(|lane| lane.subject.is_finished()) {
                return Ok(());
            }
            if moved.elapsed() >= STUCK_AFTER {
                let message =
                    format!("a subject is stuck after {dealt} faults: no new effect for {STUCK_AFTER:?}");
                return Err(LabError::new(LabErrorKind::Subject, message));
            }
            let now = (dealt, ledger.progress()?);
            if now != last {
                (last, moved) = (now, Instant::now());
            }
        }
    }

    /// Transactions that each connection wrote.
    fn written(&self, schema: &str) -> Result<Vec<Written>> {
        let sql =
            format!("SELECT port, backend, count(DISTINCT xact) FROM {schema}.ledger GROUP BY port, backend");
        let rows = self.ask(async |client| client.query(&sql, &[]).await)?;
        let one = |row: &tokio_postgres::Row| Written {
            port: row.get::<_, Option<i32>>(0).unwrap_or(0),
            backend: row.get(1),
            transactions: u64::try_from(row.get::<_, i64>(2)).unwrap_or(0),
        };
        Ok(rows.iter().map(one).collect())
    }
}

fn passed(totals: Totals) -> Event {
    let (database, broker) = (Through::from(totals), Through::default());
    Event::Fault(Seen::Passed { database, broker, answered: totals.down })
}

/// What lanes left when they had ended.
#[derive(Debug, Default)]
struct Done {
    totals: Totals,
    struck: Vec<Struck>,
    layout: Layout,
}

/// Lanes differ: one message a transaction, a few, and many.
fn batch_of(lane: u32) -> usize {
    [1, 2, 5, 1][usize::try_from(lane % 4).unwrap_or(0)]
}
