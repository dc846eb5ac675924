//! Copies of dead letters: behind the commit and before the settle of what was delivered, in front of the commit of
//! what was parked; what an end in between, a sink that is away and one that refuses make of them. On a paused clock.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests: a panic is the failure report"
)]

mod retry;
#[allow(dead_code, reason = "shared by test binaries, none of which needs all of it")]
mod seeded;

use handstamp_core::retry::Backoff;
use handstamp_core::{ConsumerOptions, FailureClass, InboxState, Record, Sink, SinkError, StoreErrorKind};
use handstamp_testkit::Payload;
use handstamp_testkit::fakes::StorePoint;
use retry::{World, dedup, options};
use seeded::{Random, paused};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

const TOPIC: &str = "credits.dlq";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Mood {
    #[default]
    Takes,
    Away,
    Refuses,
    Hangs,
}

/// What it was asked for, and how the message stood then.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    id: String,
    state: Option<InboxState>,
    settled: Option<i64>,
    /// Transactions begun and committed.
    transactions: (u64, u64),
}

/// A sink that looks at the store and the broker while it is asked.
#[derive(Clone)]
struct Desk {
    world: World,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<Mutex<Vec<Asked>>>,
    taken: Arc<Mutex<Vec<Record>>>,
}

impl Desk {
    fn new(world: &World, mood: Mood) -> Self {
        let mood = Arc::new(Mutex::new(mood));
        Self { world: world.clone(), mood, asked: Arc::default(), taken: Arc::default() }
    }

    fn is_now(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn taken(&self) -> Vec<Record> {
        self.taken.lock().unwrap().clone()
    }

    async fn until_asked(&self) {
        for _ in 0..100_000 {
            if !self.asked().is_empty() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("no copy was asked for");
    }
}

fn header(record: &Record, name: &str) -> Option<String> {
    let values: Vec<_> = record.headers.all(name.as_bytes()).collect();
    assert!(values.len() < 2, "{name} is there {} times", values.len());
    values.first().map(|value| String::from_utf8(value.unwrap().to_vec()).unwrap())
}

impl Sink for Desk {
    async fn publish(&self, records: &[Record]) -> Vec<Result<(), SinkError>> {
        for record in records {
            assert_eq!(&*record.origin.topic, TOPIC);
            let id = header(record, "handstamp-id").unwrap_or_default();
            let state = if id.is_empty() { None } else { self.world.state(&id) };
            let settled = self.world.broker.committed("group", 0);
            let transactions = self.world.store.transactions();
            self.asked.lock().unwrap().push(Asked { id, state, settled, transactions });
        }
        // A broker takes its time.
        sleep(Duration::from_millis(5)).await;
        let mood = *self.mood.lock().unwrap();
        if mood == Mood::Hangs {
            std::future::pending::<()>().await;
        }
        let answer = |record: &Record| match mood {
            Mood::Away => Err(SinkError::new(true, "no broker")),
            Mood::Refuses => Err(SinkError::new(false, "the topic is unknown")),
            _ => {
                self.taken.lock().unwrap().push(record.clone());
                Ok(())
            }
        };
        records.iter().map(answer).collect()
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// What is parked waits for up to an hour.
fn late(max_attempts: u32) -> ConsumerOptions {
    let mut late = options(max_attempts);
    late.policy.retry.backoff = Backoff { base: HOUR, cap: HOUR };
    late
}

/// The second of three messages is given up at its first failure.
fn with_one_dead() -> World {
    let world = World::new();
    world.fails("a2", 1_000);
    world.publish(0, Some("k"), &["a1", "a2", "a3"]);
    world
}

#[test]
fn a_copy_is_made_behind_the_commit_and_before_the_settle() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Takes);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.dead_letter_copies == 1 && counts.settled() == 3).await;
        let asked = desk.asked();
        assert_eq!((asked.len(), &*asked[0].id, asked[0].state), (1, "a2", Some(InboxState::Dead)));
        assert!(asked[0].settled.unwrap_or(0) <= 1, "{asked:?}");
        let counts = run.counts().await;
        assert_eq!((counts.applied, counts.dead_lettered, counts.released), (2, 1, 0));
        assert_eq!(world.broker.committed("group", 0), Some(3));
        let copy = &desk.taken()[0];
        assert_eq!((copy.key.as_deref(), copy.value.as_deref()), (Some(&b"k"[..]), Some(&b"a2"[..])));
        for (name, value) in [
            ("id", "a2"),
            ("handstamp-class", "failed"),
            ("handstamp-reason", "not yet"),
            ("handstamp-consumer", "wallet"),
            ("handstamp-topic", "credits"),
            ("handstamp-partition", "0"),
            ("handstamp-offset", "1"),
            ("handstamp-attempts", "1"),
        ] {
            assert_eq!(header(copy, name).as_deref(), Some(value), "{name}");
        }
    });
}

