//! One schedule: what is sent, who comes, goes and dies, what fails, and what must hold after each step.

mod workload;

use handstamp_core::decide::Policy;
use handstamp_core::delivery::Settled;
use handstamp_core::invariants::counts_reconcile;
use handstamp_core::parked::OrderKey;
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{
    Consumer, ConsumerName, ConsumerOptions, Counts, Identity, InboxState, Order, Report, RunError,
    StoreErrorKind,
};
use handstamp_testkit::fakes::{LogBroker, MemoryStore, ParkingBreak, StorePoint};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};
use workload::{Durable, Fate, HANDLER_TIMEOUT, MAX_ATTEMPTS, Workload};

const GROUP: &str = "group";
const PARTITIONS: usize = 3;
const KEYS: usize = 7;
/// Steps of one schedule.
pub(crate) const STEPS: usize = 125;

/// How often each kind of event came.
#[derive(Debug, Default)]
pub(crate) struct Histogram(pub(crate) BTreeMap<&'static str, u64>);

impl Histogram {
    fn add(&mut self, event: &'static str, count: u64) {
        *self.0.entry(event).or_default() += count;
    }

    pub(crate) fn and(mut self, other: Self) -> Self {
        for (event, count) in other.0 {
            self.add(event, count);
        }
        self
    }
}

impl fmt::Display for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(event, count)| writeln!(f, "{count:>9} {event}"))
    }
}

/// A small generator (splitmix): the same schedule for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn millis(&mut self, bound: usize) -> Duration {
        Duration::from_millis(self.below(bound) as u64)
    }
}

struct Member {
    stop: oneshot::Sender<()>,
    run: JoinHandle<Result<Report, RunError>>,
}

struct Schedule {
    random: Random,
    order: Order,
    /// Nobody is killed and every commit is answered: then the counts add up to what is in the tables. Otherwise
    /// nobody knows who wrote a row.
    polite: bool,
    broker: LogBroker,
    store: MemoryStore,
    name: ConsumerName,
    workload: Workload,
    members: Vec<Member>,
    /// Of everybody that was not killed.
    counts: Vec<Counts>,
    /// A fault of the store that has not struck yet, and how long it has been waiting.
    fault: Option<(StorePoint, usize)>,
    /// Dead letters that an operator took out.
    taken_out: u64,
    histogram: Histogram,
}

impl Schedule {
    fn new(seed: u64, broken: Option<ParkingBreak>) -> Self {
        let mut random = Random(seed);
        let order = random.one_of(&[Order::Key, Order::Key, Order::Partition, Order::None]);
        let store = MemoryStore::broken_parking(broken);
        store.set_latency(Duration::from_millis(1));
        Self {
            polite: random.below(4) == 0,
            random,
            order,
            broker: LogBroker::new("credits", PARTITIONS),
            store,
            name: ConsumerName::new("wallet").unwrap(),
            workload: Workload::default(),
            members: vec![],
            counts: vec![],
            fault: None,
            taken_out: 0,
            histogram: Histogram::default(),
        }
    }

    fn event(&mut self, event: &'static str) {
        self.histogram.add(event, 1);
    }

    fn publish(&mut self) {
        let copies = self.random.below(10) == 0 && !self.workload.sent.is_empty();
        let number = if copies {
            self.event("copy sent");
            self.random.below(self.workload.sent.len())
        } else {
            let key = self.random.below(KEYS + 1);
            let key = u8::try_from(key).ok().filter(|key| usize::from(*key) < KEYS);
            let failures = 1 + u32::try_from(self.random.below(3)).unwrap();
            let fate = match self.random.below(24) {
                0..=1 => Fate::Flaky(failures),
                2 => Fate::Statement(failures),
                3 => Fate::Panicky(failures),
                4 => Fate::Slow(failures),
                5 => Fate::Later(failures),
                6 => Fate::Doomed,
                7..=8 => Fate::Refused,
                _ => Fate::Good,
            };
            let free = self.random.below(PARTITIONS);
            let partition = key.map_or(free, |key| usize::from(key) % PARTITIONS);
            self.event("message sent");
            self.workload.make(key, fate, partition)
        };
        let sent = &mut self.workload.sent[number];
        sent.offsets.push(self.broker.publish(sent.partition, sent.payload.clone()).unwrap());
    }

