//! The Kafka source hands every record over, in order, intact, and commits only what is settled.

use crate::common::{Engine, Place, assert_each_once};
use handstamp_core::{Command, Settled};

#[test]
fn a_thousand_messages_are_handed_over_and_settled_once_and_a_restart_goes_on_behind_them() {
    let place = Place::new("thousand", 3);
    place.produce(3, 0, 1000);
    let mut engine = Engine::start(place.options());
    engine.until("all handed over", |e| e.got.len() == 1000);
    engine.until("all settled", |e| e.settled_as(Settled::Done) == 1000);
    engine.until("caught up", |e| e.caught_up.len() == 3);
    assert_each_once(engine.values(), 0, 1000);
    for lane in &engine.current {
        let offsets: Vec<i64> =
            engine.got.iter().filter(|d| d.lane == *lane).map(|d| d.record.origin.offset).collect();
        assert!(offsets.is_sorted(), "in order within a lane");
        assert!(
            engine.got.iter().filter(|d| d.lane == *lane).all(|d| d.tag.0 == d.record.origin.offset as u64)
        );
    }
    engine.close();
    assert_eq!(place.committed_sum(), 1000);

    place.produce(3, 1000, 1010);
    let mut engine = Engine::start(place.options());
    engine.until("the new ones", |e| e.got.len() >= 10 && e.caught_up.len() == 3);
    assert_each_once(engine.values(), 1000, 1010);
    engine.close();
}

#[test]
fn what_was_not_settled_comes_again_and_nothing_behind_it_is_committed() {
    let place = Place::new("unsettled", 1);
    place.produce(1, 0, 100);
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("all handed over", |e| e.got.len() == 100);
    // 40 stays open: the mark stops there, whatever is settled behind it.
    let open = engine.got.remove(40);
    engine.settle(&engine.got);
    engine.until("the prefix is settled", |e| e.settled_as(Settled::Done) == 40);
    engine.close();
    assert_eq!(place.committed()[&0], 40);

    let mut engine = Engine::start(place.options());
    engine.until("the rest", |e| e.got.len() >= 60 && e.caught_up.len() == 1);
    assert_eq!(engine.got[0].record.origin, open.record.origin);
    assert_each_once(engine.values(), 40, 100);
    engine.close();
    assert_eq!(place.committed()[&0], 100);
}

#[test]
fn an_engine_that_vanishes_ends_the_source_without_settling() {
    let place = Place::new("vanish", 1);
    place.produce(1, 0, 10);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::from_secs(3600)));
    engine.until("handed over", |e| e.got.len() == 10);
    engine.vanish();
    engine.until("the end", |e| e.ended);
    assert!(place.committed().values().all(|offset| *offset <= 10));
}

#[test]
fn a_held_lane_gets_nothing_and_the_others_go_on_and_polling_does_too() {
    let place = Place::new("hold", 2);
    let mut engine = Engine::start(place.options());
    engine.until("assigned", |e| e.caught_up.len() == 2);
    let held = engine.lane("[0]");
    engine.send(Command::Hold(held));
    place.produce(2, 0, 1000);
    engine.until("the other lane's", |e| e.got.len() == 500);
    let polls = engine.hooks.polls.load(std::sync::atomic::Ordering::Relaxed);
    engine.go_on_for(std::time::Duration::from_millis(1500));
    assert!(engine.got.iter().all(|d| d.lane != held));
    let more = engine.hooks.polls.load(std::sync::atomic::Ordering::Relaxed) - polls;
    assert!(more >= 10, "polled {more} times in 1.5 s");
    engine.send(Command::Release(held));
    engine.until("the held ones", |e| e.got.len() == 1000);
    assert_each_once(engine.values(), 0, 1000);
    engine.close();
    assert_eq!(place.committed_sum(), 1000);
}

