//! What operators do about parked messages: look at one, send it now, give it up; and the audit in pages.

use crate::harness::{TestDatabase, id, letter, name, on_each_server, request};
use crate::parked::{attempt, ids, park, park_of, take};
use handstamp_core::parked::{HISTORY_MAX, OrderKey, Park, ParkingStore, Resumed};
use handstamp_core::{Claim, ConsumerKey, FailureClass, InboxState, Store, Timestamp};
use handstamp_stores::postgres::PostgresStore;
use handstamp_stores::redrive::{Action, AuditFilter, Backlog, Operation, Unparked};
use handstamp_stores::rows::DeadLetterKey;
use std::time::Duration;

on_each_server!(
    one_parked_message_is_read_whole,
    a_parked_message_is_sent_now,
    a_discarded_one_lets_the_next_of_its_key_go,
    what_a_worker_tries_is_left_alone,
    no_row_waits_for_one_that_was_discarded,
    messages_without_an_order_key_are_counted,
    the_audit_is_read_in_pages_and_by_what_it_says,
    a_history_ends_at_a_hundred_attempts,
    a_list_says_what_each_one_waits_for,
    what_is_left_is_counted,
);

const HOUR: Duration = Duration::from_secs(3600);
const DUE: &str = "SELECT count(*) FROM handstamp.parked WHERE due_at_ms <= extract(epoch FROM clock_timestamp()) * 1000 - 1";
const BEHIND: &str = "SELECT count(*) FROM handstamp.parked WHERE behind";

fn operation(n: u8) -> Operation {
    Operation { number: [n; 16], done_by: "night shift".into(), why: format!("why {n}") }
}

fn key_of(text: &str) -> DeadLetterKey {
    DeadLetterKey(letter(Some(text), FailureClass::Failed, Some(b"{}")).dedup())
}

