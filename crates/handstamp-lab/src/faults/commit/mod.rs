//! `lab faults commit`: the connection between subject and database is cut at every byte position of the
//! COMMIT exchange and of the messages around it.
//!
//! ```text
//!  rehearsal (no fault) ─► layout ─► targets ─► parts ─► lanes: subject ─► proxy with taps ─► Postgres
//!                                                 ▲                          │ struck             │ ledger
//!             those already complete are skipped ─┘                          └───────► history ◄──┘
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
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use subjects::Job;
use tap::SharedAim;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

/// Accounts of a run: few, so that transactions meet one another's locks.
const ACCOUNTS: u64 = 20;
/// Streams of messages of a part are numbered from this times its number; the first part's rehearsal has this.
const STREAMS: u32 = 1_000;
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
    /// Faults of a part: what is complete of a row that was interrupted; without a number a row is one.
    pub part: Option<NonZeroUsize>,
    /// The run's folder: histories and producers' logs, and the messages' files while the run goes on.
    pub folder: PathBuf,
}

impl CommitOptions {
    /// The quick profile.
    #[must_use]
    pub fn quick(url: impl Into<String>, seed: u64, folder: impl Into<PathBuf>) -> Self {
        let (url, folder) = (url.into(), folder.into());
        Self { url, seed, cuts: 310, control_cuts: 80, lanes: 4, part: NonZeroUsize::new(500), folder }
    }

    /// The long profile, by hand.
    #[must_use]
    pub fn long(url: impl Into<String>, seed: u64, folder: impl Into<PathBuf>) -> Self {
        Self { cuts: 5_000, control_cuts: 500, ..Self::quick(url, seed, folder) }
    }

    /// What is left of a run that was interrupted.
    ///
    /// # Errors
    /// `Usage` when the folder holds no run of `lab faults commit`.
    pub fn resumed(url: impl Into<String>, folder: impl Into<PathBuf>) -> Result<Self> {
        let (url, folder) = (url.into(), folder.into());
        let settings = Settings::load(&folder)?;
        match settings.command {
            Command::Commit { cuts, control_cuts, lanes, part } => {
                Ok(Self { url, seed: settings.seed, cuts, control_cuts, lanes, part, folder })
            }
            Command::Outage { .. } | Command::Partition { .. } => Err(settings.other_than("commit", &folder)),
        }
    }

    fn settings(&self) -> Settings {
        let Self { seed, cuts, control_cuts, lanes, part, .. } = *self;
        Settings { seed, side_by_side: 1, command: Command::Commit { cuts, control_cuts, lanes, part } }
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

/// Runs both consumers and says what that proves; `progress` is told faults dealt and those that were to be
/// dealt when it began.
///
/// # Errors
/// `Usage` when the folder holds a run, `Unreachable` when the database does not answer, `Subject` when a
/// consumer stops or is stuck, `Cancelled`. What is complete by then can be resumed.
pub fn run(options: &CommitOptions, cancel: &Cancel, progress: &dyn Fn(usize, usize)) -> Result<Outcome> {
    let settings = options.settings();
    let servers = probe(&Place::Postgres(options.url.clone()))?;
    settings.save(&options.folder)?;
    crate::report::note(&options.folder, &servers, &serde_json::Value::Null)?;
    work(&settings, options, cancel, progress)
}

/// Goes on with what a run left undone in its folder ([`CommitOptions::resumed`]).
///
/// # Errors
/// `Usage` when it was on another database server; the others as of [`run`].
pub fn resume(options: &CommitOptions, cancel: &Cancel, progress: &dyn Fn(usize, usize)) -> Result<Outcome> {
    let settings = Settings::load(&options.folder)?;
    let servers = probe(&Place::Postgres(options.url.clone()))?;
    crate::report::same_servers(&options.folder, &servers)?;
    work(&settings, options, cancel, progress)
}

fn work(
    settings: &Settings,
    options: &CommitOptions,
    cancel: &Cancel,
    progress: &dyn Fn(usize, usize),
) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
    let left = |contender, cuts: usize| {
        let stems = settings.stems(&options.folder, RowKey::Commit(contender));
        let left = stems.iter().filter(|stem| outcome::complete(stem).is_none()).count();
        cuts * left / stems.len().max(1)
    };
    let all = left(Contender::Handstamp, options.cuts) + left(Contender::WithoutInbox, options.control_cuts);
    let (all, dealt) = (Cell::new(all), Cell::new(0));
    let bench = Bench { settings, options, cancel, runtime: &runtime, progress, all, dealt };
    bench.row(Contender::Handstamp, options.cuts)?;
    bench.row(Contender::WithoutInbox, options.control_cuts)?;
    outcome::recompute(&options.folder)
}

struct Bench<'a> {
    settings: &'a Settings,
    options: &'a CommitOptions,
    cancel: &'a Cancel,
    runtime: &'a Runtime,
    progress: &'a dyn Fn(usize, usize),
    /// Faults that are to be dealt, exactly once a part has begun.
    all: Cell<usize>,
    /// Faults of the parts that are done.
    dealt: Cell<usize>,
}