#[test]
fn an_end_between_commit_and_copy_loses_no_copy() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Hangs);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        desk.until_asked().await;
        assert_eq!(world.state("a2"), Some(InboxState::Dead));
        run.kill().await;
        assert!(world.broker.committed("group", 0).unwrap_or(0) <= 1);
        desk.is_now(Mood::Takes);
        // The store is away once where the reason is read back.
        world.store.fail_next(StorePoint::KeptLetters, StoreErrorKind::Unavailable);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.dead_letter_copies == 1 && counts.settled() >= 2).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_lettered, counts.dead_letter_rows, world.runs("a2")), (0, 0, 1));
        assert_eq!(world.store.faults_left(), 0);
        assert_eq!(world.broker.committed("group", 0), Some(3));
        let copy = &desk.taken()[0];
        let told =
            ["handstamp-class", "handstamp-reason", "handstamp-attempts"].map(|name| header(copy, name));
        assert_eq!(told, ["failed", "not yet", "1"].map(|text| Some(text.to_owned())));
    });
}

#[test]
fn what_is_dead_no_more_when_its_delivery_comes_again_needs_no_copy() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Hangs);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        desk.until_asked().await;
        run.kill().await;
        world.store.discard(&world.name, &dedup("a2"));
        let desk = Desk::new(&world, Mood::Takes);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() >= 2).await;
        run.counts().await;
        assert_eq!((desk.asked().len(), world.broker.committed("group", 0)), (0, Some(3)));
    });
}

#[test]
fn while_the_sink_is_away_the_lane_waits_and_nothing_is_charged() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Away);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        desk.until_asked().await;
        world.publish(0, None, &["a4"]);
        sleep(Duration::from_secs(120)).await;
        let tries = desk.asked().len();
        assert!((5..200).contains(&tries), "{tries} tries in two minutes");
        assert!(world.broker.committed("group", 0).unwrap_or(0) <= 1, "settled without a copy");
        assert_eq!((world.effects("a4"), world.runs("a2")), (0, 1));
        desk.is_now(Mood::Takes);
        run.until(|counts| counts.settled() == 4).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_letter_copies, counts.attempts_failed, counts.duplicate), (1, 1, 0));
        assert_eq!((desk.taken().len(), world.broker.committed("group", 0)), (1, Some(4)));
    });
}

#[test]
fn a_sink_that_never_answers_is_asked_again() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Hangs);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        desk.until_asked().await;
        desk.is_now(Mood::Takes);
        run.until(|counts| counts.settled() == 3 && counts.dead_letter_copies == 1).await;
        run.counts().await;
        assert_eq!((desk.asked().len(), world.broker.committed("group", 0)), (2, Some(3)));
    });
}

