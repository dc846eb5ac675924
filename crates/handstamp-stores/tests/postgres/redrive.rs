//! What operators do, beside a consumer that runs and beside one another.

use crate::harness::{TestDatabase, id, letter, name, on_each_server, request};
use crate::parked::{attempt, ids, park, park_of, take};
use handstamp_core::parked::{OrderKey, ParkingStore, Resumed};
use handstamp_core::{Claim, ConsumerKey, DeadLetter, FailureClass, InboxState, Origin, Store, Timestamp};
use handstamp_stores::postgres::PostgresStore;
use handstamp_stores::redrive::{Action, DeadLetterFilter, Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use std::time::Duration;

on_each_server!(
    a_redrive_is_parked_with_its_history,
    ids_are_found_and_given,
    redriven_letters_keep_their_order,
    a_discard_says_so,
    two_operators_move_each_letter_once,
    a_redrive_that_is_cut_off_did_nothing,
    a_thousand_letters_go_back_at_once,
    letters_are_found_by_what_they_are,
    parked_messages_are_listed_in_order,
    why_it_was_given_up_is_kept_once,
);

fn operation(n: u8) -> Operation {
    Operation { number: [n; 16], done_by: "night\0shift".into(), why: "the table is back".into() }
}

fn again(key: [u8; 16]) -> Redrive {
    Redrive { dead_letter: DeadLetterKey(key), new_id: None, order_key: None }
}

/// Keeps dead letters, with claims for those that have an id of their own.
async fn bury(store: &PostgresStore, key: &ConsumerKey, letters: &[DeadLetter]) {
    let own = letters.iter().filter(|letter| letter.marks_inbox());
    let requests: Vec<_> =
        own.filter_map(|letter| Some(request(&letter.id.as_ref()?.to_string(), None))).collect();
    let (mut tx, _) = store.begin(key, &requests).await.unwrap();
    store.record(&mut tx, key, letters).await.unwrap();
    store.commit(tx).await.unwrap();
}

fn failed(text: &str) -> DeadLetter {
    letter(Some(text), FailureClass::Failed, Some(b"{}"))
}

async fn state(store: &PostgresStore, key: &ConsumerKey, text: &str) -> Option<InboxState> {
    store.inbox_row(&key.name, &id(text)).await.unwrap().map(|row| row.state)
}

async fn a_redrive_is_parked_with_its_history(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let dead = failed("m");
    let dedup = dead.dedup();
    let (mut tx, _) = store.begin(&key, &[request("m", None)]).await.unwrap();
    store.record(&mut tx, &key, std::slice::from_ref(&dead)).await.unwrap();
    store.note_attempts(&mut tx, &key, &[(dedup, attempt("one")), (dedup, attempt("two"))]).await.unwrap();
    store.commit(tx).await.unwrap();
    let asked = [again([9; 16]), again(dedup), again(dedup)];
    let answers = store.redrive(&key.name, &asked, &operation(1)).await.unwrap();
    assert_eq!(answers, [Redriven::Missing, Redriven::Parked, Redriven::Missing]);
    assert_eq!(store.dead_letters(&key.name, None, None, 10).await.unwrap(), []);
    assert_eq!(state(&store, &key, "m").await, Some(InboxState::Parked));
    let (mut tx, rows) = take(&store, &key).await.expect("due at once");
    let mut whole = dead.clone();
    whole.attempts = 0;
    assert_eq!((rows.len(), rows[0].dedup, &rows[0].letter), (1, dedup, &whole));
    let dead_again = Resumed::Dead { failed: attempt("three"), charged: true };
    store.resume(&mut tx, &key, &[(dedup, dead_again)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let history = store.attempts(&key.name, DeadLetterKey(dedup)).await.unwrap();
    assert_eq!(history, [attempt("one"), attempt("two"), attempt("three")]);
    // Once more, to the good end.
    store.redrive(&key.name, &[again(dedup)], &operation(2)).await.unwrap();
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    store.resume(&mut tx, &key, &[(rows[0].dedup, Resumed::Applied)]).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(state(&store, &key, "m").await, Some(InboxState::Applied));
    let answers = store.redrive(&key.name, &[again(dedup)], &operation(3)).await.unwrap();
    assert_eq!(answers, [Redriven::Missing], "what was applied is not sent back");
    let audit = store.audit(&key.name, Some(DeadLetterKey(dedup)), 10).await.unwrap();
    let numbers: Vec<u8> = audit.iter().map(|row| row.operation.number[0]).collect();
    assert_eq!(numbers, [2, 1], "the newest first");
    let row = &audit[1];
    assert_eq!(
        (row.action, row.dead_letter, &row.id),
        (Action::Redrive, DeadLetterKey(dedup), &Some(id("m")))
    );
    assert_eq!(
        (row.operation.done_by.as_str(), row.operation.why.as_str()),
        ("night\u{fffd}shift", "the table is back")
    );
    assert!(row.at > Timestamp(1_700_000_000_000), "{:?}", row.at);
    assert_eq!(store.audit(&key.name, None, 1).await.unwrap(), audit[..1]);
    assert_eq!(store.audit(&name("other"), None, 9).await.unwrap(), []);
    assert_eq!(store.redrive(&name("other"), &asked[..1], &operation(4)).await.unwrap(), [Redriven::Missing]);
}

async fn ids_are_found_and_given(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (tx, _) = store.begin(&key, &[request("known", Some(1)), request("twin", Some(1))]).await.unwrap();
    store.commit(tx).await.unwrap();
    let mut no_id = letter(None, FailureClass::Identity, Some(b"a"));
    no_id.record.origin.offset = 1;
    let mut no_id_2 = no_id.clone();
    no_id_2.record.origin.offset = 2;
    let mut no_id_3 = no_id.clone();
    no_id_3.record.origin.offset = 3;
    let reused = letter(Some("twin"), FailureClass::IdReused, Some(b"b"));
    let wrong = failed("wrong");
    let own = failed("own");
    let pruned = failed("pruned");
    let letters = [&no_id, &no_id_2, &no_id_3, &reused, &wrong, &own, &pruned].map(Clone::clone);
    bury(&store, &key, &letters).await;
    database.admin().await.batch_execute("DELETE FROM handstamp.inbox WHERE id = 'pruned'").await.unwrap();
    let with = |letter: &DeadLetter, text: &str| Redrive { new_id: Some(id(text)), ..again(letter.dedup()) };
    let asked = [again(no_id.dedup()), again(reused.dedup()), with(&reused, "twin")];
    let answers = store.redrive(&key.name, &asked, &operation(1)).await.unwrap();
    // Named twice, it is missing the second time.
    assert_eq!(answers, [Redriven::NoId, Redriven::NoId, Redriven::Missing]);
    let asked = [
        with(&no_id, "known"),
        with(&no_id_2, "new"),
        with(&no_id_3, "new"),
        with(&reused, "twin"),
        with(&wrong, "right"),
        with(&own, "own"),
        again(pruned.dedup()),
    ];
    let answers = store.redrive(&key.name, &asked, &operation(2)).await.unwrap();
    let (applied, parked) = (Redriven::Known(InboxState::Applied), Redriven::Known(InboxState::Parked));
    assert_eq!(
        answers,
        [applied, Redriven::Parked, parked, applied, Redriven::Parked, Redriven::Parked, Redriven::Parked]
    );
    let (mut tx, rows) = take(&store, &key).await.unwrap();
    assert_eq!(ids(&rows), ["new", "right", "own", "pruned"]);
    assert_eq!(rows[0].dedup, no_id_2.dedup(), "the name stays");
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    store.resume(&mut tx, &key, &outcomes).await.unwrap();
    store.commit(tx).await.unwrap();
    for text in ["new", "right", "own", "pruned"] {
        assert_eq!(state(&store, &key, text).await, Some(InboxState::Applied), "{text}");
    }
    // Everyone who comes with one of these ids is a duplicate.
    let (tx, claims) = store.begin(&key, &[request("new", None), request("right", None)]).await.unwrap();
    assert!(claims.iter().all(|claim| matches!(claim, Claim::Duplicate { .. })), "{claims:?}");
    store.rollback(tx).await.unwrap();
    assert_eq!(store.dead_letters(&key.name, None, None, 10).await.unwrap().len(), 3);
    assert_eq!(store.audit(&key.name, None, 10).await.unwrap().len(), 4, "only what was done");

    // A record that is parked under a given id and came again: it waits for what becomes of the first.
    let answers = store.redrive(&key.name, &[with(&no_id, "given")], &operation(3)).await.unwrap();
    assert_eq!(answers, [Redriven::Parked]);
    bury(&store, &key, std::slice::from_ref(&no_id)).await;
    let answers = store.redrive(&key.name, &[with(&no_id, "another")], &operation(4)).await.unwrap();
    assert_eq!(answers, [parked]);
    assert_eq!(state(&store, &key, "another").await, None);
}

async fn redriven_letters_keep_their_order(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let letters = ["d3", "d1", "d2", "other"].map(failed);
    bury(&store, &key, &letters).await;
    park(&store, &key, &["m1"], Some(1)).await;
    let of_key =
        |letter: &DeadLetter, n: u8| Redrive { order_key: Some(OrderKey([n; 16])), ..again(letter.dedup()) };
    let [d3, d1, d2, other] = &letters;
    let asked = [of_key(d1, 1), of_key(d2, 1), of_key(other, 2), of_key(d3, 1)];
    assert_eq!(store.redrive(&key.name, &asked, &operation(1)).await.unwrap(), [Redriven::Parked; 4]);
    park(&store, &key, &["m2"], Some(1)).await;
    assert_eq!(database.number("SELECT count(*) FROM handstamp.parked WHERE behind").await, 4);
    let mut seen = Vec::new();
    while let Some((mut tx, rows)) = take(&store, &key).await {
        let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
        store.resume(&mut tx, &key, &outcomes).await.unwrap();
        store.commit(tx).await.unwrap();
        seen.extend(ids(&rows).into_iter().filter(|text| text != "other"));
    }
    assert_eq!(seen, ["m1", "d1", "d2", "d3", "m2"]);
}

async fn a_discard_says_so(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (tx, _) = store.begin(&key, &[request("twin", Some(1))]).await.unwrap();
    store.commit(tx).await.unwrap();
    let letters = [
        failed("m"),
        letter(None, FailureClass::Identity, Some(b"a")),
        letter(Some("twin"), FailureClass::IdReused, Some(b"b")),
    ];
    bury(&store, &key, &letters).await;
    let mut keys: Vec<_> = letters.iter().map(|letter| DeadLetterKey(letter.dedup())).collect();
    keys.insert(1, DeadLetterKey([9; 16]));
    keys.push(keys[0]);
    let gone = store.discard(&key.name, &keys, &operation(1)).await.unwrap();
    assert_eq!(gone, [true, false, true, true, false]);
    assert_eq!(store.dead_letters(&key.name, None, None, 10).await.unwrap(), []);
    assert_eq!(state(&store, &key, "m").await, Some(InboxState::Discarded));
    assert_eq!(state(&store, &key, "twin").await, Some(InboxState::Applied), "it is another message's");
    let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Discarded, .. }), "{claims:?}");
    store.rollback(tx).await.unwrap();
    let audit = store.audit(&key.name, None, 10).await.unwrap();
    assert_eq!(audit.len(), 3);
    assert!(audit.iter().all(|row| row.action == Action::Discard && row.operation.number == [1; 16]));
    let redriven = store.redrive(&key.name, &[again(letters[0].dedup())], &operation(2)).await.unwrap();
    assert_eq!(redriven, [Redriven::Missing]);
    assert_eq!(store.discard(&name("other"), &keys[..1], &operation(3)).await.unwrap(), [false]);
}