/// A part of a row.
struct Part<'a> {
    /// Which, from 0.
    at: usize,
    /// How many there are.
    of: usize,
    /// The beginning of the names of its files.
    stem: &'a Path,
    /// What the first part aimed by; `None` for that one.
    layout: Option<Layout>,
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
    /// Does what is left of one row.
    fn row(&self, subject: Contender, cuts: usize) -> Result<()> {
        let stems = self.settings.stems(&self.options.folder, RowKey::Commit(subject));
        let mut layout = None;
        for (at, stem) in stems.iter().enumerate() {
            let seen = match outcome::complete(stem) {
                Some(entries) => aimed(&entries).1,
                None => self.part(subject, cuts, Part { at, of: stems.len(), stem, layout })?,
            };
            // Every part aims by what the first one saw.
            layout.get_or_insert(seen);
        }
        Ok(())
    }

    /// Does one part, and says by which layout it aimed; its history and the producer's log are complete when it
    /// returns `Ok`.
    fn part(&self, subject: Contender, cuts: usize, part: Part<'_>) -> Result<Layout> {
        let name = format!("{LAB}commit_{}", names::token());
        let history = History::create(&part.stem.with_extension("jsonl"))?;
        let mut log = SentLog::create(&part.stem.with_extension("sent.jsonl"))?;
        let mut ledger = Ledger::create(&Place::Postgres(self.options.url.clone()), &name, ACCOUNTS)?;
        self.remember_connections(&name)?;
        let streams = STREAMS.saturating_mul(u32::try_from(part.at).unwrap_or(u32::MAX));
        let rehearsal = self.start(subject, &name, 0, streams.saturating_add(STREAMS - 1), &[], REHEARSED)?;
        rehearsal.note_sent(&mut log)?;
        let rehearsed = self.finish(vec![rehearsal], &mut ledger, 0)?.layout;
        if rehearsed.exchange_up == 0 || rehearsed.exchange_down == 0 {
            let message = format!("no COMMIT of {} went through the proxy", subject.name());
            return Err(LabError::new(LabErrorKind::Subject, message));
        }
        let layout = part.layout.unwrap_or(rehearsed);
        let mut targets = aim(&layout, self.options.seed, cuts);
        targets = targets.into_iter().skip(part.at).step_by(part.of).collect();
        self.all.set((self.all.get() + targets.len()).saturating_sub(cuts / part.of));
        let lanes = self.options.lanes.max(1);
        let mut running = Vec::new();
        for lane in 0..lanes {
            let every = usize::try_from(lanes).unwrap_or(1);
            let skip = usize::try_from(lane).unwrap_or(0);
            let own: Vec<Target> = targets.iter().copied().skip(skip).step_by(every).collect();
            // A cut costs at most four transactions that take messages: three before it and one with it.
            let messages = own.len() as u64 * 4 * batch_of(lane) as u64 + REHEARSED;
            let lane = self.start(subject, &name, lane, streams.saturating_add(lane), &own, messages)?;
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
        history.finish()?;
        self.dealt.set(self.dealt.get() + planned);
        Ok(layout)
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
                let dealt = self.dealt.get() + dealt;
                (self.progress)(dealt, self.all.get().max(dealt));
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