#[test]
fn a_stop_does_not_wait_for_a_sink_that_is_away_and_the_copy_follows() {
    for mood in [Mood::Away, Mood::Hangs] {
        paused(async {
            let world = with_one_dead();
            let desk = Desk::new(&world, mood);
            let run = world.start_copying(options(1), desk.clone(), TOPIC);
            desk.until_asked().await;
            let asked_to_stop = Instant::now();
            let counts = run.counts().await;
            assert!(asked_to_stop.elapsed() < Duration::from_secs(5), "{:?}", asked_to_stop.elapsed());
            assert_eq!((counts.dead_lettered, counts.dead_letter_copies), (1, 0));
            assert_eq!(world.broker.committed("group", 0), Some(1), "the dead one is not settled");
            desk.is_now(Mood::Takes);
            let run = world.start_copying(options(1), desk.clone(), TOPIC);
            run.until(|counts| counts.settled() == 2).await;
            let counts = run.counts().await;
            assert_eq!((counts.dead_letter_copies, world.effects("a3")), (1, 1));
            assert_eq!(world.broker.committed("group", 0), Some(3));
        });
    }
}

#[test]
fn what_the_sink_refuses_for_good_is_counted_and_the_lane_goes_on() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Refuses);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 3).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_letter_copies, counts.dead_letter_copies_failed), (0, 1));
        assert_eq!((desk.asked().len(), world.dead().len()), (1, 1));
        assert_eq!(world.broker.committed("group", 0), Some(3));
    });
}

#[test]
fn what_was_read_where_copies_go_does_not_come_back() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Takes);
        let run = world.start_copying(options(1), desk.clone(), "credits");
        run.until(|counts| counts.settled() == 3).await;
        assert_eq!(run.counts().await.dead_letter_copies_failed, 1);
        assert_eq!((desk.asked().len(), world.broker.committed("group", 0)), (0, Some(3)));
    });
}

#[test]
fn a_reused_id_and_a_message_without_one_are_copied_too() {
    paused(async {
        let world = World::new();
        world.publish(0, None, &["a1"]);
        let other = Payload::value("other").with_header("id", Some("a1".into()));
        world.broker.publish(0, other).unwrap();
        world.broker.publish(0, Payload::value("bare")).unwrap();
        let desk = Desk::new(&world, Mood::Takes);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 3).await;
        run.counts().await;
        let classes = |desk: &Desk| -> Vec<_> {
            desk.taken().iter().map(|copy| header(copy, "handstamp-class").unwrap()).collect()
        };
        assert_eq!(classes(&desk), ["id_reused", "identity"]);
        assert_eq!(desk.taken()[0].value.as_deref(), Some(&b"other"[..]));
        assert_eq!(header(&desk.taken()[1], "handstamp-id"), None);
        // A copy for each time that it is delivered.
        world.broker.rewind("group");
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 3).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_letter_rows, counts.dead_letter_copies), (0, 2));
        assert_eq!(classes(&desk), ["id_reused", "identity", "id_reused", "identity"]);
    });
}

#[test]
fn nothing_is_open_while_a_copy_is_made() {
    paused(async {
        let world = World::new();
        world.store.set_latency(Duration::ZERO);
        // The first turn shows that the lane is quick; those behind it are of several batches.
        world.publish(0, None, &["a1", "a2", "a3", "a4", "a5"]);
        world.broker.publish(0, Payload::value("bare")).unwrap();
        world.publish(0, None, &["a7", "a8", "a9", "a10"]);
        let desk = Desk::new(&world, Mood::Takes);
        let twos = ConsumerOptions { batch_max: 2, ..options(1) };
        let run = world.start_copying(twos, desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 10).await;
        assert_eq!(run.counts().await.commits, 5);
        let (begun, committed) = desk.asked()[0].transactions;
        assert_eq!(begun, committed, "the next one was opened with the commit");
    });
}

#[test]
fn a_parked_message_is_dead_only_behind_its_copy() {
    paused(async {
        let world = with_one_dead();
        world.store.set_latency(Duration::from_millis(1));
        let desk = Desk::new(&world, Mood::Away);
        let run = world.start_copying(options(3), desk.clone(), TOPIC);
        desk.until_asked().await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!(world.state("a2"), Some(InboxState::Parked));
        assert_eq!(world.parked()[0].letter.attempts, 2, "the last attempt is not written yet");
        assert_eq!(world.runs("a2"), 3, "the handler does not run again for it");
        desk.is_now(Mood::Takes);
        run.until(|counts| counts.resumed_dead == 1).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_letter_copies, world.runs("a2")), (1, 3));
        assert_eq!((world.state("a2"), world.dead()[0].attempts), (Some(InboxState::Dead), 3));
        assert_eq!(header(&desk.taken()[0], "handstamp-attempts").as_deref(), Some("3"));
        assert!(desk.asked().iter().all(|asked| asked.state == Some(InboxState::Parked)));
    });
}