/// Parks messages in this order, each with its own wait.
async fn park_each(store: &PostgresStore, key: &ConsumerKey, rows: &[(&str, Option<u8>, Duration)]) {
    let requests: Vec<_> = rows.iter().map(|(text, ..)| request(text, None)).collect();
    let (mut tx, _) = store.begin(key, &requests).await.unwrap();
    let rows: Vec<Park> =
        rows.iter().map(|(text, of, wait)| Park { wait: *wait, ..park_of(text, *of) }).collect();
    store.park(&mut tx, key, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn state(store: &PostgresStore, text: &str) -> Option<InboxState> {
    store.inbox_row(&name("wallet"), &id(text)).await.unwrap().map(|row| row.state)
}

/// The ids of what is due, which is left as it is.
async fn due(store: &PostgresStore, key: &ConsumerKey) -> Vec<String> {
    let Some((tx, rows)) = take(store, key).await else { return Vec::new() };
    store.rollback(tx).await.unwrap();
    ids(&rows)
}

async fn one_parked_message_is_read_whole(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park_each(&store, &key, &[("a", Some(1), HOUR), ("b", Some(1), Duration::ZERO), ("c", None, HOUR)]).await;
    let a = store.parked_message(&key.name, key_of("a")).await.unwrap().unwrap();
    assert_eq!((&a.message.consumer, a.message.key), (&key.name, key_of("a")));
    assert_eq!(a.message.letter, letter(Some("a"), FailureClass::Failed, Some(b"{}")));
    assert_eq!((a.order_key, a.behind), (Some(OrderKey([1; 16])), None));
    assert_eq!(a.due_at.0 - a.parked_at.0, 3_600_000);
    assert!(a.due_in <= HOUR && a.due_in > HOUR / 2, "{:?}", a.due_in);
    let b = store.parked_message(&key.name, key_of("b")).await.unwrap().unwrap();
    assert_eq!((b.behind, b.due_in), (Some(key_of("a")), Duration::ZERO));
    let c = store.parked_message(&key.name, key_of("c")).await.unwrap().unwrap();
    assert_eq!((c.order_key, c.behind), (None, None));
    assert_eq!(store.parked_message(&key.name, key_of("d")).await.unwrap(), None);
    assert_eq!(store.parked_message(&name("other"), key_of("a")).await.unwrap(), None);
}

async fn a_parked_message_is_sent_now(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park_each(&store, &key, &[("a", None, HOUR), ("b", None, HOUR)]).await;
    assert_eq!(due(&store, &key).await, [""; 0]);
    let keys = [key_of("a"), key_of("x"), key_of("a")];
    let answers = store.send_now(&key.name, &keys, &operation(1)).await.unwrap();
    assert_eq!(answers, [Unparked::Done, Unparked::Missing, Unparked::Missing]);
    let (tx, rows) = take(&store, &key).await.unwrap();
    assert_eq!((ids(&rows), rows[0].letter.attempts), (vec!["a".to_owned()], 3), "its attempts stay counted");
    store.rollback(tx).await.unwrap();
    let audit = store.audit(&key.name, None, 10).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    let line = &audit[0];
    assert_eq!((line.action, line.dead_letter, &line.id), (Action::Redrive, key_of("a"), &Some(id("a"))));
    assert_eq!(line.operation, operation(1));
    let other = store.send_now(&name("other"), &keys[..1], &operation(2)).await.unwrap();
    assert_eq!(other, [Unparked::Missing]);
}

async fn a_discarded_one_lets_the_next_of_its_key_go(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let of = |text| (text, Some(1), Duration::ZERO);
    park_each(&store, &key, &[("a", Some(1), HOUR), of("b"), of("c"), of("d"), of("e")]).await;
    let sql = "INSERT INTO handstamp.crashes (consumer, dedup, owner, node, at_ms)
             SELECT consumer, dedup, dedup, 'n', 1 FROM handstamp.parked WHERE id IN ('a', 'e');
         INSERT INTO handstamp.parked_starts (consumer, dedup, owner, node, at_ms, alone)
             SELECT consumer, dedup, dedup, 'n', 1, true FROM handstamp.parked WHERE id IN ('a', 'e')";
    database.admin().await.batch_execute(sql).await.unwrap();
    assert_eq!(due(&store, &key).await, [""; 0], "all wait for the first");
    // One in the middle changes nothing for the others.
    let gone = store.discard_parked(&key.name, &[key_of("c")], &operation(1)).await.unwrap();
    assert_eq!((gone, due(&store, &key).await), (vec![Unparked::Done], vec![]));
    // The first two at once: the one behind both is the first.
    let keys = [key_of("b"), key_of("a"), key_of("c")];
    let gone = store.discard_parked(&key.name, &keys, &operation(2)).await.unwrap();
    assert_eq!(gone, [Unparked::Done, Unparked::Done, Unparked::Missing]);
    assert_eq!(due(&store, &key).await, ["d"]);
    for (text, expected) in
        [("a", InboxState::Discarded), ("c", InboxState::Discarded), ("d", InboxState::Parked)]
    {
        assert_eq!(state(&store, text).await, Some(expected), "{text}");
    }
    let (tx, claims) = store.begin(&key, &[request("a", None)]).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Discarded, .. }), "{claims:?}");
    for table in ["crashes", "parked_starts"] {
        assert_eq!(database.number(&format!("SELECT count(*) FROM handstamp.{table}")).await, 1, "{table}");
    }
    let audit = store.audit(&key.name, None, 10).await.unwrap();
    let seen: Vec<_> = audit.iter().map(|line| (line.action, line.id.clone().unwrap().to_string())).collect();
    let line = |text: &str| (Action::Discard, text.to_owned());
    assert_eq!(seen, [line("a"), line("b"), line("c")]);
}

