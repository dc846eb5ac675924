//! What operators do about parked messages: look at one, send it now, give it up; and the audit in pages.

use crate::support::{attempt, beside, id, letter, number, open, park, registered, requests, row};
use handstamp_core::parked::{HISTORY_MAX, OrderKey, Park, ParkingStore, Resumed};
use handstamp_core::{
    Claim, ConsumerKey, ConsumerName, DeadLetter, FailureClass, InboxState, Store, Timestamp,
};
use handstamp_stores::redrive::{Action, AuditFilter, Backlog, Operation, Unparked};
use handstamp_stores::rows::DeadLetterKey;
use handstamp_stores::sqlite::SqliteStore;
use std::time::Duration;
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

fn wallet() -> ConsumerName {
    ConsumerName::new("wallet").unwrap()
}

fn operation(n: u8) -> Operation {
    Operation { number: [n; 16], done_by: "night shift".into(), why: format!("why {n}") }
}

fn key_of(text: &str) -> DeadLetterKey {
    DeadLetterKey(letter(Some(text.as_bytes()), FailureClass::Sql).dedup())
}

fn waits(text: &str, order_key: Option<u8>) -> Park {
    Park { wait: HOUR, ..row(text, order_key) }
}

async fn state(store: &SqliteStore, text: &str) -> Option<InboxState> {
    store.inbox_row(&wallet(), &id(text)).await.unwrap().map(|row| row.state)
}

/// The ids of what is due, which is left as it is.
async fn due(store: &SqliteStore, consumer: &ConsumerKey) -> Vec<String> {
    let Some((tx, rows)) = store.take_due(consumer, 100).await.unwrap() else { return Vec::new() };
    store.rollback(tx).await.unwrap();
    rows.iter().map(|row| row.letter.id.as_ref().unwrap().to_string()).collect()
}

#[tokio::test]
async fn one_parked_message_is_read_whole() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[waits("a", Some(1)), row("b", Some(1)), waits("c", None)]).await;
    let a = store.parked_message(&wallet(), key_of("a")).await.unwrap().unwrap();
    assert_eq!((a.message.consumer, a.message.key), (wallet(), key_of("a")));
    assert_eq!(a.message.letter, DeadLetter { attempts: 0, ..letter(Some(b"a"), FailureClass::Sql) });
    assert_eq!((a.order_key, a.behind), (Some(OrderKey([1; 16])), None));
    assert_eq!(a.due_at.0 - a.parked_at.0, 3_600_000);
    assert!(a.due_in <= HOUR && a.due_in > HOUR / 2, "{:?}", a.due_in);
    let b = store.parked_message(&wallet(), key_of("b")).await.unwrap().unwrap();
    assert_eq!((b.behind, b.due_in), (Some(key_of("a")), Duration::ZERO));
    let c = store.parked_message(&wallet(), key_of("c")).await.unwrap().unwrap();
    assert_eq!((c.order_key, c.behind), (None, None));
    assert_eq!(store.parked_message(&wallet(), key_of("d")).await.unwrap(), None);
    let other = ConsumerName::new("other").unwrap();
    assert_eq!(store.parked_message(&other, key_of("a")).await.unwrap(), None);
}

#[tokio::test]
async fn a_parked_message_is_sent_now() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let mut tried = waits("a", None);
    tried.letter.attempts = 3;
    park(&store, &consumer, &[tried, waits("b", None)]).await;
    assert_eq!(due(&store, &consumer).await, [""; 0]);
    let keys = [key_of("a"), key_of("x"), key_of("a")];
    let answers = store.send_now(&wallet(), &keys, &operation(1)).await.unwrap();
    assert_eq!(answers, [Unparked::Done, Unparked::Missing, Unparked::Missing]);
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((rows.len(), rows[0].letter.attempts), (1, 3), "its attempts stay counted");
    let audit = store.audit(&wallet(), None, 10).await.unwrap();
    assert_eq!(audit.len(), 1, "{audit:?}");
    let line = &audit[0];
    assert_eq!((line.action, line.dead_letter, &line.id), (Action::Redrive, key_of("a"), &Some(id("a"))));
    assert_eq!(line.operation, operation(1));
    let other = ConsumerName::new("other").unwrap();
    let other = store.send_now(&other, &keys[..1], &operation(2)).await.unwrap();
    assert_eq!(other, [Unparked::Missing]);
}

