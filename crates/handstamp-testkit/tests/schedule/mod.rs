//! One schedule: a workload, members that come, go and die, faults, and the invariants.

mod workload;

use crate::seeded::{Random, asked, paused};
use handstamp_core::consumer::{Order, StopReason};
use handstamp_core::decide::Policy;
use handstamp_core::delivery::Settled;
use handstamp_core::invariants::counts_reconcile;
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{
    Consumer, ConsumerName, ConsumerOptions, Identity, Report, RunError, RunErrorKind, Source, StoreErrorKind,
};
use handstamp_testkit::fakes::{LogBroker, MemoryStore, QueueBroker, StorePoint};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use workload::{Expected, Role, Workload};

const GROUP: &str = "group";
const PARTITIONS: usize = 3;
const STEPS: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Log,
    Lease,
    Ack,
}

enum Broker {
    Log(LogBroker),
    Queue(QueueBroker),
}

impl Broker {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Log => Self::Log(LogBroker::new("credits", PARTITIONS)),
            Kind::Lease => Self::Queue(QueueBroker::with_lease("credits", Duration::from_secs(1))),
            Kind::Ack => Self::Queue(QueueBroker::without_lease("credits")),
        }
    }

    fn publish(&self, expected: &mut Expected, random: &mut Random) {
        match self {
            Self::Log(log) => {
                let partition = expected.at_partition(PARTITIONS);
                if random.below(5) == 0 {
                    log.skip_offsets(partition, 3);
                }
                expected.offset = log.publish(partition, expected.payload.clone()).unwrap();
                expected.partition = partition;
            }
            Self::Queue(queue) => {
                expected.offset = i64::try_from(queue_length(expected)).unwrap();
                queue.publish(expected.payload.clone());
            }
        }
    }

    fn source(&self) -> Box<dyn Source> {
        match self {
            Self::Log(log) => Box::new(log.source(GROUP)),
            Self::Queue(queue) => Box::new(queue.source()),
        }
    }

    fn is_settled(&self, expected: &Expected) -> bool {
        match self {
            Self::Log(log) => log.committed(GROUP, expected.partition).is_some_and(|at| at > expected.offset),
            Self::Queue(queue) => queue.is_settled(usize::try_from(expected.offset).unwrap()),
        }
    }

    fn set_away(&self, away: bool) {
        match self {
            Self::Log(log) => log.set_away(away),
            Self::Queue(queue) => queue.set_away(away),
        }
    }

    fn disturb(&self, random: &mut Random) {
        match self {
            Self::Log(log) => match random.below(10) {
                0..=4 => log.rebalance(GROUP),
                5..=6 => log.evict_all(GROUP),
                7..=8 => log.refuse_commits(GROUP, &[random.one_of(&[Settled::Unknown, Settled::Failed]); 3]),
                _ => log.rewind(GROUP),
            },
            Self::Queue(queue) => queue.cut_connections(),
        }
    }
}

fn queue_length(expected: &Expected) -> usize {
    expected.number
}

/// How a member comes to its end, unless it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Only when it is asked to.
    Asked,
    /// Or when nothing came for a while.
    Idle,
    /// Or after so many messages.
    Few,
    /// Or as soon as the store is away: with an error.
    FailFast,
    /// When it is asked to, and gives what runs no time: with an error.
    Hasty,
}

struct Member {
    ending: Ending,
    stop: Option<oneshot::Sender<()>>,
    run: JoinHandle<Result<Report, RunError>>,
}

struct Schedule {
    kind: Kind,
    random: Random,
    broker: Broker,
    store: MemoryStore,
    workload: Rc<Workload>,
    members: Vec<Member>,
    name: ConsumerName,
    /// Of everybody that was not killed.
    reports: Vec<Report>,
    /// Somebody was killed, or had no answer to a commit: then nobody knows who wrote a row.
    unsure: bool,
    exits: BTreeSet<&'static str>,
    /// What fails is parked, or tried in place only.
    parks: bool,
    /// The order of a key is kept.
    by_key: bool,
}

