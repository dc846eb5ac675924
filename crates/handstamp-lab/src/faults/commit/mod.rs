//! `lab faults commit`: the connection between subject and database is cut at every byte position of the
//! COMMIT exchange and of the messages around it.
//!
//! ```text
//!  rehearsal (no fault) ─► layout ─► targets ─► lanes: subject ─► proxy with taps ─► Postgres
//!                                                                   │ struck             │ ledger
//!                                                                   └───────► report ◄───┘
//! ```
//!
//! The verdict comes from the credits written for the subjects and from the database alone (`checker`). Whether
//! a transaction that was cut was committed is read from the database too: each ledger line keeps the
//! connection and the transaction that wrote it, and the tap knows how many the connection had begun.
//! The control is the same without an inbox: cut in the same places, it must double.

mod aim;
mod subjects;
mod tap;
mod wire;

use super::report::{Row, Standing};
use super::through::{self, PostgresUrl, Through};
use crate::cancel::Cancel;
use crate::checker::{self, Verdict as Judged};
use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::{Database, Ledger, Place};
use crate::proxy::{Proxy, ProxyOptions, Totals, Way};
use crate::workload::{Credit, Plan};
use aim::{Anchor, Blow, Layout, Target, aim};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use subjects::Job;
use tap::{SharedAim, Struck};
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
/// Neither outcome of a transaction with an effect may be rarer than this among all faults.
const SHARE_MIN: f64 = 0.10;

/// What to run.
#[derive(Debug, Clone)]
pub struct CommitOptions {
    /// The database; the run makes a schema of its own in it.
    pub url: String,
    /// Decides positions, their order and the messages.
    pub seed: u64,
    /// At least so many faults for our runtime, eight of them silences and the others cuts; every position of the exchange is aimed at in any case.
    pub cuts: usize,
    /// The same for the control without an inbox.
    pub control_cuts: usize,
    /// Subjects side by side, each with a connection and a proxy of its own.
    pub lanes: u32,
    /// Where the messages' files are written while the run goes on.
    pub folder: PathBuf,
}

impl CommitOptions {
    /// The quick profile.
    #[must_use]
    pub fn quick(url: impl Into<String>, seed: u64, folder: impl Into<PathBuf>) -> Self {
        Self { url: url.into(), seed, cuts: 310, control_cuts: 80, lanes: 4, folder: folder.into() }
    }
}

/// What was seen of one subject.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommitRow {
    /// Which subject.
    pub subject: &'static str,
    /// Faults planned.
    pub planned: usize,
    /// Faults dealt: cuts and silences.
    pub dealt: usize,
    /// Different positions of the exchange and around it at which a fault was dealt.
    pub positions: usize,
    /// Bytes of the exchange as seen in the rehearsal: to the server and back.
    pub exchange_bytes: (u64, u64),
    /// Positions of the exchange at which no fault was dealt, as `up 17`.
    pub missed: Vec<String>,
    /// Cut transactions with an effect that were committed.
    pub committed: usize,
    /// Cut transactions with an effect that were not.
    pub not_committed: usize,
    /// Cut before the transaction had sent an effect, or between two of them.
    pub without_effect: usize,
    /// Cut transactions whose outcome the ledger does not tell: must be 0.
    pub unexplained: usize,
    /// What went through the proxies, and what they cut.
    #[serde(flatten)]
    pub through: Through,
    /// The verdict of the checker.
    pub verdict: Judged,
    /// How long it took, in seconds.
    pub took_s: f64,
}

/// Both subjects' rows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CommitReport {
    /// The seed.
    pub seed: u64,
    /// Our runtime.
    pub ours: CommitRow,
    /// Database, then offset, no inbox.
    pub control: CommitRow,
}

impl CommitReport {
    /// The rows of the table, each with where it stands.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        vec![
            row(&self.ours, standing_of_ours(&self.ours)),
            row(&self.control, standing_of_control(&self.control)),
        ]
    }
}

fn row(of: &CommitRow, standing: Standing) -> Row {
    Row {
        name: of.subject.to_owned(),
        cells: vec![
            ("faults", format!("{} of {}", of.dealt, of.planned)),
            ("positions", of.positions.to_string()),
            ("committed", of.committed.to_string()),
            ("not committed", of.not_committed.to_string()),
            ("no effect yet", of.without_effect.to_string()),
            ("doubled", of.verdict.doubled.to_string()),
            ("lost", of.verdict.lost.to_string()),
            ("bytes up/down", format!("{}/{}", of.through.bytes_up, of.through.bytes_down)),
            ("connections cut", of.through.connections_cut.to_string()),
            ("seconds", format!("{:.0}", of.took_s)),
        ],
        standing,
    }
}

