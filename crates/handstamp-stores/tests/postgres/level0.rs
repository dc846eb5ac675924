//! Level 0: a claim inside a transaction that the user already has.

use crate::harness::{Server, TestDatabase, fresh, id, on_each_server, request};
use handstamp_core::{Claim, ClaimRequest, InboxState, MessageId, StoreErrorKind};
use handstamp_stores::postgres::{ConsumerName, claim, claim_many, claim_with_digest};
use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_postgres::{Client, Config, IsolationLevel, NoTls};

on_each_server!(
    the_first_claim_wins_and_the_next_one_is_a_duplicate,
    a_rolled_back_claim_never_was,
    one_call_answers_twins_and_known_ids,
    an_unregistered_consumer_is_never_a_duplicate,
    ids_are_scoped_by_consumer_and_kept_apart,
    registering_is_idempotent_and_burns_nothing,
    a_racer_waits_and_then_gets_duplicate_or_first,
    a_batch_that_waited_answers_every_id,
    stricter_isolation_gives_conflict,
    opposite_orders_do_not_deadlock,
    without_our_tables_it_says_so,
    looking_up_acting_and_marking_apart_doubles,
    a_claim_is_one_round_trip,
    the_second_of_a_claim_is_the_one_it_lies_in,
);

async fn the_first_claim_wins_and_the_next_one_is_a_duplicate(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(claim(&tx, &consumer, &id("m")).await.unwrap(), Claim::First);
    let Claim::Duplicate { state, first_seen } = claim(&tx, &consumer, &id("m")).await.unwrap() else {
        panic!("the same id twice in one transaction");
    };
    assert_eq!(state, InboxState::Applied);
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let seen_s = u64::try_from(first_seen.0 / 1000).unwrap();
    assert!(seen_s.abs_diff(now_s) < 600 && first_seen.0 % 1000 == 0, "{seen_s} {now_s}");
    tx.commit().await.unwrap();

    let tx = client.transaction().await.unwrap();
    let again = claim(&tx, &consumer, &id("m")).await.unwrap();
    assert_eq!(again, Claim::Duplicate { state: InboxState::Applied, first_seen });
}

async fn a_rolled_back_claim_never_was(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    for _ in 0..3 {
        let tx = client.transaction().await.unwrap();
        assert_eq!(claim(&tx, &consumer, &id("m")).await.unwrap(), Claim::First);
        tx.rollback().await.unwrap();
    }
    let mut tx = client.transaction().await.unwrap();
    let savepoint = tx.savepoint("s").await.unwrap();
    assert_eq!(claim(&savepoint, &consumer, &id("m")).await.unwrap(), Claim::First);
    savepoint.rollback().await.unwrap();
    assert_eq!(claim(&tx, &consumer, &id("m")).await.unwrap(), Claim::First);
}

async fn one_call_answers_twins_and_known_ids(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(claim_with_digest(&tx, &consumer, &id("known"), 7).await.unwrap(), Claim::First);
    assert_eq!(claim(&tx, &consumer, &id("plain")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();

    let tx = client.transaction().await.unwrap();
    let requests = [
        request("z", Some(1)),
        request("known", Some(7)),
        request("known", Some(8)),
        request("known", None),
        request("a", Some(1)),
        request("z", Some(1)),
        request("z", Some(2)),
        request("z", None),
        request("plain", Some(1)),
        request("b", None),
        request("b", Some(9)),
    ];
    let claims = claim_many(&tx, &consumer, &requests).await.unwrap();
    let words: Vec<&str> = claims.iter().map(word).collect();
    let expected = [
        "first",
        "duplicate",
        "reused",
        "duplicate",
        "first",
        "duplicate",
        "reused",
        "duplicate",
        "duplicate",
        "first",
        "duplicate",
    ];
    assert_eq!(words, expected);
    assert_eq!(claim_many(&tx, &consumer, &[]).await.unwrap(), []);
}

fn word(claim: &Claim) -> &'static str {
    match claim {
        Claim::First => "first",
        Claim::Duplicate { .. } => "duplicate",
        Claim::IdReused { .. } => "reused",
        _ => "unknown",
    }
}

async fn an_unregistered_consumer_is_never_a_duplicate(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let other = ConsumerName::register(&client, "other").await.unwrap();
    let admin = database.admin().await;
    // The table was restored: the number belongs to another name now, or to none.
    admin.batch_execute("UPDATE handstamp.consumers SET name = 'mails' WHERE name = 'wallet'").await.unwrap();
    admin.batch_execute("DELETE FROM handstamp.consumers WHERE name = 'other'").await.unwrap();
    for consumer in [&consumer, &other] {
        for requests in [fresh(1, 1), fresh(1, 3)] {
            let tx = client.transaction().await.unwrap();
            let error = claim_many(&tx, consumer, &requests).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::UnknownConsumer, "{error}");
        }
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, 0);
}