#[test]
fn who_is_killed_while_the_copy_of_a_parked_message_waits_does_not_show_that_it_kills() {
    for mood in [Mood::Hangs, Mood::Away] {
        paused(async {
            let world = with_one_dead();
            for kills in 0..5 {
                let desk = Desk::new(&world, mood);
                let run = world.start_copying(options(3), desk.clone(), TOPIC);
                desk.until_asked().await;
                let started = world.store.parked_starts(&world.name);
                assert!(started.is_empty(), "{mood:?}, behind {kills} kills: {started:?}");
                sleep(Duration::from_millis(kills * 700)).await;
                let started = world.store.parked_starts(&world.name);
                assert!(started.is_empty(), "{mood:?}, behind {kills} kills: {started:?}");
                run.kill().await;
            }
            assert!(world.store.crashes(&world.name).is_empty());
            let desk = Desk::new(&world, Mood::Takes);
            let run = world.start_copying(options(3), desk.clone(), TOPIC);
            run.until(|counts| counts.resumed_dead == 1).await;
            assert_eq!(run.counts().await.crashes_found, 0);
            let dead = &world.dead()[0];
            assert_eq!((dead.class, dead.attempts), (FailureClass::Failed, 3));
            assert_eq!(header(&desk.taken()[0], "handstamp-class").as_deref(), Some("failed"));
        });
    }
}

/// What is due together: some are applied, some are given up, and only those wait for their copies.
#[test]
fn what_works_does_not_wait_for_the_copies_of_what_is_given_up() {
    paused(async {
        let world = World::new();
        let ids: Vec<String> = (0..16).map(|number| format!("m{number}")).collect();
        for (number, id) in ids.iter().enumerate() {
            world.fails(id, [2, 1_000][number % 2]);
        }
        world.publish(0, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        let run = world.start(late(3));
        run.until(|counts| counts.parked == 16).await;
        run.counts().await;
        sleep(HOUR).await;
        let desk = Desk::new(&world, Mood::Away);
        let run = world.start_copying(options(3), desk.clone(), TOPIC);
        run.until(|counts| counts.resumed_applied == 8).await;
        desk.until_asked().await;
        sleep(Duration::from_secs(60)).await;
        assert_eq!((world.dead().len(), world.parked().len()), (0, 8));
        assert!(world.store.parked_starts(&world.name).is_empty());
        desk.is_now(Mood::Takes);
        run.until(|counts| counts.resumed_dead == 8).await;
        assert_eq!(run.counts().await.dead_letter_copies, 8);
        assert!(ids.iter().all(|id| world.runs(id) == 3));
    });
}

#[test]
fn dead_duplicates_are_read_back_in_one_round_trip_for_all_of_a_batch() {
    paused(async {
        let world = World::new();
        let ids: Vec<String> = (0..100).map(|number| format!("m{number}")).collect();
        for id in &ids {
            world.fails(id, 1_000);
        }
        world.publish(0, None, &ids.iter().map(String::as_str).collect::<Vec<_>>());
        let desk = Desk::new(&world, Mood::Takes);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 100).await;
        run.counts().await;
        world.broker.rewind("group");
        world.store.set_latency(Duration::from_secs(1));
        let began = Instant::now();
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 100).await;
        // Register, take over, claim, commit, and a read for each batch that was fetched.
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        world.store.set_latency(Duration::ZERO);
        assert_eq!(run.counts().await.dead_letter_copies, 100);
    });
}