impl Schedule {
    fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Random(seed);
        let broker = Broker::new(kind);
        let mut workload = Workload::new(&mut random, 200, kind == Kind::Log);
        for expected in &mut workload.all {
            broker.publish(expected, &mut random);
        }
        let store = MemoryStore::new();
        store.set_latency(Duration::from_millis(2));
        Self {
            kind,
            random,
            broker,
            store,
            workload: Rc::new(workload),
            members: vec![],
            name: ConsumerName::new("wallet").unwrap(),
            reports: vec![],
            unsure: false,
            exits: BTreeSet::new(),
            parks: seed.is_multiple_of(2),
            by_key: seed.is_multiple_of(4) && kind == Kind::Log,
        }
    }

    fn start_any_member(&mut self) {
        use Ending::*;
        let ending = self.random.one_of(&[Asked, Asked, Asked, Asked, Idle, Few, FailFast, Hasty]);
        self.start_member(ending);
    }

    fn start_member(&mut self, ending: Ending) {
        let retry = RetryPolicy {
            max_attempts: 3,
            immediate: if self.parks { 1 + u32::try_from(self.random.below(2)).unwrap() } else { 3 },
            wait: Duration::from_millis(5),
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(300) },
            ..RetryPolicy::default()
        };
        let mut options = ConsumerOptions {
            batch_max: 1 + self.random.below(40),
            concurrency: 1 + self.random.below(3),
            policy: Policy { retry, ..Policy::default() },
            order: if self.by_key { Order::Key } else { Order::Partition },
            ..ConsumerOptions::default()
        };
        match ending {
            Ending::Asked => {}
            Ending::Idle => options.until_idle = Some(self.random.millis(200)),
            Ending::Few => options.messages_max = Some(1 + self.random.below(80) as u64),
            Ending::FailFast => options.fail_fast = true,
            Ending::Hasty => options.shutdown_timeout = Duration::from_millis(1),
        }
        let handler = self.workload.handler();
        let consumer = Consumer::builder(self.name.clone())
            .boxed_source(self.broker.source(), Identity::Header("id".into()))
            .store(self.store.clone())
            .handler(handler)
            .options(options);
        let (stop, stopped) = oneshot::channel::<()>();
        let run = tokio::task::spawn_local(async move { consumer.run_local(asked(stopped)).await });
        self.members.push(Member { ending, stop: Some(stop), run });
    }

    /// Asks a member to stop and takes its report.
    async fn stop_member(&mut self, at: usize) {
        let mut member = self.members.remove(at);
        // One that has ended already does not hear it.
        let _ = member.stop.take().unwrap().send(());
        let ended = member.run.await.expect("a member must not panic");
        self.check_exit(member.ending, ended);
    }

    /// Takes the reports of those that ended by themselves.
    async fn reap(&mut self) {
        while let Some(at) = self.members.iter().position(|member| member.run.is_finished()) {
            self.stop_member(at).await;
        }
    }

    /// I2 at every exit, the bad ones included; the kind of an error decides the exit code.
    fn check_exit(&mut self, ending: Ending, ended: Result<Report, RunError>) {
        let (exit, expected) = match &ended {
            Ok(report) => match report.stopped {
                StopReason::Asked => ("asked", true),
                StopReason::Idle => ("idle", ending == Ending::Idle),
                StopReason::MessagesMax => ("messages_max", ending == Ending::Few),
                _ => ("source_ended", false),
            },
            Err(error) => match error.kind {
                RunErrorKind::ShutdownTimeout => ("shutdown_timeout", ending == Ending::Hasty),
                RunErrorKind::Store(StoreErrorKind::Unavailable) => ("store", ending == Ending::FailFast),
                _ => ("other", false),
            },
        };
        assert!(expected, "{ending:?} ended with {ended:?}");
        self.exits.insert(exit);
        let report = match ended {
            Ok(report) => report,
            Err(RunError { report: Some(report), .. }) => *report,
            // It ended before the first delivery could come.
            Err(_) => return,
        };
        counts_reconcile(&report.counts).unwrap();
        assert_eq!(report.counts.pending(), 0, "I2: {:?}", report.counts);
        self.reports.push(report);
    }

    /// Kills a member wherever it is.
    async fn kill_member(&mut self, at: usize) {
        let member = self.members.remove(at);
        self.unsure = true;
        member.run.abort();
        if let Err(error) = member.run.await {
            assert!(error.is_cancelled(), "a member must not panic");
        }
    }

    async fn step(&mut self) {
        let pause = self.random.millis(60);
        tokio::time::sleep(pause).await;
        self.reap().await;
        match self.random.below(16) {
            0..=1 if self.members.len() < 3 => self.start_any_member(),
            2 if !self.members.is_empty() => {
                let at = self.random.below(self.members.len());
                self.stop_member(at).await;
            }
            3..=4 if !self.members.is_empty() => {
                let at = self.random.below(self.members.len());
                self.kill_member(at).await;
            }
            5..=7 => self.broker.disturb(&mut self.random),
            8 => {
                self.broker.set_away(true);
                let away = self.random.millis(3_000);
                tokio::time::sleep(away).await;
                self.broker.set_away(false);
            }
            9 => {
                self.store.set_away(true);
                let away = self.random.millis(3_000);
                tokio::time::sleep(away).await;
                self.store.set_away(false);
            }
            10 => self.store.restart(),
            11..=14 => self.fail_store(),
            _ => {}
        }
        self.check();
    }

    fn fail_store(&mut self) {
        use StorePoint::*;
        let mut points = vec![Begin, Begin, Record, Commit, Commit, CommitThenLost, CommitThenLost];
        if self.parks {
            points.extend([Park, NoteAttempts, TakeDue, TakeAgain, Resume, ParkedStatus]);
        }
        if self.by_key {
            points.push(ParkedKeys);
        }
        let point = self.random.one_of(&points);
        self.unsure |= point == CommitThenLost;
        let kinds = match point {
            // Whatever the answer says, it did not come from a rollback.
            CommitThenLost => vec![StoreErrorKind::Unavailable],
            Begin => {
                use StoreErrorKind::*;
                vec![Unavailable, Conflict, Timeout, SchemaMismatch]
            }
            _ => vec![StoreErrorKind::Unavailable, StoreErrorKind::Conflict, StoreErrorKind::Timeout],
        };
        for _ in 0..1 + self.random.below(4) {
            self.store.fail_next(point, self.random.one_of(&kinds));
        }
    }

    /// What holds at every moment.
    fn check(&self) {
        let counters = self.store.counters();
        let dead = self.store.dead_letters(&self.name);
        self.workload.check_effects(&counters);
        self.workload.check_dead_letters(&dead);
        self.workload.check_parked(&self.store.parked(&self.name));
        for expected in self.workload.all.iter().filter(|expected| self.broker.is_settled(expected)) {
            assert!(
                expected.is_durable(&self.store, &self.name, &dead),
                "I3: {} of {expected:?} is settled and not durable",
                expected.number
            );
        }
    }

    /// Everything is calm again: all must come to its end.
    async fn finish(&mut self) {
        self.store.clear_faults();
        while !self.members.is_empty() {
            self.stop_member(0).await;
        }
        self.start_member(Ending::Asked);
        for _ in 0..6_000 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let settled = self.workload.all.iter().all(|expected| self.broker.is_settled(expected));
            if settled && self.store.parked(&self.name).is_empty() {
                break;
            }
        }
        self.stop_member(0).await;
        self.check();
        let open = self.workload.all.iter().filter(|expected| !self.broker.is_settled(expected)).count();
        assert_eq!(open, 0, "I4: messages that never came to an end");
        assert!(self.store.parked(&self.name).is_empty(), "I4: messages that stay parked");
        let dead = self.store.dead_letters(&self.name);
        self.workload.check_end(&self.store.counters(), &dead);
        self.check_rows(dead.len());
        let counters = self.store.counters();
        match (self.kind, self.parks) {
            (Kind::Log, false) => {
                self.workload.check_order(&counters, &[Role::Good, Role::Flaky], |e| e.partition);
            }
            (Kind::Log, true) if self.by_key => {
                self.workload.check_order(&counters, &[Role::Good, Role::Flaky], Expected::key_number);
            }
            // What never fails overtakes only what does.
            (Kind::Log, true) => self.workload.check_order(&counters, &[Role::Good], |e| e.partition),
            _ => {}
        }
    }
}

