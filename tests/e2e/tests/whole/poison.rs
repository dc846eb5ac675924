//! A message that ends the process which handles it: whoever comes next says what was in hand, and after three deaths with
//! it alone it is a dead letter. Its neighbours are applied, once; stops between the deaths count as nothing.

#![allow(clippy::panic, reason = "helpers of tests: a panic is the failure report")]

use handstamp_e2e::child::{Subject, count};
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Topic, brokers};
use handstamp_e2e::world::{Kind, World};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

const SUBJECT: &str = env!("CARGO_BIN_EXE_subject");
const LIMIT: Duration = Duration::from_secs(120);
const IN_HAND: &str = "poison in hand";
const TOGETHER: &str = "a process died while it handled messages together";
const ALONE: &str = "a process died while it handled one message alone";
/// Said of a death that another process had warned of.
const ALONE_KNOWN: &str = "counted before: a process died while it handled this message alone";

/// Which of the credits is the poison: with neighbours on both sides.
fn poison_of(credits: i64) -> i64 {
    credits / 2 + 33
}

/// A log of credits on a real source, and a real database.
struct Bed {
    world: World,
    topic: Option<Topic>,
    credits: i64,
    /// What every subject is told.
    told: String,
}

/// How a subject ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Died,
    /// Asked to stop while it had the poison in hand.
    Stopped,
    Well,
}

impl Bed {
    /// `credits` of 1.
    async fn new(kind: Kind, credits: i64, told: &str) -> Self {
        let id = |n: i64| format!("evt-{n}");
        let world = World::create(kind, SUBJECT).await;
        let mut told = format!("attempts=1 poison={} {told}", id(poison_of(credits)));
        let topic = if kind == Kind::Postgres {
            let topic = Topic::create(1).await;
            (0..credits).for_each(|n| topic.send(&id(n), "1", &credit(&id(n), n % 1000, 1)));
            topic.flush();
            let (broker, name, group) = (brokers(), &topic.name, &topic.group);
            told = format!("{told} source=kafka brokers={broker} topic={name} group={group} idle-ms=1000");
            Some(topic)
        } else {
            let lines: Vec<String> = (0..credits).map(|n| credit(&id(n), n % 1000, 1)).collect();
            world.write_lines("in.jsonl", &lines);
            None
        };
        Self { world, topic, credits, told }
    }

    /// One process. Where the poison does not end it by itself, it is ended by SIGKILL, or asked to stop.
    fn process(&self, stops: bool) -> (Ended, Vec<String>) {
        let mut subject = self.world.start(&self.told);
        let kills = self.told.contains("poison-by=loop") || self.told.contains("poison-by=wait");
        if kills || stops {
            let until = Instant::now() + LIMIT;
            while count(&subject.log(), IN_HAND) == 0 && subject.is_running() {
                assert!(Instant::now() < until, "neither poison nor end: {}", subject.log().join("\n"));
                std::thread::sleep(Duration::from_millis(5));
            }
            if subject.is_running() && stops {
                subject.terminate();
            } else if subject.is_running() {
                return (Ended::Died, subject.kill());
            }
        }
        let (status, log) = Subject::wait(subject, LIMIT);
        match (status.signal(), status.code()) {
            (Some(_), _) => (Ended::Died, log),
            (_, Some(0)) => (Ended::Well, log),
            _ if stops => (Ended::Stopped, log),
            _ => panic!("{status}: {}", log.join("\n")),
        }
    }

    /// Processes until one ends well, asked to stop at these; says how many died, after so many deaths each log's
    /// account of them being complete.
    fn live(&self, alone_from_the_first: bool, stops: &[usize]) -> usize {
        let (mut deaths, mut stopped, mut warned) = (0, 0, 0);
        for round in 0..40 {
            let (ended, log) = self.process(stops.contains(&round));
            let shown = || log.join("\n");
            let together = usize::from(deaths > 0 && !alone_from_the_first);
            assert_eq!(count(&log, TOGETHER), together, "after {deaths} deaths: {}", shown());
            let (new, known) = (count(&log, ALONE), count(&log, ALONE_KNOWN));
            assert_eq!(new + known, deaths - together, "after {deaths} deaths: {}", shown());
            warned += new;
            self.assert_spans(&log);
            match ended {
                Ended::Died => deaths += 1,
                Ended::Stopped => stopped += 1,
                Ended::Well => {
                    assert_eq!(stopped, stops.len(), "every stop met the poison in hand");
                    assert_eq!(count(&log, "class=\"crashed\""), 1, "{}", shown());
                    assert_eq!(warned, deaths - together, "each death alone is warned of once");
                    return deaths;
                }
            }
        }
        panic!("{deaths} deaths and no end");
    }