fn share(part: usize, of: &CommitRow) -> f64 {
    if of.dealt == 0 { 0.0 } else { part as f64 / of.dealt as f64 }
}

/// What keeps a row from proving anything.
fn gap(of: &CommitRow) -> Option<String> {
    if of.through.connections_cut == 0 || of.through.bytes_up == 0 || of.through.bytes_down == 0 {
        return Some("nothing was cut: the subject went around the proxy".to_owned());
    }
    if of.dealt < of.planned || !of.missed.is_empty() {
        return Some(format!(
            "{} of {} faults were dealt, missing: {}",
            of.dealt,
            of.planned,
            of.missed.join(", ")
        ));
    }
    if of.unexplained > 0 {
        return Some(format!("the outcome of {} cut transactions is not known", of.unexplained));
    }
    let (yes, no) = (share(of.committed, of), share(of.not_committed, of));
    (yes < SHARE_MIN || no < SHARE_MIN).then(|| {
        format!(
            "of all cuts {:.0} % hit a transaction that was committed and {:.0} % one that was not: each needs 10 %",
            yes * 100.0,
            no * 100.0
        )
    })
}

fn standing_of_ours(of: &CommitRow) -> Standing {
    if !of.verdict.is_clean() {
        return Standing::Violated(violation(&of.verdict));
    }
    gap(of).map_or(Standing::Held, Standing::Inconclusive)
}

fn standing_of_control(of: &CommitRow) -> Standing {
    if of.verdict.lost > 0 || of.verdict.unsent > 0 {
        return Standing::Inconclusive(format!("the control itself is broken: {}", violation(&of.verdict)));
    }
    if of.verdict.doubled == 0 {
        return Standing::Inconclusive(
            "the control without an inbox doubled nothing: these cuts prove nothing".to_owned(),
        );
    }
    gap(of).map_or(Standing::Control, Standing::Inconclusive)
}

fn violation(verdict: &Judged) -> String {
    format!(
        "{} doubled, {} lost, {} never sent, {} dead letters, accounts that do not add up: {:?}; doubled {:?}, lost {:?}",
        verdict.doubled,
        verdict.lost,
        verdict.unsent,
        verdict.dead_lettered,
        verdict.accounts_off,
        verdict.doubled_ids,
        verdict.lost_ids
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Ours,
    WithoutInbox,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "handstamp",
            Self::WithoutInbox => "database, then offset, no inbox (control)",
        }
    }
}

/// Runs both subjects; `progress` is told faults dealt and planned.
///
/// # Errors
/// `Unreachable` when the database does not answer, `Subject` when a subject stops or is stuck, `Cancelled`.
pub fn run(
    options: &CommitOptions,
    cancel: &Cancel,
    progress: &dyn Fn(usize, usize),
) -> Result<CommitReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| LabError::new(LabErrorKind::Other, "no runtime").because(error))?;
    let bench = Bench { options, cancel, runtime: &runtime, progress };
    let ours = bench.row(Subject::Ours, options.cuts)?;
    let control = bench.row(Subject::WithoutInbox, options.control_cuts)?;
    Ok(CommitReport { seed: options.seed, ours, control })
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

impl Bench<'_> {
    fn row(&self, subject: Subject, cuts: usize) -> Result<CommitRow> {
        let name = format!("lab_commit_{}", uuid::Uuid::new_v4().simple());
        let mut ledger = Ledger::create(&Place::Postgres(self.options.url.clone()), &name, ACCOUNTS)?;
        self.remember_connections(&name)?;
        let begun = Instant::now();
        let rehearsal = self.start(subject, &name, 0, 1_000, &[], REHEARSED)?;
        let rehearsal = self.finish(vec![rehearsal], &mut ledger, 0)?;
        let layout = rehearsal.layout;
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
            running.push(self.start(subject, &name, lane, lane, &own, messages)?);
        }
        let done = self.finish(running, &mut ledger, targets.len())?;
        let sent: Vec<Credit> = rehearsal.credits.iter().chain(&done.credits).cloned().collect();
        let verdict = checker::judge(&sent, &ledger.end_state()?);
        let outcomes = self.outcomes(&name, &done.struck)?;
        Ok(CommitRow {
            subject: subject.name(),
            planned: targets.len(),
            dealt: done.struck.len(),
            positions: positions(&done.struck),
            exchange_bytes: (layout.exchange_up, layout.exchange_down),
            missed: missed(&layout, &done.struck),
            committed: outcomes.committed,
            not_committed: outcomes.not_committed,
            without_effect: outcomes.without_effect,
            unexplained: outcomes.unexplained,
            through: done.totals.into(),
            verdict,
            took_s: begun.elapsed().as_secs_f64(),
        })
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
        subject: Subject,
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
            Subject::Ours => self.runtime.spawn(subjects::ours(job, file.clone())),
            Subject::WithoutInbox => self.runtime.spawn(subjects::without_inbox(job, credits.clone())),
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
            done.credits.extend(lane.credits);
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

    fn outcomes(&self, schema: &str, struck: &[Struck]) -> Result<Outcomes> {
        let sql =
            format!("SELECT port, backend, count(DISTINCT xact) FROM {schema}.ledger GROUP BY port, backend");
        let rows = self.ask(async |client| client.query(&sql, &[]).await)?;
        let mut written: BTreeMap<(i32, i32), u64> = BTreeMap::new();
        for row in rows {
            let port: Option<i32> = row.get(0);
            let count: i64 = row.get(2);
            written.insert((port.unwrap_or(0), row.get(1)), u64::try_from(count).unwrap_or(0));
        }
        let mut outcomes = Outcomes::default();
        for cut in struck {
            let durable = written.get(&(i32::from(cut.port), cut.backend)).copied().unwrap_or(0);
            let count = match (cut.acting, cut.acted.checked_sub(durable)) {
                (true, Some(0)) => &mut outcomes.committed,
                (true, Some(1)) => &mut outcomes.not_committed,
                (false, Some(0)) => &mut outcomes.without_effect,
                _ => &mut outcomes.unexplained,
            };
            *count += 1;
        }
        Ok(outcomes)
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    committed: usize,
    not_committed: usize,
    without_effect: usize,
    unexplained: usize,
}