#[test]
fn offsets_lag_by_commit_every_and_follow_at_once_on_hold_and_close() {
    let place = Place::new("every", 1);
    place.produce(1, 0, 100);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::from_secs(3600)));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 100);
    engine.settle(&engine.got[..10]);
    engine.until("the first commit, which waits for nothing", |e| e.settled_as(Settled::Done) == 10);
    engine.settle(&engine.got[10..20]);
    engine.go_on_for(std::time::Duration::from_millis(500));
    assert_eq!(place.committed()[&0], 10, "held back");
    engine.send(Command::Hold(engine.got[0].lane));
    engine.until("committed by the hold", |e| e.settled_as(Settled::Done) == 20);
    engine.settle(&engine.got[20..30]);
    let engine = engine.close();
    assert_eq!(engine.settled_as(Settled::Done), 30);
    assert_eq!(place.committed()[&0], 30);
}

#[test]
fn the_last_lag_is_from_what_the_last_commit_left_to_the_end() {
    let place = Place::new("last-lag", 3);
    place.produce(2, 0, 40);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::from_secs(3600)));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 40 && e.caught_up.len() == 3);
    let (first, second) = (engine.lane("[0]"), engine.lane("[1]"));
    let of = |e: &Engine, lane| e.got.iter().filter(|d| d.lane == lane).cloned().collect::<Vec<_>>();
    let (of_first, of_second) = (of(&engine, first), of(&engine, second));
    engine.settle(&of_first[..1]);
    engine.until("the first commit, which waits for nothing", |e| e.settled_as(Settled::Done) == 1);
    engine.settle(&of_first[1..]);
    // One is missing: what lies behind it comes again.
    engine.settle(&of_second[..5]);
    engine.settle(&of_second[6..]);
    let engine = engine.close();
    let committed = place.committed();
    assert_eq!((committed[&0], committed[&1]), (20, 5));
    let mut lag: Vec<(&str, u64)> =
        engine.lag.iter().map(|(lane, lag)| (&*engine.names[lane], *lag)).collect();
    lag.sort_unstable();
    let name = |partition| format!("{}[{partition}]", place.topic);
    assert_eq!(lag, [(&*name(0), 0), (&*name(1), 15), (&*name(2), 0)]);
}

#[test]
fn without_commit_every_each_settle_is_committed_by_itself() {
    let place = Place::new("at-once", 1);
    place.produce(1, 0, 20);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::ZERO));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 20);
    for n in 0..20 {
        engine.settle(&engine.got[n..=n]);
        engine.until("answered", |e| e.settled_as(Settled::Done) == n + 1);
    }
    assert_eq!(place.committed()[&0], 20);
    engine.close();
}

#[test]
fn settles_that_wait_for_the_interval_do_not_wake_the_thread_one_by_one() {
    let place = Place::new("quiet", 1);
    place.produce(1, 0, 1000);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::from_secs(3600)));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 1000);
    let polls = |e: &Engine| e.hooks.polls.load(std::sync::atomic::Ordering::Relaxed);
    let (before, started) = (polls(&engine), std::time::Instant::now());
    for n in 0..500 {
        engine.settle(&engine.got[n..=n]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // It looks a hundred times a second; on a slow machine the settles take longer, and so may it.
    let looks = started.elapsed().as_millis() / 10 + 50;
    let more = polls(&engine) - before;
    assert!(u128::from(more) <= looks * 2, "polled {more} times for 500 settles, looks {looks}");
    // What does not wait is heard all the same.
    engine.send(Command::Hold(engine.got[0].lane));
    engine.until("committed by the hold", |e| e.settled_as(Settled::Done) == 500);
    engine.close();
    assert_eq!(place.committed()[&0], 500);
}

#[test]
fn a_long_commit_every_does_not_let_the_settles_pile_up() {
    const MANY: u32 = 50_000;
    let place = Place::new("pile", 1);
    place.produce(1, 0, MANY + 1);
    let mut engine = Engine::start(place.options().with_commit_every(std::time::Duration::from_secs(3600)));
    engine.ack = false;
    engine.until("all", |e| e.got.len() == MANY as usize + 1);
    engine.settle(&engine.got[..1]);
    engine.until("the first commit, which waits for nothing", |e| e.settled_as(Settled::Done) == 1);
    engine.settle(&engine.got[1..]);
    engine.until("committed", |e| e.settled_as(Settled::Done) == MANY as usize + 1);
    engine.close();
    assert_eq!(place.committed()[&0], i64::from(MANY) + 1);
}
