//! Several processes of one group on few accounts, with keys that have nothing to do with the accounts:
//! every process updates the same rows, in an order that deadlocks.
//!
//! The messages are written in a transaction that is committed once all processes have their
//! partitions, so that no side begins earlier or with a rebalance.

use crate::child;
use crate::credits::Plan;
use crate::harness::{Res, Sample};
use crate::kafka::{GroupView, Topic, delete_group};
use crate::postgres::Database;
use crate::programs::unique;
use std::process::Child;
use std::time::{Duration, Instant};

/// Accounts that all messages credit.
pub(crate) const ACCOUNTS: u64 = 10;
const LIMIT: Duration = Duration::from_secs(180);

struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Only what is left after an error is still running.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Runs so many processes of one kind over a plan; the sample holds the time of all together.
pub(crate) fn run(kind: &str, processes: usize, count: u64) -> Res<Sample> {
    let name = unique("hot");
    let plan = Plan { keys_unrelated: true, ..Plan::new(count, ACCOUNTS) };
    let database = Database::create(&name, ACCOUNTS)?;
    let topic = Topic::create(&name)?;
    let hidden = topic.hidden(&plan)?;
    let view = GroupView::new(&name, &name)?;
    let mut children = Children(vec![]);
    for _ in 0..processes {
        children.0.push(child::spawn(kind, &name, &database.url, 500)?);
    }
    wait("all processes have joined", || Ok(view.stable_members()? == processes))?;
    // Members know their partitions within one more heartbeat of the library.
    std::thread::sleep(Duration::from_millis(300));
    let before = database.counters()?;
    let sent = hidden.show()?;
    wait("all messages are committed", || Ok(view.committed()? >= sent.count))?;
    let mut span: Option<(Duration, Duration)> = None;
    for child in std::mem::take(&mut children.0) {
        if let Some((first, last)) = child::finish(child)?.span {
            span = Some(span.map_or((first, last), |(f, l)| (f.min(first), l.max(last))));
        }
    }
    let (first, last) = span.ok_or("no process did anything")?;
    let mut sample = Sample::timed(sent.count, (last - first).as_secs_f64());
    database.settle_counters()?;
    database.counters()?.since(before, sent.count, &mut sample);
    database.check(&sent, true)?;
    delete_group(&name);
    Ok(sample)
}

fn wait(what: &str, done: impl Fn() -> Res<bool>) -> Res<()> {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("waited {LIMIT:?} until {what}").into())
}