    fn start_member(&mut self) {
        let second = Duration::from_secs(1);
        let backoff = Backoff { base: second / 10, cap: second };
        let immediate = 1 + u32::try_from(self.random.below(2)).unwrap();
        let wait = Duration::from_millis(5);
        let retry =
            RetryPolicy { max_attempts: MAX_ATTEMPTS, immediate, wait, backoff, ..RetryPolicy::default() };
        let options = ConsumerOptions {
            batch_max: 1 + self.random.below(20),
            concurrency: 1 + self.random.below(3),
            handler_timeout: HANDLER_TIMEOUT,
            policy: Policy { retry, ..Policy::default() },
            order: self.order,
            parked_max: self.random.one_of(&[8, 100_000, 100_000]),
            node: format!("host/{}", self.histogram.0.get("member started").copied().unwrap_or(0)),
            ..ConsumerOptions::default()
        };
        let consumer = Consumer::builder(self.name.clone())
            .source(self.broker.source(GROUP), Identity::Header("id".into()))
            .store(self.store.clone())
            .handler(self.workload.handler())
            .options(options);
        let (stop, stopped) = oneshot::channel::<()>();
        let run = tokio::task::spawn_local(async move {
            let stopped = async {
                // A dropped sender is a dead process, which stops nothing.
                if stopped.await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            consumer.run_local(stopped).await
        });
        self.members.push(Member { stop, run });
        self.event("member started");
    }

    async fn stop_member(&mut self) {
        let at = self.random.below(self.members.len());
        let member = self.members.remove(at);
        member.stop.send(()).expect("nothing else ends a member");
        let report = member.run.await.expect("a member must not panic").expect("a member must not fail");
        counts_reconcile(&report.counts).unwrap();
        assert_eq!(report.counts.pending(), 0, "I2: {:?}", report.counts);
        self.counts.push(report.counts);
        self.event("member stopped");
    }

    async fn kill_member(&mut self) {
        let at = self.random.below(self.members.len());
        let member = self.members.remove(at);
        member.run.abort();
        assert!(member.run.await.is_err_and(|error| error.is_cancelled()), "a member must not panic");
        self.event("member killed");
    }

    /// An operator looks at one dead letter: fixes the cause and sends it back, only sends it back, or gives up.
    fn operate(&mut self) {
        let dead = self.store.dead_letters(&self.name);
        if dead.is_empty() {
            return;
        }
        let letter = &dead[self.random.below(dead.len())];
        let (dedup, id) = (letter.dedup(), letter.id.clone().unwrap());
        let history = self.store.attempts(&self.name, &dedup).len();
        let published = self.workload.sent.len();
        let order_key = OrderKey::of(&letter.record).filter(|_| self.order == Order::Key);
        match self.random.below(4) {
            0 => {
                assert!(self.store.discard(&self.name, &dedup));
                self.event("dead letter discarded");
            }
            choice => {
                if choice > 1 {
                    self.workload.fix(id.as_str().unwrap());
                }
                assert!(self.store.redrive(&self.name, &dedup, order_key));
                self.workload.find(&id).redriven = Some((published, history));
                self.event("dead letter sent back");
            }
        }
        self.taken_out += 1;
    }

    /// The next fault of the store, as soon as the last one has struck.
    fn fail_store(&mut self) {
        use StorePoint::*;
        if self.fault.is_some() {
            return;
        }
        let often = [Begin, Commit, Park, NoteAttempts, TakeDue, TakeAgain, Resume];
        // Those that nothing meets for a long time, or not in every schedule.
        let rare = [Record, CommitThenLost, ParkedKeys];
        let point =
            if self.random.below(5) < 3 { self.random.one_of(&often) } else { self.random.one_of(&rare) };
        let kind = match point {
            // Whatever the answer says, it did not come from a rollback.
            CommitThenLost if self.polite => return,
            // No answer from a commit: it may be durable.
            Commit if self.polite => self.random.one_of(&[StoreErrorKind::Conflict, StoreErrorKind::Timeout]),
            CommitThenLost => StoreErrorKind::Unavailable,
            _ => {
                use StoreErrorKind::*;
                self.random.one_of(&[Unavailable, Conflict, Timeout])
            }
        };
        self.store.fail_next(point, kind);
        self.fault = Some((point, 0));
    }

    /// Counts a fault once it has struck; one that nothing meets makes room.
    fn watch_fault(&mut self) {
        let Some((point, waited)) = self.fault else { return };
        if self.store.faults_left() == 0 {
            self.fault = None;
            self.event(match point {
                StorePoint::Begin => "fault in begin",
                StorePoint::Record => "fault in record",
                StorePoint::Commit => "fault in commit",
                StorePoint::CommitThenLost => "answer to a commit lost",
                StorePoint::Park => "fault in park",
                StorePoint::NoteAttempts => "fault in note_attempts",
                StorePoint::ParkedKeys => "fault in parked_keys",
                StorePoint::TakeDue => "fault in take_due",
                StorePoint::TakeAgain => "fault in take_again",
                StorePoint::Resume => "fault in resume",
                _ => "fault elsewhere",
            });
        } else if waited > 12 {
            self.store.clear_faults();
            self.fault = None;
        } else {
            self.fault = Some((point, waited + 1));
        }
    }

    fn disturb(&mut self) {
        match self.random.below(10) {
            0..=3 => {
                self.broker.rebalance(GROUP);
                self.event("rebalance");
            }
            4..=5 => {
                self.broker.evict_all(GROUP);
                self.event("eviction");
            }
            6..=7 => {
                let answer = self.random.one_of(&[Settled::Unknown, Settled::Failed]);
                self.broker.refuse_commits(GROUP, &[answer; 3]);
                self.event("commits of offsets refused");
            }
            _ => {
                self.broker.rewind(GROUP);
                self.event("rewind");
            }
        }
    }

    async fn step(&mut self) {
        self.event("steps");
        for _ in 0..self.random.below(3) {
            self.publish();
        }
        let pause = self.random.millis(60);
        tokio::time::sleep(pause).await;
        match self.random.below(24) {
            0..=3 if self.members.len() < 3 => self.start_member(),
            4 if self.members.len() > 1 => self.stop_member().await,
            5..=6 if !self.members.is_empty() && !self.polite => self.kill_member().await,
            7..=9 => self.disturb(),
            10 if !self.polite => {
                self.store.set_away(true);
                let away = self.random.millis(1_000);
                tokio::time::sleep(away).await;
                self.store.set_away(false);
                self.event("store away");
            }
            11 if !self.polite => {
                self.store.restart();
                self.event("store restarted");
            }
            12..=13 => self.operate(),
            _ => {}
        }
        self.watch_fault();
        if self.random.below(4) > 0 {
            self.fail_store();
        }
        let behind = self.check().behind();
        self.histogram.add("waiting behind its key, at steps", behind as u64);
    }

    /// What holds at every moment.
    fn check(&mut self) -> Durable {
        let durable = Durable::of(&self.store, &self.name);
        let sent = &self.workload.sent;
        let states: Vec<_> = sent.iter().map(|one| durable.check(&self.store, &self.name, one)).collect();
        for (one, state) in sent.iter().zip(&states) {
            let committed = self.broker.committed(GROUP, one.partition).unwrap_or(0);
            let settled = one.offsets.iter().any(|offset| *offset < committed);
            assert!(!settled || state.is_some(), "I3: {one:?} is settled and not durable");
        }
        durable.check_order(self.order, sent, &states);
        durable
    }

    fn is_settled(&self) -> bool {
        self.workload.sent.iter().all(|one| {
            let committed = self.broker.committed(GROUP, one.partition).unwrap_or(0);
            one.offsets.iter().all(|offset| *offset < committed)
        })
    }

    /// Everything is calm again: all must come to its end.
    async fn finish(&mut self) {
        self.store.clear_faults();
        while !self.members.is_empty() {
            self.stop_member().await;
        }
        self.start_member();
        for _ in 0..6_000 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if self.is_settled() && self.store.parked(&self.name).is_empty() {
                break;
            }
        }
        self.stop_member().await;
        let durable = self.check();
        assert!(self.is_settled(), "I4: messages that never came to an end");
        assert_eq!(durable.parked(), 0, "messages that stay parked for ever");
        for one in &self.workload.sent {
            let state = self.store.inbox_state(&self.name, &one.message_id());
            let good = state == Some(InboxState::Applied);
            assert!(good || one.fate.may_die(), "{one:?} ended as {state:?}");
        }
        self.check_counts(&durable);
    }