async fn what_a_worker_tries_is_left_alone(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let other = database.store();
    park(&store, &key, &["a"], None).await;
    let (worker, _) = take(&other, &key).await.unwrap();
    for answers in [
        store.send_now(&key.name, &[key_of("a")], &operation(1)).await.unwrap(),
        store.discard_parked(&key.name, &[key_of("a")], &operation(2)).await.unwrap(),
    ] {
        assert_eq!(answers, [Unparked::Busy]);
    }
    other.rollback(worker).await.unwrap();
    assert_eq!(store.audit(&key.name, None, 10).await.unwrap(), []);
    let gone = store.discard_parked(&key.name, &[key_of("a")], &operation(3)).await.unwrap();
    assert_eq!(gone, [Unparked::Done]);
}

/// A lane parks behind a message while an operator gives that one up: whoever is first, nothing waits for what
/// is gone.
async fn no_row_waits_for_one_that_was_discarded(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let operator = database.store();
    for round in 0..60_u32 {
        let [first, second] = ["f", "s"].map(|part| format!("{part}{round}"));
        park(&store, &key, &[&first], Some(1)).await;
        let discard = async {
            loop {
                let answers =
                    operator.discard_parked(&key.name, &[key_of(&first)], &operation(1)).await.unwrap();
                if answers != [Unparked::Busy] {
                    break answers;
                }
            }
        };
        let behind = [second.as_str()];
        let (gone, ()) = tokio::join!(discard, park(&store, &key, &behind, Some(1)));
        assert_eq!(gone, [Unparked::Done]);
        assert_eq!(database.number(BEHIND).await, 0, "round {round}");
        assert_eq!(due(&store, &key).await, [second.as_str()]);
        store.discard_parked(&key.name, &[key_of(&second)], &operation(2)).await.unwrap();
    }
}

async fn messages_without_an_order_key_are_counted(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    assert_eq!(store.parked_unordered(&key.name).await.unwrap(), 0);
    park(&store, &key, &["a", "b"], None).await;
    park(&store, &key, &["c"], Some(1)).await;
    assert_eq!(store.parked_unordered(&key.name).await.unwrap(), 2);
    assert_eq!(store.parked_unordered(&name("other")).await.unwrap(), 0);
    // A null key has no order.
    database
        .admin()
        .await
        .batch_execute("UPDATE handstamp.parked SET key = NULL WHERE id = 'a'")
        .await
        .unwrap();
    assert_eq!(store.parked_unordered(&key.name).await.unwrap(), 1);
}

async fn the_audit_is_read_in_pages_and_by_what_it_says(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    let texts: Vec<String> = (0..7).map(|n| format!("m{n}")).collect();
    let all: Vec<&str> = texts.iter().map(String::as_str).collect();
    park(&store, &key, &all, None).await;
    for (n, text) in (0..).zip(&all) {
        store.send_now(&key.name, &[key_of(text)], &operation(n)).await.unwrap();
    }
    store.discard_parked(&key.name, &[key_of("m3")], &operation(9)).await.unwrap();
    // A second apart, the first at 1,000 s.
    let sql = "UPDATE handstamp.audit SET at = to_timestamp(999 + number)";
    database.admin().await.batch_execute(sql).await.unwrap();
    let any = AuditFilter::default;
    let time = |seconds: i64| Some(Timestamp(seconds * 1000));
    for (filter, expected) in [
        (any(), vec![9, 6, 5, 4, 3, 2, 1, 0]),
        (AuditFilter { action: Some(Action::Discard), ..any() }, vec![9]),
        (AuditFilter { action: Some(Action::Redrive), id: Some(id("m3")), ..any() }, vec![3]),
        (AuditFilter { id: Some(id("m3")), ..any() }, vec![9, 3]),
        (AuditFilter { message: Some(key_of("m5")), ..any() }, vec![5]),
        (AuditFilter { message: Some(key_of("m5")), id: Some(id("m3")), ..any() }, vec![]),
        (AuditFilter { since: time(1005), ..any() }, vec![9, 6, 5]),
        (AuditFilter { until: time(1002), ..any() }, vec![1, 0]),
        (AuditFilter { since: time(1002), until: time(1003), ..any() }, vec![2]),
        (AuditFilter { until: Some(Timestamp(i64::MIN)), ..any() }, vec![]),
    ] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.audit_where(&key.name, &filter, after, 3).await.unwrap();
            assert!(page.len() <= 3);
            let Some(last) = page.last() else { break };
            after = Some(last.number);
            seen.extend(page.iter().map(|line| line.operation.number[0]));
        }
        assert_eq!(seen, expected, "{filter:?}");
    }
}