    /// Each account names the span, and the message where it was one alone.
    fn assert_spans(&self, log: &[String]) {
        let told = [TOGETHER, ALONE, ALONE_KNOWN];
        for line in log.iter().filter(|line| told.iter().any(|what| line.contains(what))) {
            let (first, last, held) = (field(line, "first"), field(line, "last"), field(line, "count"));
            if let Some(topic) = &self.topic {
                assert!(line.contains(&format!("lane={}[0]", topic.name)), "{line}");
                assert!((first..=last).contains(&poison_of(self.credits)), "{line}");
                assert_eq!(held, last - first + 1, "{line}");
            }
            let known = line.contains("before that") || line.contains(ALONE_KNOWN);
            assert_ne!(line.contains("WARN"), known, "{line}");
            assert!(line.contains("node=process "), "{line}");
            let one = !line.contains(TOGETHER);
            assert_eq!((held == 1, first == last), (one, one), "{line}");
            assert_eq!(one, line.contains(&format!(" id=evt-{} ", poison_of(self.credits))), "{line}");
        }
    }

    /// All others are applied once, the poison is dead with its three crashes, and nothing is left behind.
    async fn end(self) {
        self.world.verdict().await.assert_once(self.credits - 1, 1);
        assert_eq!(self.world.count("{dead_letters} WHERE class = 'crashed'").await, 1);
        assert_eq!(self.world.count("{dead_letters}").await, 1);
        assert_eq!(self.world.count("{attempts} WHERE class = 'crashed'").await, 3);
        for table in ["{crashes}", "{starts}", "{parked_starts}"] {
            assert_eq!(self.world.count(table).await, 0, "{table}");
        }
        if let Some(topic) = self.topic {
            topic.delete().await;
        }
        self.world.end().await;
    }
}

fn field(line: &str, name: &str) -> i64 {
    let value = line.split_once(&format!(" {name}=")).and_then(|(_, rest)| rest.split(' ').next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
}

async fn abort_in_a_batch(kind: Kind) {
    let bed = Bed::new(kind, 5_000, "batch=500").await;
    assert_eq!(bed.live(false, &[]), 4, "once in its batch, charged to nobody, and three times alone");
    bed.end().await;
}

async fn abort_alone(kind: Kind) {
    let bed = Bed::new(kind, 1_000, "batch=1").await;
    assert_eq!(bed.live(true, &[]), 3);
    bed.end().await;
}

/// Ten stops, each while the message is in hand and cut off by `shutdown_timeout`: in its batch, and alone.
async fn stops_in_between(kind: Kind) {
    let told = "batch=100 poison-after-ms=400 shutdown-ms=50";
    let bed = Bed::new(kind, 400, told).await;
    assert_eq!(bed.live(false, &[0, 1, 2, 4, 5, 6, 8, 9, 11, 12]), 4);
    bed.end().await;
}

async fn each_way_of_dying(kind: Kind) {
    for by in ["overflow", "loop", "wait"] {
        let bed = Bed::new(kind, 300, &format!("batch=100 poison-by={by}")).await;
        assert_eq!(bed.live(false, &[]), 4, "{by}");
        bed.end().await;
    }
}

macro_rules! on_both_stores {
    ($($case:ident)*) => {
        /// A file of JSON lines into SQLite.
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Kind::Sqlite).await;
            })*
        }

        /// Kafka into Postgres.
        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                super::$case(super::Kind::Postgres).await;
            })*
        }
    };
}

on_both_stores! {
    abort_in_a_batch
    abort_alone
    stops_in_between
    each_way_of_dying
}