async fn ids_are_scoped_by_consumer_and_kept_apart(database: TestDatabase) {
    let mut client = database.client().await;
    let wallet = ConsumerName::register(&client, "wallet").await.unwrap();
    let mails = ConsumerName::register(&client, "mails").await.unwrap();
    let uuid = "0193f5a0-7c3e-7b1a-8000-0123456789ab";
    let noise: Vec<u8> = (0..32_u32).flat_map(|n| *blake3::hash(&n.to_be_bytes()).as_bytes()).collect();
    let ids = [
        id(uuid),
        id(&uuid.to_uppercase()),
        MessageId::new(id(uuid).to_stored()).unwrap(),
        MessageId::new([id(uuid).to_stored(), vec![0]].concat()).unwrap(),
        id("007"),
        id("7"),
        id("a"),
        id("A"),
        id("a "),
        id("a\n"),
        MessageId::new(&b"a\0"[..]).unwrap(),
        MessageId::new(&b"\xff\xfe"[..]).unwrap(),
        MessageId::new(noise.clone()).unwrap(),
        MessageId::new(noise[..1023].to_vec()).unwrap(),
    ];
    assert_eq!(noise.len(), MessageId::MAX_BYTES);
    let requests: Vec<_> = ids.iter().map(|id| ClaimRequest { id: id.clone(), digest: None }).collect();
    let tx = client.transaction().await.unwrap();
    for consumer in [&wallet, &mails] {
        let claims = claim_many(&tx, consumer, &requests).await.unwrap();
        assert!(claims.iter().all(|c| *c == Claim::First), "{claims:?}");
        for request in &requests {
            assert_eq!(word(&claim(&tx, consumer, &request.id).await.unwrap()), "duplicate");
        }
    }
}

