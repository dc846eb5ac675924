//! Partitions come and go: what is settled is committed before they go, and nothing afterwards.

use crate::common::{Engine, Place, assert_each_once, values};
use handstamp_core::{Command, Disposition, Notice, Settled};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Offsets handed over and settled by the first member, per partition.
fn counts(engine: &Engine) -> BTreeMap<i32, i64> {
    let mut counts = BTreeMap::new();
    for delivery in &engine.got {
        *counts.entry(delivery.record.origin.partition).or_insert(0) += 1;
    }
    counts
}

fn partitions_are_taken_over(assignor: &str) {
    let place = Place::new("revoke", 4);
    place.produce(4, 0, 2000);
    let options = || place.options().option("partition.assignment.strategy", assignor);
    let mut first = Engine::start(options());
    (first.ack, first.drain) = (false, false);
    first.until("some of every partition", |e| counts(e).len() == 4);

    let mut second = Engine::start(options());
    first.until("asked to give lanes back", |e| !e.revoking.is_empty());
    // What is in flight is finished inside the rebalance, and the lanes go only then.
    assert!(second.current.is_empty(), "nothing is given away before it is drained");
    let lanes = first.revoking[0].clone();
    first.settle(&first.got);
    let finished = counts(&first);
    first.send(Command::Drained(lanes.clone()));
    first.until("the settles of the revoked lanes are answered", |e| {
        let of_lanes = e.got.iter().filter(|d| lanes.contains(&d.lane)).count();
        e.settled.iter().filter(|s| lanes.contains(&s.0) && s.2 == Settled::Done).count() == of_lanes
    });
    (first.ack, first.drain) = (true, true);
    let seen = first.got.len();
    let limit = std::time::Instant::now() + crate::common::PATIENCE;
    let mut step_both = |so: &dyn Fn(&Engine, &Engine) -> bool| {
        while !so(&first, &second) {
            assert!(std::time::Instant::now() < limit, "{}\n{}", first.state(), second.state());
            if !(first.step() | second.step()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    };
    step_both(&|first, second| first.current.len() == 2 && second.current.len() == 2);
    place.produce(4, 2000, 2400);
    step_both(&|first, second| first.got.len() + second.got.len() >= 2400);
    let mut both = first.values();
    both.extend(second.values());
    assert_each_once(both, 0, 2400);
    for (partition, count) in finished {
        // Offsets of a lane have no gaps here, so the count is the position.
        let mut after = second.got.iter().chain(&first.got[seen..]);
        let next = after.find(|d| d.record.origin.partition == partition).expect("each partition goes on");
        assert_eq!(next.record.origin.offset, count, "exactly where the first member stopped");
    }
    assert!(first.noticed(Notice::Revoked) >= 1);
    assert_eq!(first.noticed(Notice::Truncated), 0, "what was kept is not read from another place");
    assert!(first.lost.is_empty());
    second.close();
    first.close();
    assert_eq!(place.committed_sum(), 2400);
}

#[test]
fn an_eager_rebalance_drains_and_commits_before_partitions_go() {
    partitions_are_taken_over("range");
}

#[test]
fn a_cooperative_rebalance_drains_and_commits_before_partitions_go() {
    partitions_are_taken_over("cooperative-sticky");
}

#[test]
fn an_engine_that_does_not_drain_holds_a_rebalance_up_only_so_long() {
    let place = Place::new("slow", 2);
    place.produce(2, 0, 100);
    let options = || place.options().with_revoke_timeout(std::time::Duration::from_millis(500));
    let mut first = Engine::start(options());
    (first.ack, first.drain) = (false, false);
    first.until("all", |e| e.got.len() == 100);
    let mut second = Engine::start(options());
    second.until("its half", |e| e.got.len() >= 50);
    assert!(first.settled.is_empty());
    first.settle(&first.got);
    first.until("all answered", |e| e.settled.len() == 100);
    assert!(first.settled_as(Settled::Stale) >= 50, "lanes that went are stale");
    assert!(first.noticed(Notice::SettleStale) >= 1);
    second.close();
    first.close();
}

#[test]
fn a_late_result_of_an_old_epoch_is_dropped_and_the_offset_never_goes_back() {
    let place = Place::new("epoch", 1);
    place.produce(1, 0, 100);
    let options = || place.options().option("max.poll.interval.ms", "6000");
    let mut zombie = Engine::start(options());
    zombie.ack = false;
    zombie.until("all", |e| e.got.len() == 100);
    // The zombie settles one, then its thread hangs for longer than the group allows.
    zombie.settle(&zombie.got[..1]);
    zombie.until("one is settled", |e| e.settled_as(Settled::Done) == 1);
    assert_eq!(place.committed()[&0], 1);
    zombie.hooks.stall_ms.store(9_000, Ordering::Relaxed);

    let mut owner = Engine::start(options());
    owner.until("the rest", |e| e.got.len() == 99 && e.settled_as(Settled::Done) == 99);
    assert_each_once(owner.values(), 1, 100);
    assert_eq!(place.committed()[&0], 100);

    zombie.until("told that it was put out", |e| e.noticed(Notice::Evicted) == 1 && !e.lost.is_empty());
    assert!(zombie.revoking.is_empty(), "what is lost is not asked to be drained");
    owner.close();
    zombie.until("ours again", |e| e.current.len() == 1);
    let old = zombie.got.clone();
    zombie.settle(&old[..20]);
    zombie.until("the late results are answered", |e| e.settled.len() == 21);
    assert_eq!(zombie.settled_as(Settled::Stale), 20);
    assert_eq!(zombie.noticed(Notice::SettleStale), 1);
    place.produce(1, 100, 101);
    zombie.ack = true;
    zombie.until("a new one", |e| e.got.len() == 101);
    let new = zombie.got[100].clone();
    assert_eq!(values(std::slice::from_ref(&new)), [100], "goes on where the owner stopped");
    assert_eq!(new.lane.id, old[0].lane.id, "a lane's number stays");
    assert!(new.lane.epoch > old[0].lane.epoch);
    assert_eq!(zombie.hooks.rebuilt.load(Ordering::Relaxed), 0, "no new client was needed");
    zombie.close();
    assert_eq!(place.committed()[&0], 101);
}

#[test]
fn what_is_released_comes_again_in_a_new_epoch() {
    let place = Place::new("release", 1);
    place.produce(1, 0, 10);
    let mut engine = Engine::start(place.options());
    engine.ack = false;
    engine.until("all", |e| e.got.len() == 10);
    let first = engine.got.clone();
    engine.settle(&first[..5]);
    let delay = std::time::Duration::ZERO;
    engine.send(Command::Settle(
        first[5..].iter().map(|d| (d.lane, d.tag, Disposition::Release { delay })).collect(),
    ));
    engine.until("the released again", |e| e.got.len() == 15);
    assert_eq!(values(&engine.got[10..]), [5, 6, 7, 8, 9]);
    assert!(engine.got[10].lane.epoch > first[0].lane.epoch);
    engine.settle(&engine.got[10..]);
    engine.until("all settled", |e| e.settled_as(Settled::Done) == 15);
    engine.close();
    assert_eq!(place.committed()[&0], 10);
}

/// Members come and go while messages are sent: nothing is lost, and no committed offset ever goes back.
fn members_come_and_go(assignor: &'static str) {
    const ALL: u32 = 6000;
    let place = Place::new("churn", 4);
    let seen = std::sync::Mutex::new(BTreeMap::<u32, u32>::new());
    let missing = || ALL as usize - seen.lock().unwrap().len();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for part in 0..ALL / 200 {
                place.produce(4, part * 200, part * 200 + 200);
            }
        });
        for member in 0..3_usize {
            let (place, seen, missing) = (&place, &seen, &missing);
            scope.spawn(move || {
                // Each member leaves after its own number of messages; the last to come stay to the end.
                while missing() > 0 {
                    let mut engine =
                        Engine::start(place.options().option("partition.assignment.strategy", assignor));
                    let mut taken = 0;
                    engine.until("some, or all there are", |e| {
                        for value in values(&e.got[taken..]) {
                            *seen.lock().unwrap().entry(value).or_default() += 1;
                        }
                        taken = e.got.len();
                        taken >= 150 + 100 * member || missing() == 0
                    });
                    let engine = engine.close();
                    for value in values(&engine.got[taken..]) {
                        *seen.lock().unwrap().entry(value).or_default() += 1;
                    }
                }
            });
        }
        let mut before = BTreeMap::new();
        while missing() > 0 {
            let now = place.committed();
            for (partition, offset) in &now {
                assert!(before.get(partition).is_none_or(|old| offset >= old), "{before:?} then {now:?}");
            }
            before = now;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let mut last = Engine::start(place.options().option("partition.assignment.strategy", assignor));
    last.until("caught up", |e| e.caught_up.len() == 4);
    last.close();
    assert_eq!(place.committed_sum(), i64::from(ALL));
}

#[test]
fn eager_members_that_come_and_go_lose_nothing() {
    members_come_and_go("range");
}

#[test]
fn cooperative_members_that_come_and_go_lose_nothing() {
    members_come_and_go("cooperative-sticky");
}
