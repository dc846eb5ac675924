//! What operators do with dead letters on SQLite: each moves once, with its inbox row and its line of the audit.

use crate::support::{attempt, beside, id, letter, number, open, park, registered, requests, row};
use bytes::Bytes;
use handstamp_core::parked::{OrderKey, ParkingStore, Resumed};
use handstamp_core::{
    Claim, ClaimRequest, ConsumerKey, ConsumerName, DeadLetter, FailureClass, InboxState, Store, Timestamp,
};
use handstamp_stores::redrive::{Action, DeadLetterFilter, Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::SqliteStore;
use std::time::Duration;
use tempfile::TempDir;

fn wallet() -> ConsumerName {
    ConsumerName::new("wallet").unwrap()
}

fn key_of(letter: &DeadLetter) -> DeadLetterKey {
    DeadLetterKey(letter.dedup())
}

fn back(letter: &DeadLetter) -> Redrive {
    Redrive { dead_letter: key_of(letter), new_id: None, order_key: None }
}

fn back_as(letter: &DeadLetter, new_id: &str) -> Redrive {
    Redrive { new_id: Some(id(new_id)), ..back(letter) }
}

fn operation(number: u8) -> Operation {
    Operation { number: [number; 16], done_by: "alice".into(), why: format!("why {number}") }
}

/// Claims the ids of letters that have one of their own, and keeps them all as dead letters.
async fn kill(store: &SqliteStore, consumer: &ConsumerKey, letters: &[DeadLetter]) {
    let own = letters.iter().filter(|letter| letter.marks_inbox());
    let ids: Vec<ClaimRequest> = own
        .map(|letter| ClaimRequest { id: letter.id.clone().unwrap(), digest: Some(letter.digest) })
        .collect();
    let (mut tx, _) = store.begin(consumer, &ids).await.unwrap();
    store.record(&mut tx, consumer, letters).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// Takes what is due and says what became of all of it.
async fn retry(store: &SqliteStore, consumer: &ConsumerKey, outcome: Resumed) -> Vec<String> {
    let Some((mut tx, rows)) = store.take_due(consumer, 100).await.unwrap() else { return Vec::new() };
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, outcome.clone())).collect();
    store.resume(&mut tx, consumer, &outcomes).await.unwrap();
    store.commit(tx).await.unwrap();
    rows.iter().map(|row| row.letter.id.as_ref().unwrap().to_string()).collect()
}

async fn state(store: &SqliteStore, of: &str) -> Option<InboxState> {
    store.inbox_row(&wallet(), &id(of)).await.unwrap().map(|row| row.state)
}

async fn is_dead(store: &SqliteStore, letter: &DeadLetter) -> bool {
    let kept = store.dead_letter(&wallet(), key_of(letter)).await.unwrap();
    kept.inspect(|kept| assert_eq!(&kept.letter, letter)).is_some()
}