/// What lanes left when they had ended.
#[derive(Debug, Default)]
struct Done {
    totals: Totals,
    struck: Vec<Struck>,
    layout: Layout,
    credits: Vec<Credit>,
}

/// Lanes differ: one message a transaction, a few, and many.
fn batch_of(lane: u32) -> usize {
    [1, 2, 5, 1][usize::try_from(lane % 4).unwrap_or(0)]
}

fn positions(struck: &[Struck]) -> usize {
    let position = |cut: &Struck| (cut.target.anchor, cut.target.way, cut.target.offset);
    struck.iter().map(position).collect::<BTreeSet<_>>().len()
}

/// Positions of the exchange at which no connection was cut.
fn missed(layout: &Layout, struck: &[Struck]) -> Vec<String> {
    let cut_at: BTreeSet<(Way, u64)> = struck
        .iter()
        .filter(|cut| cut.target.anchor == Anchor::Commit && matches!(cut.target.blow, Blow::Cut(_)))
        .map(|cut| (cut.target.way, cut.target.offset))
        .collect();
    let all = (0..=layout.exchange_up).map(|at| (Way::Up, at));
    let all = all.chain((0..=layout.exchange_down).map(|at| (Way::Down, at)));
    all.filter(|position| !cut_at.contains(position))
        .map(|(way, at)| format!("{} {at}", way.as_str()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(verdict: Judged) -> CommitRow {
        CommitRow {
            subject: "subject",
            planned: 100,
            dealt: 100,
            positions: 50,
            exchange_bytes: (20, 30),
            missed: vec![],
            committed: 40,
            not_committed: 30,
            without_effect: 30,
            unexplained: 0,
            through: Through { bytes_up: 1, bytes_down: 1, connections_cut: 99, ..Through::default() },
            verdict,
            took_s: 1.0,
        }
    }

    #[test]
    fn a_row_that_cut_too_little_proves_nothing() {
        let clean = || row(Judged::default());
        assert_eq!(standing_of_ours(&clean()), Standing::Held);
        let holes = [
            CommitRow { through: Through::default(), ..clean() },
            CommitRow { dealt: 99, ..clean() },
            CommitRow { missed: vec!["up 3".to_owned()], ..clean() },
            CommitRow { committed: 9, without_effect: 61, ..clean() },
            CommitRow { not_committed: 9, without_effect: 51, ..clean() },
            CommitRow { unexplained: 1, ..clean() },
        ];
        for hole in holes {
            assert!(matches!(standing_of_ours(&hole), Standing::Inconclusive(_)), "{hole:?}");
        }
    }

    #[test]
    fn ours_may_not_double_and_the_control_must() {
        let doubled = row(Judged { doubled: 1, ..Judged::default() });
        let lost = row(Judged { lost: 1, ..Judged::default() });
        assert!(matches!(standing_of_ours(&doubled), Standing::Violated(_)));
        assert!(matches!(standing_of_ours(&lost), Standing::Violated(_)));
        assert_eq!(standing_of_control(&doubled), Standing::Control);
        assert!(matches!(standing_of_control(&row(Judged::default())), Standing::Inconclusive(_)));
        assert!(matches!(standing_of_control(&lost), Standing::Inconclusive(_)));
    }
}
