//! One schedule: what is sent, who comes, goes and dies, what fails, and what must hold after each step.

mod deaths;
mod faults;
mod member;
mod workload;

use crate::seeded::{Random, paused};
use deaths::{Deaths, alone_of};
use handstamp_core::decide::Policy;
use handstamp_core::invariants::counts_reconcile;
use handstamp_core::parked::OrderKey;
use handstamp_core::retry::{Backoff, RetryPolicy};
use handstamp_core::{
    Consumer, ConsumerName, ConsumerOptions, Counts, DeadLetter, FailureClass, Identity, InboxState, Order,
    Report,
};
use handstamp_testkit::fakes::{LogBroker, MemoryStore, StorePoint};
use member::Member;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use workload::{Deadly, Durable, Fate, HANDLER_TIMEOUT, MAX_ATTEMPTS, Redriven, Workload};

const GROUP: &str = "group";
const PARTITIONS: usize = 3;
const KEYS: usize = 7;
/// Processes that others counted dead while they lived.
pub(crate) const CHARGED: &str = "charged though it lived";
/// Messages given up for deaths of processes, that killed at most one.
pub(crate) const UNLUCKY: &str = "given up, and no poison";
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

struct Schedule {
    random: Random,
    order: Order,
    max_crashes: u32,
    /// Nobody is killed and every commit is answered: then the counts add up to what is in the tables. Otherwise
    /// nobody knows who wrote a row.
    polite: bool,
    broker: LogBroker,
    store: MemoryStore,
    name: ConsumerName,
    workload: Workload,
    members: Vec<Member>,
    deaths: Deaths,
    /// Of everybody that was not killed.
    counts: Vec<Counts>,
    /// A fault of the store that has not struck yet, and how long it has been waiting.
    fault: Option<(StorePoint, usize)>,
    /// No two processes ever meet, and none loses what it holds: then nobody is charged who did not die.
    calm: bool,
    /// Dead letters that an operator took out.
    taken_out: u64,
    histogram: Histogram,
}

impl Schedule {
    fn new(seed: u64, store: MemoryStore) -> Self {
        let mut random = Random(seed);
        let order = random.one_of(&[Order::Key, Order::Key, Order::Partition, Order::None]);
        store.set_latency(Duration::from_millis(1));
        let polite = random.below(4) == 0;
        let calm = !polite && random.below(6) == 0;
        Self {
            polite,
            calm,
            max_crashes: if calm { 1 + u32::try_from(random.below(3)).unwrap() } else { 3 },
            random,
            order,
            broker: LogBroker::new("credits", PARTITIONS),
            store,
            name: ConsumerName::new("wallet").unwrap(),
            workload: Workload::default(),
            members: vec![],
            deaths: Deaths::in_calm(calm),
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
            let fate = match self.random.below(40) {
                0..=1 => Fate::Flaky(failures),
                2 => Fate::Statement(failures),
                3 => Fate::Panicky(failures),
                4 => Fate::Slow(failures),
                5 => Fate::Later(failures),
                6 => Fate::Doomed,
                7..=8 => Fate::Refused,
                // In its lane, in place, or once it is parked.
                9 if !self.polite => Fate::Poison(u32::try_from(self.random.below(4)).unwrap()),
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
        let (max_attempts, max_crashes) = (MAX_ATTEMPTS, self.max_crashes);
        let retry =
            RetryPolicy { max_attempts, max_crashes, immediate, wait, backoff, ..RetryPolicy::default() };
        let node = format!("host/{}", self.histogram.0.get("member started").copied().unwrap_or(0));
        let options = ConsumerOptions {
            batch_max: 1 + self.random.below(20),
            concurrency: 1,
            handler_timeout: HANDLER_TIMEOUT,
            policy: Policy { retry, ..Policy::default() },
            order: self.order,
            parked_max: self.random.one_of(&[8, 100_000, 100_000]),
            node: node.clone(),
            ..ConsumerOptions::default()
        };
        let deadly = Arc::new(Deadly::default());
        let consumer = Consumer::builder(self.name.clone())
            .source(self.broker.source(GROUP), Identity::Header("id".into()))
            .store(self.store.clone())
            .handler(self.workload.handler(&deadly, self.max_crashes))
            .options(options);
        let (deaths, store, name) = (self.deaths.clone(), self.store.clone(), self.name.clone());
        let died = node.clone();
        self.members.push(Member::start(node, consumer, deadly, move |of| {
            deaths.of(&store, &name, &died, Some(of));
        }));
        self.event("member started");
    }

    async fn stop_member(&mut self) {
        let at = self.random.below(self.members.len());
        let member = self.members.remove(at);
        match member.stop().await {
            Some(report) => self.stopped(report),
            None => self.event("process died of a message"),
        }
    }

    fn stopped(&mut self, report: Report) {
        counts_reconcile(&report.counts).unwrap();
        assert_eq!(report.counts.pending(), 0, "I2: {:?}", report.counts);
        self.counts.push(report.counts);
        self.event("member stopped");
    }

    /// Takes those away that died of a message.
    async fn bury(&mut self) {
        while let Some(at) = self.members.iter().position(Member::has_died) {
            let report = self.members.remove(at).stop().await;
            assert!(report.is_none(), "nobody stops by itself: {report:?}");
            self.event("process died of a message");
        }
    }

    async fn kill_member(&mut self) {
        let at = self.random.below(self.members.len());
        let node = &self.members[at].node;
        // One that is no poison is alone with one that is killed so, and with one that its handler kills: it would
        // rightly be given up.
        let last = |dedup: &_| self.deaths.with(dedup) > self.deaths.killed(dedup) || self.max_crashes < 2;
        let is_good = |dedup: &_| self.workload.with_dedup(dedup).is_some_and(|sent| !sent.fate.kills());
        let alone = alone_of(&self.store, &self.name, node);
        if self.members[at].has_died() || alone.iter().any(|dedup| last(dedup) && is_good(dedup)) {
            return;
        }
        let member = self.members.remove(at);
        self.deaths.of(&self.store, &self.name, &member.node, None);
        member.kill().await;
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
        let crashed = letter.class == FailureClass::Crashed;
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
                let deaths = self.deaths.killed(&dedup);
                self.workload.find(&id).redriven = Some(Redriven { published, history, deaths });
                self.event("dead letter sent back");
            }
        }
        self.taken_out += 1;
        if crashed {
            self.event("dead of crashes");
        }
    }