#[tokio::test]
async fn a_dead_letter_is_sent_back_dies_again_and_is_applied() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let mut bad = letter(Some(b"bad"), FailureClass::Sql);
    bad.record.value = Some(Bytes::from(vec![0xFF; 100_000]));
    bad.record.key = Some(Bytes::from_static(b"\0k"));
    bad.digest = bad.record.digest();
    bad.code = Some("2067".into());
    kill(&store, &consumer, std::slice::from_ref(&bad)).await;
    let redriven = store.redrive(&wallet(), &[back(&bad)], &operation(1)).await.unwrap();
    assert_eq!(redriven, [Redriven::Parked]);
    assert!(!is_dead(&store, &bad).await);
    assert_eq!(state(&store, "bad").await, Some(InboxState::Parked));
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().expect("due at once");
    store.rollback(tx).await.unwrap();
    let expected = DeadLetter { attempts: 0, ..bad.clone() };
    assert_eq!((rows[0].dedup, &rows[0].letter), (bad.dedup(), &expected));
    // Its redelivery meets it.
    let ids = [ClaimRequest { id: id("bad"), digest: Some(bad.digest) }];
    let (tx, claims) = store.begin(&consumer, &ids).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Parked, .. }), "{claims:?}");
    // It dies again: attempts are counted anew, the history goes on.
    retry(&store, &consumer, Resumed::Again { wait: Duration::ZERO, failed: attempt(1) }).await;
    retry(&store, &consumer, Resumed::Dead { failed: attempt(2), charged: true }).await;
    let kept = store.dead_letter(&wallet(), key_of(&bad)).await.unwrap().unwrap().letter;
    assert_eq!((kept.attempts, kept.reason, kept.code), (2, attempt(2).reason, None));
    assert_eq!(kept.record, bad.record);
    let redriven = store.redrive(&wallet(), &[back(&bad), back(&bad)], &operation(2)).await.unwrap();
    assert_eq!(redriven, [Redriven::Parked, Redriven::Missing]);
    let history = store.attempts(&wallet(), key_of(&bad)).await.unwrap();
    // Why it was given up the first time is kept: no attempt said so.
    assert_eq!(history[1..], [attempt(1), attempt(2)]);
    let kept = (history[0].class, &history[0].code, &history[0].reason, history[0].at);
    assert_eq!(kept, (bad.class, &bad.code, &bad.reason, bad.failed_at));
    assert_eq!(retry(&store, &consumer, Resumed::Applied).await, ["bad"]);
    assert_eq!(state(&store, "bad").await, Some(InboxState::Applied));
    let missing = store.redrive(&wallet(), &[back(&bad)], &operation(3)).await.unwrap();
    assert_eq!(missing, [Redriven::Missing]);
    let audit = store.audit(&wallet(), Some(key_of(&bad)), 10).await.unwrap();
    let seen: Vec<_> =
        audit.iter().map(|line| (line.action, line.operation.clone(), line.id.clone())).collect();
    let line = |number| (Action::Redrive, operation(number), Some(id("bad")));
    assert_eq!(seen, [line(2), line(1)], "the newest first, and nothing of what was not done");
    assert!(audit.iter().all(|line| line.at.0 > 1_600_000_000_000));
}

#[tokio::test]
async fn what_has_no_id_of_its_own_needs_a_new_one() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let (tx, _) = store.begin(&consumer, &requests(["taken"])).await.unwrap();
    store.commit(tx).await.unwrap();
    let nameless = letter(None, FailureClass::Identity);
    let reused = letter(Some(b"taken"), FailureClass::IdReused);
    kill(&store, &consumer, &[nameless.clone(), reused.clone()]).await;
    let asked = [
        back(&nameless),
        back(&reused),
        back_as(&nameless, "taken"),
        back_as(&reused, "taken"),
        back_as(&nameless, "one"),
        // Another one of this call has it.
        back_as(&reused, "one"),
    ];
    let redriven = store.redrive(&wallet(), &asked, &operation(1)).await.unwrap();
    let (applied, parked) = (Redriven::Known(InboxState::Applied), Redriven::Known(InboxState::Parked));
    assert_eq!(redriven, [Redriven::NoId, Redriven::NoId, applied, applied, Redriven::Parked, parked]);
    assert!(is_dead(&store, &reused).await && !is_dead(&store, &nameless).await);
    let redriven = store.redrive(&wallet(), &[back_as(&reused, "two")], &operation(2)).await.unwrap();
    assert_eq!(redriven, [Redriven::Parked]);
    for new in ["one", "two"] {
        assert_eq!(state(&store, new).await, Some(InboxState::Parked), "{new}");
    }
    // A redelivery that is read with the corrected rule is a duplicate.
    let ids = [ClaimRequest { id: id("one"), digest: Some(nameless.digest) }];
    let (tx, claims) = store.begin(&consumer, &ids).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Parked, .. }), "{claims:?}");
    assert_eq!(retry(&store, &consumer, Resumed::Applied).await, ["one", "two"]);
    for of in ["one", "two", "taken"] {
        assert_eq!(state(&store, of).await, Some(InboxState::Applied), "{of}");
    }
    let audit = store.audit(&wallet(), None, 10).await.unwrap();
    let seen: Vec<_> = audit.into_iter().map(|line| (line.dead_letter, line.id)).collect();
    assert_eq!(seen, [(key_of(&reused), Some(id("two"))), (key_of(&nameless), Some(id("one")))]);
}