impl Schedule {
    /// What all processes counted, against the table.
    fn check_rows(&self, rows: usize) {
        let counted: u64 = self.reports.iter().map(|report| report.counts.dead_letter_rows).sum();
        if !self.unsure {
            assert_eq!(counted, rows as u64, "I2: new dead letters counted, and there");
        }
        for report in &self.reports {
            let counts = &report.counts;
            let kinds = counts.dead_lettered + counts.id_reused + counts.resumed_dead;
            assert_eq!(counts.dead_letter_rows, kinds, "I2: {counts:?}");
        }
    }
}

/// How the members of schedules ended, and what they counted about parked messages.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) exits: BTreeSet<&'static str>,
    pub(crate) parked: BTreeMap<&'static str, u64>,
}

impl Ran {
    fn add(&mut self, schedule: Schedule) {
        self.exits.extend(schedule.exits);
        for report in &schedule.reports {
            let counts = &report.counts;
            for (what, count) in [
                ("parked", counts.parked),
                ("applied", counts.resumed_applied),
                ("again", counts.resumed_parked_again),
                ("dead", counts.resumed_dead),
                ("released", counts.resumed_released),
            ] {
                *self.parked.entry(what).or_default() += count;
            }
        }
    }
}

/// Runs one and adds how its members ended.
pub(crate) fn run_schedule(kind: Kind, seed: u64, ran: &mut Ran) {
    println!("{kind:?}, seed {seed}");
    paused(async {
        let mut schedule = Schedule::new(kind, seed);
        schedule.start_any_member();
        for _ in 0..STEPS {
            schedule.step().await;
        }
        schedule.finish().await;
        ran.add(schedule);
    });
}

pub(crate) fn run_quietly(kind: Kind) {
    paused(async {
        let mut schedule = Schedule::new(kind, 1);
        schedule.finish().await;
        let counts = schedule.reports[0].counts;
        assert_eq!(counts.received, schedule.workload.all.len() as u64);
        assert_eq!(counts.applied, schedule.workload.good_ids() as u64);
        assert_eq!(counts.dead_letter_rows, schedule.store.dead_letters(&schedule.name).len() as u64);
        assert_eq!(counts.dead_letter_rows, counts.dead_lettered + counts.id_reused);
        assert_eq!(counts.released, 0);
    });
}