#[tokio::test]
async fn a_discarded_one_lets_the_next_of_its_key_go() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let of = |text| row(text, Some(1));
    park(&store, &consumer, &[waits("a", Some(1)), of("b"), of("c"), of("d"), of("e")]).await;
    let eyes = beside(&folder);
    eyes.execute_batch(
        "INSERT INTO handstamp_crashes (consumer, dedup, owner, node, at_ms)
             SELECT consumer, dedup, dedup, 'n', 1 FROM handstamp_parked WHERE id IN (x'61', x'65');
         INSERT INTO handstamp_parked_starts (consumer, dedup, owner, node, at_ms, alone)
             SELECT consumer, dedup, dedup, 'n', 1, 1 FROM handstamp_parked WHERE id IN (x'61', x'65')",
    )
    .unwrap();
    assert_eq!(due(&store, &consumer).await, [""; 0], "all wait for the first");
    // One in the middle changes nothing for the others.
    let gone = store.discard_parked(&wallet(), &[key_of("c")], &operation(1)).await.unwrap();
    assert_eq!((gone, due(&store, &consumer).await), (vec![Unparked::Done], vec![]));
    // The first two at once: the one behind both is the first.
    let keys = [key_of("b"), key_of("a"), key_of("c")];
    let gone = store.discard_parked(&wallet(), &keys, &operation(2)).await.unwrap();
    assert_eq!(gone, [Unparked::Done, Unparked::Done, Unparked::Missing]);
    assert_eq!(due(&store, &consumer).await, ["d"]);
    for (text, expected) in
        [("a", InboxState::Discarded), ("c", InboxState::Discarded), ("d", InboxState::Parked)]
    {
        assert_eq!(state(&store, text).await, Some(expected), "{text}");
    }
    let (tx, claims) = store.begin(&consumer, &requests(["a"])).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(
        matches!(
            claims[0],
            Claim::Duplicate { state: InboxState::Discarded, .. }
                | Claim::IdReused { state: InboxState::Discarded, .. }
        ),
        "{claims:?}"
    );
    for table in ["crashes", "parked_starts"] {
        assert_eq!(number(&eyes, &format!("SELECT count(*) FROM handstamp_{table}")), 1, "{table}");
    }
    let audit = store.audit(&wallet(), None, 10).await.unwrap();
    let seen: Vec<_> = audit.iter().map(|line| (line.action, line.id.clone().unwrap().to_string())).collect();
    let line = |text: &str| (Action::Discard, text.to_owned());
    assert_eq!(seen, [line("a"), line("b"), line("c")]);
}

#[tokio::test]
async fn messages_without_an_order_key_are_counted() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    assert_eq!(store.parked_unordered(&wallet()).await.unwrap(), 0);
    let with_key = |mut park: Park| {
        park.letter.record.key = Some("k".into());
        park
    };
    let rows =
        [with_key(row("a", None)), with_key(row("b", None)), with_key(row("c", Some(1))), row("d", None)];
    park(&store, &consumer, &rows).await;
    // A null key has no order.
    assert_eq!(store.parked_unordered(&wallet()).await.unwrap(), 2);
    assert_eq!(store.parked_unordered(&ConsumerName::new("other").unwrap()).await.unwrap(), 0);
}