/// A record without an id was sent back with one; its redelivery, read with the old rule, is a dead letter again.
#[tokio::test]
async fn a_record_is_parked_once_whatever_ids_it_is_given() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let nameless = letter(None, FailureClass::Identity);
    kill(&store, &consumer, std::slice::from_ref(&nameless)).await;
    store.redrive(&wallet(), &[back_as(&nameless, "one")], &operation(1)).await.unwrap();
    kill(&store, &consumer, std::slice::from_ref(&nameless)).await;
    let redriven = store.redrive(&wallet(), &[back_as(&nameless, "two")], &operation(2)).await.unwrap();
    assert_eq!(redriven, [Redriven::Known(InboxState::Parked)]);
    assert!(is_dead(&store, &nameless).await);
    assert_eq!(state(&store, "two").await, None, "nothing of it is left");
    retry(&store, &consumer, Resumed::Dead { failed: attempt(1), charged: true }).await;
    let kept = store.dead_letter(&wallet(), key_of(&nameless)).await.unwrap().unwrap().letter;
    assert_eq!((kept.id, kept.attempts), (Some(id("one")), 1), "one row that says the newest");
    assert_eq!(state(&store, "one").await, Some(InboxState::Dead));
    let redriven = store.redrive(&wallet(), &[back(&nameless)], &operation(3)).await.unwrap();
    assert_eq!(redriven, [Redriven::Parked], "the id is its own now");
}

#[tokio::test]
async fn an_outcome_that_is_durable_stays() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let letters = ["applied", "cleaned up"].map(|of| letter(Some(of.as_bytes()), FailureClass::Sql));
    kill(&store, &consumer, &letters).await;
    let eyes = beside(&folder);
    eyes.execute("UPDATE handstamp_inbox SET state = 'a' WHERE id = CAST('applied' AS BLOB)", []).unwrap();
    // Ids of sixteen bytes and more end with a zero there; these are shorter.
    eyes.execute("DELETE FROM handstamp_inbox WHERE id = CAST('cleaned up' AS BLOB)", []).unwrap();
    let asked = letters.each_ref().map(back);
    let redriven = store.redrive(&wallet(), &asked, &operation(1)).await.unwrap();
    assert_eq!(redriven, [Redriven::Known(InboxState::Applied), Redriven::Parked]);
    assert_eq!(retry(&store, &consumer, Resumed::Applied).await, ["cleaned up"]);
    assert_eq!(state(&store, "cleaned up").await, Some(InboxState::Applied));
}

#[tokio::test]
async fn a_redriven_message_waits_behind_what_is_parked_of_its_key() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", Some(1)), row("b", Some(1))]).await;
    let letters = ["c", "d", "e"].map(|of| letter(Some(of.as_bytes()), FailureClass::Sql));
    kill(&store, &consumer, &letters).await;
    let mut asked = letters.each_ref().map(back);
    // The order is that of the call.
    asked.reverse();
    asked[0].order_key = Some(OrderKey([1; 16]));
    asked[2].order_key = Some(OrderKey([1; 16]));
    assert_eq!(store.redrive(&wallet(), &asked, &operation(1)).await.unwrap(), [Redriven::Parked; 3]);
    let page = store.parked(&wallet(), None, 3).await.unwrap();
    let rest = store.parked(&wallet(), page.last().map(|row| row.seq), 10).await.unwrap();
    let all: Vec<_> = page.iter().chain(&rest).collect();
    let ids: Vec<_> = all.iter().map(|row| row.message.id.as_ref().unwrap().to_string()).collect();
    assert_eq!(ids, ["a", "b", "e", "d", "c"]);
    assert!(all.is_sorted_by(|one, two| one.seq < two.seq && one.parked_at <= two.parked_at));
    assert!(all.iter().all(|row| row.due_at == row.parked_at && row.message.value_bytes == Some(4)));
    let keyed: Vec<_> = all.iter().map(|row| row.order_key.is_some()).collect();
    assert_eq!(keyed, [true, true, true, false, true]);
    for expected in [vec!["a", "d"], vec!["b"], vec!["e"], vec!["c"], vec![]] {
        assert_eq!(retry(&store, &consumer, Resumed::Applied).await, expected);
    }
}