#[test]
fn a_stop_leaves_a_parked_message_whose_copy_is_not_answered_parked() {
    for mood in [Mood::Away, Mood::Hangs] {
        paused(async {
            let world = with_one_dead();
            let desk = Desk::new(&world, mood);
            let run = world.start_copying(options(3), desk.clone(), TOPIC);
            desk.until_asked().await;
            let asked_to_stop = Instant::now();
            let counts = run.counts().await;
            assert!(asked_to_stop.elapsed() < Duration::from_secs(5), "{:?}", asked_to_stop.elapsed());
            assert_eq!((counts.resumed_dead, world.state("a2")), (0, Some(InboxState::Parked)));
            desk.is_now(Mood::Takes);
            let until_idle = ConsumerOptions { until_idle: Some(Duration::from_secs(2)), ..options(3) };
            let counts = world.start_copying(until_idle, desk.clone(), TOPIC).ended().await;
            assert_eq!((counts.resumed_dead, counts.dead_letter_copies), (1, 1));
        });
    }
}

#[test]
fn a_commit_without_an_answer_is_copied_once_it_is_known_to_be_durable() {
    paused(async {
        let world = with_one_dead();
        let desk = Desk::new(&world, Mood::Takes);
        // The first commit that holds the dead letter is the second one: a1 goes with it.
        world.store.fail_next(StorePoint::CommitThenLost, StoreErrorKind::Unavailable);
        let run = world.start_copying(options(1), desk.clone(), TOPIC);
        run.until(|counts| counts.settled() == 3).await;
        let counts = run.counts().await;
        assert_eq!((counts.dead_lettered, counts.dead_letter_copies, counts.duplicate), (1, 1, 0));
        assert_eq!(world.broker.committed("group", 0), Some(3));
    });
}

/// Processes that are killed or stopped, rebalances, a store and a sink that go away, in any order.
#[test]
fn whatever_happens_every_dead_letter_has_a_copy_in_the_end() {
    let (mut dead, mut copies, mut ends) = (0, 0, 0);
    for seed in 0..60 {
        paused(async {
            let mut random = Random(seed);
            let world = World::new();
            for number in 0..60 {
                let id = format!("m{number}");
                if random.below(10) < 3 {
                    world.fails(&id, 1_000);
                }
                world.publish(number % 2, None, &[&id]);
            }
            let desk = Desk::new(&world, Mood::Takes);
            let some = || ConsumerOptions { batch_max: 7, ..options(if seed % 2 == 0 { 1 } else { 3 }) };
            let mut run = world.start_copying(some(), desk.clone(), TOPIC);
            for _ in 0..25 {
                sleep(random.millis(400)).await;
                match random.below(8) {
                    0 => desk.is_now(Mood::Away),
                    1 => desk.is_now(Mood::Hangs),
                    2 | 3 => desk.is_now(Mood::Takes),
                    4 => world.broker.rebalance("group"),
                    5 => {
                        let points =
                            [StorePoint::Commit, StorePoint::CommitThenLost, StorePoint::KeptLetters];
                        let point = random.one_of(&points);
                        world.store.fail_next(point, StoreErrorKind::Unavailable);
                    }
                    end => {
                        ends += 1;
                        if end == 6 {
                            run.kill().await
                        } else {
                            let _ = run.counts().await;
                        }
                        run = world.start_copying(some(), desk.clone(), TOPIC);
                    }
                }
            }
            desk.is_now(Mood::Takes);
            world.store.clear_faults();
            run.until(|_| (0..2).all(|lane| world.broker.settled_count("group", lane) == 30)).await;
            for _ in 0..10_000 {
                if world.parked().is_empty() {
                    break;
                }
                sleep(Duration::from_millis(100)).await;
            }
            run.counts().await;
            assert!(world.parked().is_empty(), "{seed}: {:?}", world.parked_ids());
            let taken = desk.taken();
            let copied: Vec<_> = taken.iter().filter_map(|copy| header(copy, "handstamp-id")).collect();
            for letter in world.dead() {
                let id = letter.id.unwrap().to_string();
                assert!(copied.contains(&id), "{seed}: {id} is dead and was not copied");
                dead += 1;
            }
            copies += copied.len();
        });
    }
    assert!(dead > 500 && copies > dead && ends > 100, "{dead} dead, {copies} copies, {ends} ends");
}