#[tokio::test]
async fn the_audit_is_read_in_pages_and_by_what_it_says() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    let texts: Vec<String> = (0..7).map(|n| format!("m{n}")).collect();
    let rows: Vec<Park> = texts.iter().map(|text| row(text, None)).collect();
    park(&store, &consumer, &rows).await;
    for (n, text) in (0..).zip(&texts) {
        store.send_now(&wallet(), &[key_of(text)], &operation(n)).await.unwrap();
    }
    store.discard_parked(&wallet(), &[key_of("m3")], &operation(9)).await.unwrap();
    // A second apart, the first at 1,000 s.
    beside(&folder).execute("UPDATE handstamp_audit SET at_ms = 1000 * (999 + number)", []).unwrap();
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
            let page = store.audit_where(&wallet(), &filter, after, 3).await.unwrap();
            assert!(page.len() <= 3);
            let Some(last) = page.last() else { break };
            after = Some(last.number);
            seen.extend(page.iter().map(|line| line.operation.number[0]));
        }
        assert_eq!(seen, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn a_history_ends_at_a_hundred_attempts() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    for n in 0..HISTORY_MAX + 5 {
        let (mut tx, rows) = store.take_due(&consumer, 1).await.unwrap().unwrap();
        let failed = attempt(i64::try_from(n).unwrap());
        let again = Resumed::Again { wait: Duration::ZERO, failed };
        store.resume(&mut tx, &consumer, &[(rows[0].dedup, again)]).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let history = store.attempts(&wallet(), key_of("a")).await.unwrap();
    assert_eq!((history.len(), &history[0], &history[99]), (HISTORY_MAX, &attempt(0), &attempt(99)));
    let row = store.parked_message(&wallet(), key_of("a")).await.unwrap().unwrap().message.letter;
    assert_eq!(
        (row.attempts, row.reason),
        (105, attempt(104).reason),
        "counted, and the last one's reason is there"
    );
}

#[tokio::test]
async fn a_list_says_what_each_one_waits_for() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[waits("a", Some(1)), row("b", Some(1)), row("c", Some(2)), waits("d", None)])
        .await;
    park(&store, &consumer, &[waits("e", Some(1))]).await;
    let listed = store.parked(&wallet(), None, 10).await.unwrap();
    let a = Some(key_of("a"));
    assert_eq!(listed.iter().map(|row| row.behind).collect::<Vec<_>>(), [None, a, None, None, a]);
    let is_due: Vec<bool> = listed.iter().map(|row| row.due_in.is_zero()).collect();
    assert_eq!(is_due, [false, true, true, false, false]);
    for row in &listed {
        let whole = store.parked_message(&wallet(), row.message.key).await.unwrap().unwrap();
        assert_eq!((whole.behind, whole.due_at), (row.behind, row.due_at), "a list says what one says");
    }
}

#[tokio::test]
async fn what_is_left_is_counted() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    assert_eq!(store.backlog(&wallet()).await.unwrap(), Backlog::default());
    assert_eq!(store.backlog(&ConsumerName::new("nobody").unwrap()).await.unwrap(), Backlog::default());
    park(&store, &consumer, &[waits("a", Some(1)), row("b", Some(1))]).await;
    let left = store.backlog(&wallet()).await.unwrap();
    assert_eq!((left.parked.count, left.dead_letters), (2, 0));
    // What is behind another one is not due before it.
    assert!(left.parked.due_in.unwrap() > Duration::from_secs(3000), "{left:?}");
    assert!(left.parked.oldest.unwrap() < HOUR, "{left:?}");
    park(&store, &consumer, &[row("c", None)]).await;
    let (mut tx, _) = store.begin(&consumer, &requests(["dead"])).await.unwrap();
    store.record(&mut tx, &consumer, &[letter(Some(b"dead"), FailureClass::Sql)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let left = store.backlog(&wallet()).await.unwrap();
    assert_eq!((left.parked.count, left.parked.due_in, left.dead_letters), (3, Some(Duration::ZERO), 1));
}