#[tokio::test]
async fn a_discarded_dead_letter_is_gone_and_known() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let (tx, _) = store.begin(&consumer, &requests(["taken"])).await.unwrap();
    store.commit(tx).await.unwrap();
    let own = letter(Some(b"own"), FailureClass::Sql);
    let reused = letter(Some(b"taken"), FailureClass::IdReused);
    let nameless = letter(None, FailureClass::Identity);
    let stays = letter(Some(b"stays"), FailureClass::Sql);
    let reuses = letter(Some(b"stays"), FailureClass::IdReused);
    let letters = [&own, &reused, &nameless, &stays, &reuses].map(Clone::clone);
    kill(&store, &consumer, &letters).await;
    let other = store.discard(&wallet(), &[key_of(&reuses)], &operation(6)).await.unwrap();
    assert_eq!(other, [true]);
    let keys = [&own, &reused, &nameless, &own].map(key_of);
    let mut operation = operation(7);
    operation.why = "a\0b".into();
    let gone = store.discard(&wallet(), &keys, &operation).await.unwrap();
    assert_eq!(gone, [true, true, true, false]);
    for letter in [&own, &reused, &nameless] {
        assert!(!is_dead(&store, letter).await);
    }
    assert!(is_dead(&store, &stays).await);
    assert_eq!(state(&store, "own").await, Some(InboxState::Discarded));
    assert_eq!(state(&store, "taken").await, Some(InboxState::Applied), "the other message's");
    assert_eq!(state(&store, "stays").await, Some(InboxState::Dead));
    let ids = [ClaimRequest { id: id("own"), digest: Some(own.digest) }];
    let (tx, claims) = store.begin(&consumer, &ids).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Discarded, .. }), "{claims:?}");
    let redriven = store.redrive(&wallet(), &[back(&own)], &operation).await.unwrap();
    assert_eq!(redriven, [Redriven::Missing]);
    let audit = store.audit(&wallet(), None, 2).await.unwrap();
    let seen: Vec<_> = audit.into_iter().map(|line| (line.dead_letter, line.id, line.action)).collect();
    let discarded = Action::Discard;
    assert_eq!(seen, [(keys[2], None, discarded), (keys[1], Some(id("taken")), discarded)]);
    let why = store.audit(&wallet(), Some(keys[0]), 2).await.unwrap().remove(0).operation.why;
    assert_eq!(why, "a\u{fffd}b");
}

/// Without its line of the audit nothing is moved, and nothing of a call that fails halfway.
#[tokio::test]
async fn what_cannot_be_audited_is_not_done() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let letters = ["a", "b"].map(|of| letter(Some(of.as_bytes()), FailureClass::Sql));
    kill(&store, &consumer, &letters).await;
    beside(&folder)
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON handstamp_audit WHEN NEW.id = CAST('b' AS BLOB)
             BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();
    store.redrive(&wallet(), &letters.each_ref().map(back), &operation(1)).await.unwrap_err();
    store.discard(&wallet(), &letters.each_ref().map(key_of), &operation(2)).await.unwrap_err();
    for (letter, of) in letters.iter().zip(["a", "b"]) {
        assert!(is_dead(&store, letter).await);
        assert_eq!(state(&store, of).await, Some(InboxState::Dead));
    }
    assert!(store.take_due(&consumer, 10).await.unwrap().is_none());
    assert_eq!(store.audit(&wallet(), None, 10).await.unwrap(), []);
}

#[test]
fn two_operators_move_each_dead_letter_once() {
    const LETTERS: usize = 200;
    let folder = TempDir::new().unwrap();
    let letters: Vec<DeadLetter> =
        (0..LETTERS).map(|n| letter(Some(format!("id-{n}").as_bytes()), FailureClass::Sql)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&folder).await;
        let consumer = registered(&store, "wallet").await;
        kill(&store, &consumer, &letters).await;
    });
    let moved = std::thread::scope(|scope| {
        let operators: Vec<_> = (1..=4)
            .map(|number: u8| {
                let (folder, letters) = (&folder, &letters);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(async {
                        let store = open(folder).await;
                        let mut moved = 0;
                        for chunk in letters.chunks(10) {
                            moved += if number.is_multiple_of(2) {
                                let asked: Vec<Redrive> = chunk.iter().map(back).collect();
                                let answers =
                                    store.redrive(&wallet(), &asked, &operation(number)).await.unwrap();
                                answers.iter().filter(|answer| **answer == Redriven::Parked).count()
                            } else {
                                let keys: Vec<_> = chunk.iter().map(key_of).collect();
                                let answers =
                                    store.discard(&wallet(), &keys, &operation(number)).await.unwrap();
                                answers.iter().filter(|gone| **gone).count()
                            };
                        }
                        moved
                    })
                })
            })
            .collect();
        operators.into_iter().map(|operator| operator.join().unwrap()).collect::<Vec<usize>>()
    });
    assert_eq!(moved.iter().sum::<usize>(), LETTERS, "{moved:?}");
    let (eyes, all) = (beside(&folder), i64::try_from(LETTERS).unwrap());
    assert_eq!(number(&eyes, "SELECT count(DISTINCT dedup) FROM handstamp_audit"), all);
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_audit"), all);
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_dead_letters"), 0);
    let agree = "SELECT (SELECT count(*) FROM handstamp_inbox WHERE state = 'p') = (SELECT count(*) FROM handstamp_parked)
        AND (SELECT count(*) FROM handstamp_inbox WHERE state = 'x')
            = (SELECT count(*) FROM handstamp_audit WHERE action = 'discard')";
    assert_eq!(number(&eyes, agree), 1);
}