/// The second waits for the first's lock and finds nothing, whatever either of them does.
async fn two_operators_move_each_letter_once(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let letters = ["a", "b"].map(failed);
    bury(&store, &key, &letters).await;
    let admin = database.admin().await;
    // Somebody holds the letters, so that both operators are under way.
    admin.batch_execute("BEGIN; SELECT FROM handstamp.dead_letters FOR UPDATE").await.unwrap();
    let keys = letters.clone().map(|letter| letter.dedup());
    let (first, second) = (database.store(), database.store());
    let (consumer, backwards) = (key.name.clone(), [keys[1], keys[0]]);
    let redrives =
        tokio::spawn(
            async move { first.redrive(&consumer, &backwards.map(again), &operation(1)).await.unwrap() },
        );
    database.until_blocked(1).await;
    let consumer = key.name.clone();
    let discards = tokio::spawn(async move {
        second.discard(&consumer, &keys.map(DeadLetterKey), &operation(2)).await.unwrap()
    });
    database.until_blocked(2).await;
    admin.batch_execute("ROLLBACK").await.unwrap();
    let (redriven, discarded) = (redrives.await.unwrap(), discards.await.unwrap());
    let moved = redriven.iter().filter(|answer| **answer == Redriven::Parked).count();
    let gone = discarded.iter().filter(|gone| **gone).count();
    assert!((moved, gone) == (2, 0) || (moved, gone) == (0, 2), "{redriven:?} {discarded:?}");
    assert_eq!(database.number("SELECT count(*) FROM handstamp.audit").await, 2);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.parked").await, i64::try_from(moved).unwrap());
}