async fn a_history_ends_at_a_hundred_attempts(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park(&store, &key, &["a"], None).await;
    for n in 0..HISTORY_MAX + 5 {
        // Due at the next millisecond.
        database.until(DUE, 1).await;
        let (mut tx, rows) = take(&store, &key).await.unwrap();
        let again = Resumed::Again { wait: Duration::ZERO, failed: attempt(&n.to_string()) };
        store.resume(&mut tx, &key, &[(rows[0].dedup, again)]).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let history = store.attempts(&key.name, key_of("a")).await.unwrap();
    assert_eq!((history.len(), &history[0], &history[99]), (HISTORY_MAX, &attempt("0"), &attempt("99")));
    let row = store.parked_message(&key.name, key_of("a")).await.unwrap().unwrap().message.letter;
    assert_eq!(
        (row.attempts, row.reason),
        (108, attempt("104").reason),
        "counted, and the last one's reason is there"
    );
}

async fn a_list_says_what_each_one_waits_for(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    park_each(
        &store,
        &key,
        &[
            ("a", Some(1), HOUR),
            ("b", Some(1), Duration::ZERO),
            ("c", Some(2), Duration::ZERO),
            ("d", None, HOUR),
        ],
    )
    .await;
    park_each(&store, &key, &[("e", Some(1), HOUR)]).await;
    database.until(DUE, 2).await;
    let listed = store.parked(&key.name, None, 10).await.unwrap();
    let a = Some(key_of("a"));
    assert_eq!(listed.iter().map(|row| row.behind).collect::<Vec<_>>(), [None, a, None, None, a]);
    let is_due: Vec<bool> = listed.iter().map(|row| row.due_in.is_zero()).collect();
    assert_eq!(is_due, [false, true, true, false, false]);
    for row in &listed {
        let whole = store.parked_message(&key.name, row.message.key).await.unwrap().unwrap();
        assert_eq!((whole.behind, whole.due_at), (row.behind, row.due_at), "a list says what one says");
    }
}

async fn what_is_left_is_counted(database: TestDatabase) {
    let (store, key) = database.wallet().await;
    assert_eq!(store.backlog(&key.name).await.unwrap(), Backlog::default());
    assert_eq!(store.backlog(&name("nobody")).await.unwrap(), Backlog::default());
    park_each(&store, &key, &[("a", Some(1), HOUR), ("b", Some(1), Duration::ZERO)]).await;
    let left = store.backlog(&key.name).await.unwrap();
    assert_eq!((left.parked.count, left.dead_letters), (2, 0));
    // What is behind another one is not due before it.
    assert!(left.parked.due_in.unwrap() > Duration::from_secs(3000), "{left:?}");
    assert!(left.parked.oldest.unwrap() < HOUR, "{left:?}");
    park_each(&store, &key, &[("c", None, Duration::ZERO)]).await;
    let dead = letter(Some("dead"), FailureClass::Failed, Some(b"{}"));
    let (mut tx, _) = store.begin(&key, &[request("dead", None)]).await.unwrap();
    store.record(&mut tx, &key, &[dead]).await.unwrap();
    store.commit(tx).await.unwrap();
    database.until(DUE, 2).await;
    let left = store.backlog(&key.name).await.unwrap();
    assert_eq!((left.parked.count, left.parked.due_in, left.dead_letters), (3, Some(Duration::ZERO), 1));
}