async fn registering_is_idempotent_and_burns_nothing(database: TestDatabase) {
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let client = database.client().await;
        tasks.push(tokio::spawn(async move {
            let mut keys = Vec::new();
            for n in 0..10 {
                keys.push(ConsumerName::register(&client, &format!("c{n}")).await.unwrap().key().id);
            }
            keys
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    let distinct: BTreeSet<i16> = all[0].iter().copied().collect();
    assert_eq!(distinct, (1..=10).collect());
    let used = "SELECT count(*) FROM pg_sequences WHERE schemaname = 'handstamp' AND last_value IS NOT NULL";
    assert_eq!(database.number(used).await, 0);
    let client = database.client().await;
    let error = ConsumerName::register(&client, "a b").await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Config);
}

async fn a_racer_waits_and_then_gets_duplicate_or_first(database: TestDatabase) {
    for commits in [true, false] {
        let message = if commits { "committed" } else { "rolled back" };
        let mut one = database.client().await;
        let consumer = ConsumerName::register(&one, "wallet").await.unwrap();
        let tx = one.transaction().await.unwrap();
        assert_eq!(claim(&tx, &consumer, &id(message)).await.unwrap(), Claim::First);
        let mut two = database.client().await;
        let racer = tokio::spawn({
            let consumer = consumer.clone();
            async move {
                let tx = two.transaction().await.unwrap();
                let claim = claim(&tx, &consumer, &id(message)).await.unwrap();
                tx.commit().await.unwrap();
                claim
            }
        });
        database.until_blocked(1).await;
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let expected = if commits { "duplicate" } else { "first" };
        assert_eq!(word(&racer.await.unwrap()), expected);
    }
}

async fn a_batch_that_waited_answers_every_id(database: TestDatabase) {
    let mut one = database.client().await;
    let consumer = ConsumerName::register(&one, "wallet").await.unwrap();
    let tx = one.transaction().await.unwrap();
    claim_with_digest(&tx, &consumer, &id("m5"), 5).await.unwrap();
    claim_with_digest(&tx, &consumer, &id("m7"), 7).await.unwrap();
    let mut two = database.client().await;
    let racer = tokio::spawn({
        let consumer = consumer.clone();
        async move {
            let requests: Vec<_> =
                (0..10).map(|n| request(&format!("m{n}"), Some(if n == 7 { 0 } else { n }))).collect();
            let tx = two.transaction().await.unwrap();
            let claims = claim_many(&tx, &consumer, &requests).await.unwrap();
            tx.commit().await.unwrap();
            claims
        }
    });
    database.until_blocked(1).await;
    tx.commit().await.unwrap();
    let words: Vec<&str> = racer.await.unwrap().iter().map(word).collect();
    let expected: Vec<&str> = (0..10)
        .map(|n| match n {
            5 => "duplicate",
            7 => "reused",
            _ => "first",
        })
        .collect();
    assert_eq!(words, expected);
}

async fn stricter_isolation_gives_conflict(database: TestDatabase) {
    for (round, level) in
        [IsolationLevel::RepeatableRead, IsolationLevel::Serializable].into_iter().enumerate()
    {
        // Committed after the snapshot, with and without a wait; for one id and for many.
        for (many, waits) in [(false, false), (false, true), (true, false), (true, true)] {
            let message = format!("{round}{many}{waits}");
            let mut one = database.client().await;
            let mut two = database.client().await;
            let consumer = ConsumerName::register(&one, "wallet").await.unwrap();
            let late = two.build_transaction().isolation_level(level).start().await.unwrap();
            late.query_one("SELECT count(*) FROM handstamp.consumers", &[]).await.unwrap();
            let tx = one.transaction().await.unwrap();
            claim(&tx, &consumer, &id(&message)).await.unwrap();
            let mut open = Some(tx);
            if !waits {
                open.take().unwrap().commit().await.unwrap();
            }
            let mut requests = vec![request(&message, None)];
            if many {
                requests.push(request(&format!("{message} other"), None));
            }
            let racer = claim_many(&late, &consumer, &requests);
            let commit = async {
                if let Some(tx) = open {
                    database.until_blocked(1).await;
                    tx.commit().await.unwrap();
                }
            };
            let (outcome, ()) = tokio::join!(racer, commit);
            let error = outcome.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Conflict, "{level:?} {many} {waits}: {error}");
        }
    }
}

/// Ids are locked in one order, whatever order they are asked in.
async fn opposite_orders_do_not_deadlock(database: TestDatabase) {
    let mut one = database.client().await;
    let mut two = database.client().await;
    let consumer = ConsumerName::register(&one, "wallet").await.unwrap();
    let first = one.transaction().await.unwrap();
    assert_eq!(claim(&first, &consumer, &id("a")).await.unwrap(), Claim::First);
    let racer = tokio::spawn({
        let consumer = consumer.clone();
        async move {
            let tx = two.transaction().await.unwrap();
            claim_many(&tx, &consumer, &[request("c", None), request("b", None), request("a", None)])
                .await
                .unwrap()
        }
    });
    database.until_blocked(1).await;
    // The racer waits for "a" and holds nothing yet.
    let requests = [request("b", None), request("c", None)];
    assert_eq!(claim_many(&first, &consumer, &requests).await.unwrap(), [Claim::First, Claim::First]);
    first.commit().await.unwrap();
    let words: Vec<&str> = racer.await.unwrap().iter().map(word).collect();
    assert_eq!(words, ["duplicate"; 3]);
}

mod unmigrated {
    use super::*;

    #[tokio::test]
    async fn on_an_empty_database() {
        let database = TestDatabase::empty(Server::V18).await;
        let client = database.client().await;
        let error = ConsumerName::register(&client, "wallet").await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::NotMigrated);
        assert!(error.to_string().contains("handstamp migrate"), "{error}");
    }
}

async fn without_our_tables_it_says_so(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    database.admin().await.batch_execute("DROP TABLE handstamp.inbox").await.unwrap();
    let tx = client.transaction().await.unwrap();
    let error = claim(&tx, &consumer, &id("m")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated);
}