async fn a_redrive_that_is_cut_off_did_nothing(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let dead = failed("m");
    bury(&store, &key, std::slice::from_ref(&dead)).await;
    let admin = database.admin().await;
    // The last statement of the transaction fails.
    admin.batch_execute("ALTER TABLE handstamp.audit ADD CHECK (length(why) < 3) NOT VALID").await.unwrap();
    store.redrive(&key.name, &[again(dead.dedup())], &operation(1)).await.unwrap_err();
    store.discard(&key.name, &[DeadLetterKey(dead.dedup())], &operation(1)).await.unwrap_err();
    assert_eq!(state(&store, &key, "m").await, Some(InboxState::Dead));
    assert!(take(&store, &key).await.is_none());
    assert_eq!(store.dead_letters(&key.name, None, None, 10).await.unwrap().len(), 1);
    assert_eq!(store.audit(&key.name, None, 10).await.unwrap(), []);
}

async fn a_thousand_letters_go_back_at_once(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let letters: Vec<_> = (0..1000).map(|n| failed(&format!("m{n:04}"))).collect();
    bury(&store, &key, &letters).await;
    let asked: Vec<_> = letters.iter().rev().map(|letter| again(letter.dedup())).collect();
    let answers = store.redrive(&key.name, &asked, &operation(1)).await.unwrap();
    assert_eq!(answers, vec![Redriven::Parked; 1000]);
    let listed = store.parked(&key.name, None, 1000).await.unwrap();
    let listed: Vec<_> = listed.into_iter().filter_map(|row| row.message.id).collect();
    let wanted: Vec<_> = letters.iter().rev().filter_map(|letter| letter.id.clone()).collect();
    assert_eq!(listed, wanted, "in the order given");
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox WHERE state = 'p'").await, 1000);
}