#[tokio::test]
async fn a_filter_finds_what_fits_all_of_it() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let letters: Vec<DeadLetter> = (0..30_u8)
        .map(|n| {
            let class = if n.is_multiple_of(2) { FailureClass::Sql } else { FailureClass::Binding };
            let mut letter = letter(Some(&[b'i', n]), class);
            letter.failed_at = Timestamp(i64::from(n / 3));
            letter.record.key = (n % 4 > 0).then(|| Bytes::from(vec![n % 4]));
            letter.record.origin.topic = ["credits", "debits"][usize::from(n % 5 == 0)].into();
            letter
        })
        .collect();
    kill(&store, &consumer, &letters).await;
    let any = DeadLetterFilter::default;
    let time = |ms| Some(Timestamp(ms));
    let filters = [
        any(),
        DeadLetterFilter { class: Some(FailureClass::Binding), ..any() },
        DeadLetterFilter { since: time(3), ..any() },
        DeadLetterFilter { until: time(3), ..any() },
        DeadLetterFilter { since: time(3), until: time(4), ..any() },
        DeadLetterFilter { since: time(4), until: time(4), ..any() },
        DeadLetterFilter { until: time(i64::MIN), ..any() },
        DeadLetterFilter { since: time(i64::MIN), until: time(i64::MAX), ..any() },
        DeadLetterFilter { key: Some(vec![2]), ..any() },
        DeadLetterFilter { key: Some(Vec::new()), ..any() },
        DeadLetterFilter { topic: Some("debits".into()), ..any() },
        DeadLetterFilter { id: Some(id([b'i', 7])), ..any() },
        DeadLetterFilter { id: Some(id("nobody's")), ..any() },
        DeadLetterFilter {
            class: Some(FailureClass::Sql),
            since: time(1),
            key: Some(vec![2]),
            topic: Some("credits".into()),
            ..any()
        },
    ];
    for filter in filters {
        let fits = |letter: &&DeadLetter| {
            filter.class.is_none_or(|class| class == letter.class)
                && filter.since.is_none_or(|since| since <= letter.failed_at)
                && filter.until.is_none_or(|until| letter.failed_at < until)
                && filter.key.as_ref().is_none_or(|key| letter.record.key.as_deref() == Some(key.as_slice()))
                && filter.topic.as_ref().is_none_or(|topic| &*letter.record.origin.topic == topic.as_str())
                && filter.id.as_ref().is_none_or(|id| letter.id.as_ref() == Some(id))
        };
        let mut expected: Vec<DeadLetterKey> = letters.iter().filter(fits).map(key_of).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.dead_letters_where(&wallet(), &filter, after, 4).await.unwrap();
            let Some(last) = page.last() else { break };
            after = Some(last.cursor());
            seen.extend(page.iter().map(|row| row.key));
        }
        expected.sort_unstable();
        seen.sort_unstable();
        assert_eq!(seen, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn a_consumer_that_nobody_knows_has_nothing() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let nobody = ConsumerName::new("nobody").unwrap();
    let bad = letter(Some(b"bad"), FailureClass::Sql);
    let redriven = store.redrive(&nobody, &[back(&bad)], &operation(1)).await.unwrap();
    assert_eq!(redriven, [Redriven::Missing]);
    assert_eq!(store.discard(&nobody, &[key_of(&bad)], &operation(1)).await.unwrap(), [false]);
    assert_eq!(store.attempts(&nobody, key_of(&bad)).await.unwrap(), []);
    assert_eq!(store.audit(&nobody, None, 10).await.unwrap(), []);
    assert_eq!(store.audit(&nobody, Some(key_of(&bad)), 10).await.unwrap(), []);
    assert_eq!(store.parked(&nobody, None, 10).await.unwrap(), []);
    assert_eq!(number(&beside(&folder), "SELECT count(*) FROM handstamp_consumers"), 0);
}
