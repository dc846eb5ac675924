//! One run of one row: several consumers, some messages that are stalled on, and the wait until all is over.

use super::{Group, Row, Stalls};
use crate::error::Result;
use crate::history::Event;
use crate::kill::{self, Child, RowKind, Run, Surroundings};
use crate::schedule::Random;
use crate::subjects::{Stall, Stalling, stall};
use crate::workload::{Plan, SentLog};
use std::path::Path;
use std::time::{Duration, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the broker is asked for committed offsets.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// It is over when everything is settled and nobody did anything for so long.
const QUIET: Duration = Duration::from_secs(2);

/// The ids that are stalled on: one in each stretch of `one_in` messages.
pub(super) fn stalled_ids(plan: &Plan, one_in: u64) -> Vec<String> {
    let mut random = Random::new(plan.seed, 700_000);
    (0..plan.messages / one_in).map(|at| plan.credit(at * one_in + random.below(one_in)).id).collect()
}

/// A process that is frozen until a time.
struct Frozen {
    child: usize,
    id: String,
    until: Instant,
}

/// Does one run; its history and the producer's log are complete when it returns `Ok`.
///
/// # Errors
/// As `lab kill`; `BrokerInside` when the broker inside the lab ended by itself each time.
pub(super) fn zombie_run(around: &Surroundings<'_>, stalls: &Stalls, row: Row, run: u32) -> Result<()> {
    kill::persistently(|earlier| attempt(around, stalls, row, run, earlier))
}

fn attempt(around: &Surroundings<'_>, stalls: &Stalls, row: Row, run: u32, earlier: &[String]) -> Result<()> {
    let settings = around.settings;
    let needed = settings.messages.max(stalls.one_in);
    let plan = Plan { messages: needed, ..settings.plan(run, RowKind::Random) };
    let stem = around.folder.join(row.file_stem(run));
    let history = kill::begin(around, &stem, row.name(), run, plan.messages, earlier)?;
    let noted = history.clone();
    let kill_row = kill::Row { subject: row.subject, kind: RowKind::Random };
    let work = || {
        let mut now = Run::open(around, kill_row, run, plan, history)?;
        let done = stall_and_wait(around, &mut now, stalls, row, run, &stem);
        done.map_err(|error| now.blamed(error))
    };
    work().inspect_err(|error| kill::note_broker(&noted, error))
}

/// Sends, starts the group of this run, waits until all is over, and asks the database.
fn stall_and_wait(
    around: &Surroundings<'_>,
    now: &mut Run<'_>,
    stalls: &Stalls,
    row: Row,
    run: u32,
    stem: &Path,
) -> Result<()> {
    let ids = stalled_ids(&now.plan, stalls.one_in);
    let Group { members, assignor } = stalls.group(around.settings.seed, run);
    now.setup.max_poll_interval_ms = Some(stalls.max_poll_interval_ms);
    now.setup.stall = Some(Stall { ids: ids.clone(), ms: stalls.ms, how: row.how, assignor });
    let mut log = SentLog::create(&stem.with_extension("sent.jsonl"))?;
    now.topic.fill(&now.plan, &mut log, around.cancel)?;
    log.finish()?;
    let mut children = Vec::new();
    for _ in 0..members {
        children.push(now.start(None)?);
    }
    let worked = until_over(around, now, &mut children, stalls, row);
    // A frozen process is killed as well as any.
    for child in children {
        child.process.kill()?;
    }
    remove_marks(now, &ids);
    worked?;
    now.note_end()
}

/// Waits until everything is settled, nobody is asleep and nothing more happens.
fn until_over(
    around: &Surroundings<'_>,
    now: &mut Run<'_>,
    children: &mut [Child],
    stalls: &Stalls,
    row: Row,
) -> Result<()> {
    let ends = now.topic.ends()?;
    let stall = Duration::from_millis(stalls.ms);
    let count = u32::try_from(now.plan.messages / stalls.one_in).unwrap_or(u32::MAX);
    // At worst one stall after the other, each with a rebalance.
    let limit = now.limit() + (stall * 3).saturating_mul(count);
    let until = Instant::now() + limit;
    let mut frozen: Vec<Frozen> = Vec::new();
    let (mut seen, mut since, mut asked) = (-1, Instant::now(), Instant::now());
    let mut drained = false;
    loop {
        for (at, child) in children.iter_mut().enumerate() {
            now.watch(child, until, "come to an end of its stalls")?;
            for id in child.take_stalled() {
                since = Instant::now();
                if row.how == Stalling::Frozen {
                    child.process.signal("STOP")?;
                    frozen.push(Frozen { child: at, id, until: Instant::now() + stall });
                }
            }
        }
        thaw(now, children, &mut frozen)?;
        let progress = now.ledger.progress()?;
        if progress != seen || children.iter().any(Child::is_asleep) {
            (seen, since) = (progress, Instant::now());
        }
        if !drained && asked.elapsed() >= ASK_EVERY {
            asked = Instant::now();
            drained = now.topic.is_drained(&ends)?;
            if drained {
                now.history.note(Event::Drained);
            }
        }
        if drained && frozen.is_empty() && since.elapsed() >= QUIET {
            return Ok(());
        }
        around.cancel.sleep(LOOK_EVERY)?;
    }
}

/// Lets those go on that were frozen long enough.
fn thaw(now: &Run<'_>, children: &[Child], frozen: &mut Vec<Frozen>) -> Result<()> {
    let mut rest = Vec::new();
    for one in frozen.drain(..) {
        if Instant::now() < one.until {
            rest.push(one);
            continue;
        }
        let file = stall::thaw_file(&now.setup.folder, &now.setup.topic, &one.id);
        std::fs::write(&file, "").map_err(|error| crate::LabError::file("write", &file, error))?;
        children[one.child].process.signal("CONT")?;
    }
    *frozen = rest;
    Ok(())
}

/// Removes what marked the first times.
fn remove_marks(now: &Run<'_>, ids: &[String]) {
    for id in ids {
        // Of a message that nobody stalled on there is none.
        let _ = std::fs::remove_file(stall::thaw_file(&now.setup.folder, &now.setup.topic, id));
        let _ = std::fs::remove_file(now.setup.folder.join(format!("{}.{id}.stalled", now.setup.topic)));
    }
}