async fn letters_are_found_by_what_they_are(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let letters: Vec<_> = (0..12_u8)
        .map(|n| {
            let class = if n % 2 == 0 { FailureClass::Sql } else { FailureClass::Failed };
            let mut letter = letter(Some(&format!("m{n}")), class, Some(b"{}"));
            letter.failed_at = Timestamp(i64::from(n) * 10);
            letter.record.key = (n % 3 > 0).then(|| vec![n % 3, 0].into());
            let topic = if n < 6 { "credits" } else { "debits" };
            letter.record.origin =
                Origin { topic: topic.into(), partition: 0, offset: i64::from(n), line: None };
            letter
        })
        .collect();
    bury(&store, &key, &letters).await;
    let none = DeadLetterFilter::default();
    for (filter, wanted) in [
        (none.clone(), (0..12).collect::<Vec<i64>>()),
        (DeadLetterFilter { class: Some(FailureClass::Sql), ..none.clone() }, vec![0, 2, 4, 6, 8, 10]),
        (DeadLetterFilter { since: Some(Timestamp(90)), ..none.clone() }, vec![9, 10, 11]),
        (DeadLetterFilter { until: Some(Timestamp(20)), ..none.clone() }, vec![0, 1]),
        (DeadLetterFilter { key: Some(vec![2, 0]), ..none.clone() }, vec![2, 5, 8, 11]),
        (DeadLetterFilter { topic: Some("debits".into()), ..none.clone() }, (6..12).collect()),
        (DeadLetterFilter { id: Some(id("m7")), ..none.clone() }, vec![7]),
        (
            DeadLetterFilter {
                class: Some(FailureClass::Sql),
                topic: Some("debits".into()),
                since: Some(Timestamp(70)),
                until: Some(Timestamp(110)),
                ..none.clone()
            },
            vec![8, 10],
        ),
    ] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.dead_letters_where(&key.name, &filter, after, 2).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            seen.extend(page.iter().map(|row| row.origin.offset));
        }
        assert_eq!(seen, wanted, "{filter:?}");
    }
}