    /// What all processes counted, against the tables.
    fn check_counts(&mut self, durable: &Durable) {
        let sum = |of: fn(&Counts) -> u64| -> u64 { self.counts.iter().map(of).sum() };
        let applied = sum(|counts| counts.applied) + sum(|counts| counts.resumed_applied);
        let dead = sum(|counts| counts.dead_letter_rows);
        if self.polite {
            assert_eq!(applied, u64::try_from(durable.effects()).unwrap(), "I2: applied, and effects");
            assert_eq!(dead, durable.dead() as u64 + self.taken_out, "I2: dead letters counted, and there");
        }
        let all = [
            ("parked", sum(|counts| counts.parked)),
            ("retry applied", sum(|counts| counts.resumed_applied)),
            ("retry failed again", sum(|counts| counts.resumed_parked_again)),
            ("retry given up", sum(|counts| counts.resumed_dead)),
            ("retry left to others", sum(|counts| counts.resumed_released)),
            ("dead letter", sum(|counts| counts.dead_lettered)),
            ("applied", sum(|counts| counts.applied)),
        ];
        for (event, count) in all {
            self.histogram.add(event, count);
        }
    }
}

/// Runs one, on a store that may be broken on purpose, and tells what came.
pub(crate) fn run(seed: u64, broken: Option<ParkingBreak>) -> Histogram {
    println!("seed {seed}");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut schedule = Schedule::new(seed, broken);
        schedule.start_member();
        for _ in 0..STEPS {
            schedule.step().await;
        }
        schedule.finish().await;
        schedule.histogram
    })
}