    async fn step(&mut self) {
        self.event("steps");
        for _ in 0..self.random.below(3) {
            self.publish();
        }
        for _ in 0..4 {
            let pause = self.random.millis(40);
            tokio::time::sleep(pause).await;
            self.watch_fault();
            self.fail_store();
        }
        self.bury().await;
        let members_max = if self.calm { 1 } else { 3 };
        match self.random.below(24) {
            0..=3 | 16..=19 if self.members.len() < members_max => self.start_member(),
            _ if self.members.is_empty() => self.start_member(),
            4 if self.members.len() > 1 => self.stop_member().await,
            5..=6 if !self.members.is_empty() && !self.polite => self.kill_member().await,
            7..=9 if !self.calm => self.disturb(),
            10 if !self.polite && !self.calm => {
                self.store.set_away(true);
                let away = self.random.millis(1_000);
                tokio::time::sleep(away).await;
                self.store.set_away(false);
                self.event("store away");
            }
            11 if !self.polite && !self.calm => {
                self.store.restart();
                self.event("store restarted");
            }
            12..=13 => self.operate(),
            14..=15 if !self.polite => self.workload.arm(),
            _ => {}
        }
        let behind = self.check().behind();
        self.histogram.add("waiting behind its key, at steps", behind as u64);
    }

    /// What holds at every moment.
    fn check(&mut self) -> Durable {
        let durable = Durable::of(&self.store, &self.name);
        let sent = &self.workload.sent;
        let of = |one| durable.check(&self.store, &self.name, one, &self.deaths, self.max_crashes);
        let states: Vec<_> = sent.iter().map(of).collect();
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
        for _ in 0..6_000 {
            self.bury().await;
            if self.members.is_empty() {
                self.start_member();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            if self.is_settled() && self.store.parked(&self.name).is_empty() {
                break;
            }
        }
        self.stop_member().await;
        let durable = self.check();
        self.check_starts();
        assert!(self.is_settled(), "I4: messages that never came to an end");
        assert_eq!(durable.parked(), 0, "messages that stay parked for ever");
        for one in &self.workload.sent {
            let state = self.store.inbox_state(&self.name, &one.message_id());
            let good = state == Some(InboxState::Applied);
            assert!(
                good || one.fate.may_die() || self.deaths.is_unlucky(&one.dedup()),
                "{one:?} ended as {state:?}"
            );
        }
        self.check_counts(&durable);
    }

    /// Nobody is left charged, or suspected, that did not die.
    fn check_starts(&mut self) {
        assert_eq!(self.store.parked_starts(&self.name), vec![], "nothing is parked any more");
        for crash in self.store.crashes(&self.name).iter().filter(|_| self.calm) {
            let alone = self.deaths.was_alone(&crash.dedup, &crash.by.node);
            assert!(alone, "{crash:?} is kept, and it did not die alone with it");
        }
        for orphan in self.store.starts(&self.name) {
            let dead = self.deaths.is_dead(&orphan.start.by.node);
            assert!(dead || !self.calm, "{orphan:?} stays, and it stopped");
        }
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
        let crashed = |letter: &&DeadLetter| letter.class == FailureClass::Crashed;
        let crashed = self.store.dead_letters(&self.name).iter().filter(crashed).count() as u64;
        let (alone, together) = self.deaths.counts();
        let (lived, unlucky) = self.deaths.wrongs();
        let all = [
            ("dead of crashes", crashed),
            (CHARGED, lived),
            (UNLUCKY, unlucky),
            ("death with a message alone", alone),
            ("death with nothing alone", together),
            ("death met on a lane", sum(|counts| counts.crashes_found)),
            ("died of a message that is no poison", self.workload.killed()),
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
pub(crate) fn run(seed: u64, store: MemoryStore) -> Histogram {
    println!("seed {seed}");
    paused(async {
        let mut schedule = Schedule::new(seed, store);
        schedule.start_member();
        for _ in 0..STEPS {
            schedule.step().await;
        }
        schedule.finish().await;
        schedule.histogram
    })
}