async fn parked_messages_are_listed_in_order(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let rows: Vec<_> = (0..5_u8)
        .map(|n| {
            let mut row = park_of(&format!("m{n}"), (n > 2).then_some(n));
            row.wait = Duration::from_secs(100 - u64::from(n));
            row
        })
        .collect();
    let requests: Vec<_> = (0..5).map(|n| request(&format!("m{n}"), None)).collect();
    let (mut tx, _) = store.begin(&key, &requests).await.unwrap();
    store.park(&mut tx, &key, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
    let first = store.parked(&key.name, None, 3).await.unwrap();
    let rest = store.parked(&key.name, Some(first[2].seq), 100).await.unwrap();
    let listed: Vec<_> = first.into_iter().chain(rest).collect();
    assert_eq!(listed.len(), 5);
    for (row, park) in listed.iter().zip(&rows) {
        assert_eq!((&row.message.id, row.order_key), (&park.letter.id, park.order_key));
        assert_eq!(row.message.value_bytes, Some(2));
        assert_eq!(row.due_at.0 - row.parked_at.0, i64::try_from(park.wait.as_millis()).unwrap());
    }
    assert_eq!(store.parked(&name("other"), None, 10).await.unwrap(), []);
}

/// Why a dead letter was one is kept when it goes, where its history says nothing of it.
async fn why_it_was_given_up_is_kept_once(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let (nameless, told, gone) =
        (letter(None, FailureClass::Identity, Some(b"{}")), failed("told"), failed("gone"));
    bury(&store, &key, &[nameless.clone(), told.clone(), gone.clone()]).await;
    let (mut tx, _) = store.begin(&key, &[]).await.unwrap();
    store.note_attempts(&mut tx, &key, &[(told.dedup(), attempt("one"))]).await.unwrap();
    store.commit(tx).await.unwrap();
    let named = Redrive { new_id: Some(id("named")), ..again(nameless.dedup()) };
    let answers = store.redrive(&key.name, &[named, again(told.dedup())], &operation(1)).await.unwrap();
    assert_eq!(answers, [Redriven::Parked, Redriven::Parked]);
    let gone_key = DeadLetterKey(gone.dedup());
    assert_eq!(store.discard(&key.name, &[gone_key], &operation(2)).await.unwrap(), [true]);
    for dead in [&nameless, &gone] {
        let history = store.attempts(&key.name, DeadLetterKey(dead.dedup())).await.unwrap();
        assert_eq!(history.len(), 1, "{history:?}");
        let kept = (history[0].class, &history[0].code, &history[0].reason, history[0].at);
        assert_eq!(kept, (dead.class, &dead.code, &dead.reason, dead.failed_at));
    }
    let history = store.attempts(&key.name, DeadLetterKey(told.dedup())).await.unwrap();
    assert_eq!(history, [attempt("one")]);
}