/// The control: the same race as above, written the wrong way, doubles.
async fn looking_up_acting_and_marking_apart_doubles(database: TestDatabase) {
    let admin = database.admin().await;
    admin
        .batch_execute(
            "CREATE TABLE seen (id text PRIMARY KEY); CREATE TABLE account (balance int); INSERT INTO account VALUES (0)",
        )
        .await
        .unwrap();
    let (one, two) = (database.admin().await, database.admin().await);
    let look = "SELECT count(*) FROM seen WHERE id = 'm'";
    let known = |row: tokio_postgres::Row| row.get::<_, i64>(0) > 0;
    let (first, second) = tokio::join!(one.query_one(look, &[]), two.query_one(look, &[]));
    for (client, row) in [(&one, first), (&two, second)] {
        if known(row.unwrap()) {
            continue;
        }
        client.execute("UPDATE account SET balance = balance + 1", &[]).await.unwrap();
        client.execute("INSERT INTO seen VALUES ('m') ON CONFLICT DO NOTHING", &[]).await.unwrap();
    }
    assert_eq!(database.number("SELECT balance FROM account").await, 2, "the wrong version doubles");

    // The right version, with the same two clients at the same time.
    let mut clients = [database.client().await, database.client().await];
    let consumer = ConsumerName::register(&clients[0], "wallet").await.unwrap();
    admin.batch_execute("UPDATE account SET balance = 0; GRANT ALL ON account TO PUBLIC").await.unwrap();
    let [one, two] = &mut clients;
    let credit = async |client: &mut Client| {
        let tx = client.transaction().await.unwrap();
        if claim(&tx, &consumer, &id("m")).await.unwrap() == Claim::First {
            tx.execute("UPDATE account SET balance = balance + 1", &[]).await.unwrap();
        }
        tx.commit().await.unwrap();
    };
    tokio::join!(credit(one), credit(two));
    assert_eq!(database.number("SELECT balance FROM account").await, 1);
}

/// Counts how often the client turned from reading to writing.
struct Counting {
    stream: TcpStream,
    flights: Arc<AtomicU32>,
    was_writing: AtomicBool,
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.was_writing.store(false, Ordering::Relaxed);
        }
        outcome
    }
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if !self.was_writing.swap(true, Ordering::Relaxed) {
            self.flights.fetch_add(1, Ordering::Relaxed);
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn a_claim_is_one_round_trip(database: TestDatabase) {
    let config: Config = database.url().parse().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", config.get_ports()[0])).await.unwrap();
    let flights = Arc::new(AtomicU32::new(0));
    let counting = Counting { stream, flights: flights.clone(), was_writing: AtomicBool::new(false) };
    let (mut client, connection) = config.connect_raw(counting, NoTls).await.unwrap();
    tokio::spawn(connection);
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let tx = client.transaction().await.unwrap();
    let many = fresh(1, 500);
    for (what, requests) in [
        ("one first", &many[..1]),
        ("one duplicate", &many[..1]),
        ("many, one of them known", &many[..]),
        ("many duplicates", &many[..]),
    ] {
        let before = flights.load(Ordering::Relaxed);
        claim_many(&tx, &consumer, requests).await.unwrap();
        let flown = flights.load(Ordering::Relaxed) - before;
        assert_eq!(flown, 1, "{what}");
    }
}

/// In the second half of a second, where rounding would name the next one.
async fn the_second_of_a_claim_is_the_one_it_lies_in(database: TestDatabase) {
    let mut client = database.client().await;
    let consumer = ConsumerName::register(&client, "wallet").await.unwrap();
    let ids = fresh(1, 4);
    let mut seen = Vec::new();
    for requests in [&ids[..1], &ids[1..]] {
        let wait = "SELECT pg_sleep(CASE WHEN f < 0.6 THEN 0.6 - f WHEN f > 0.9 THEN 1.6 - f ELSE 0 END) \
                    FROM (SELECT (extract(epoch FROM clock_timestamp()) % 1)::float8 AS f) AS part";
        let (tx, second) = 'late: {
            for _ in 0..20 {
                client.batch_execute(wait).await.unwrap();
                let tx = client.transaction().await.unwrap();
                let now =
                    "SELECT floor(extract(epoch FROM now()))::int8, extract(epoch FROM now()) % 1 > 0.5";
                let row = tx.query_one(now, &[]).await.unwrap();
                if row.get::<_, bool>(1) {
                    break 'late (tx, row.get::<_, i64>(0));
                }
                tx.rollback().await.unwrap();
                // The borrow ends with the transaction.
                client = database.client().await;
            }
            panic!("never in the second half of a second");
        };
        claim_many(&tx, &consumer, requests).await.unwrap();
        tx.commit().await.unwrap();
        seen.push(second);
    }
    let tx = client.transaction().await.unwrap();
    let again = claim_many(&tx, &consumer, &ids).await.unwrap();
    let first_seen: Vec<i64> = again
        .iter()
        .map(|claim| match claim {
            Claim::Duplicate { first_seen, .. } => first_seen.0 / 1000,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(first_seen, [seen[0], seen[1], seen[1], seen[1]]);
}
