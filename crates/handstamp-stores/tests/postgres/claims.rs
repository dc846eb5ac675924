//! What claims cost: bytes a remembered id, and nothing at all for a duplicate. On a server of the test's
//! own, because every byte of WAL counts.

use crate::harness::{Server, fresh, name, request};
use crate::private::PrivateServer;
use handstamp_core::{Claim, ClaimRequest, ConsumerKey, Fingerprint, MessageId, Store};
use handstamp_stores::postgres::{MigrateOptions, PostgresOptions, PostgresStore};
use tokio_postgres::Client;

pub(crate) async fn quiet(server: Server) -> (PrivateServer, Client, PostgresStore, ConsumerKey) {
    let private = PrivateServer::up(server).await;
    let admin = private.admin().await;
    for setting in [
        "autovacuum = off",
        "checkpoint_timeout = '1h'",
        "max_wal_size = '10GB'",
        "bgwriter_lru_maxpages = 0",
    ] {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let store = PostgresStore::new(PostgresOptions::parse(&private.url).unwrap()).unwrap();
    store.migrate(&MigrateOptions::default()).await.unwrap();
    let key = store.register(&name("wallet-credits"), &Fingerprint("test".into()), false).await.unwrap();
    (private, admin, store, key)
}

async fn claim_all(store: &PostgresStore, key: &ConsumerKey, requests: &[ClaimRequest]) -> usize {
    let mut first = 0;
    for batch in requests.chunks(1000) {
        let (tx, claims) = store.begin(key, batch).await.unwrap();
        first += claims.iter().filter(|c| **c == Claim::First).count();
        store.commit(tx).await.unwrap();
    }
    first
}

pub(crate) async fn wal_position(admin: &Client) -> i64 {
    let row =
        admin.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::int8", &[]).await.unwrap();
    row.get(0)
}

async fn duplicates_write_nothing(server: Server) {
    let (_private, admin, store, key) = quiet(server).await;
    let known = fresh(0, 10_000);
    assert_eq!(claim_all(&store, &key, &known).await, 10_000);
    assert_eq!(claim_all(&store, &key, &known).await, 0, "the warm pass");
    let mut differences = Vec::new();
    let mut backend_bytes = Vec::new();
    for round in 0..3 {
        let (before, own_before) = (wal_position(&admin).await, own_wal(server, &store, &key).await);
        assert_eq!(claim_all(&store, &key, &known).await, 0);
        let own_after = own_wal(server, &store, &key).await;
        differences.push(wal_position(&admin).await - before);
        backend_bytes.push(own_after - own_before);
        // The control: the same number of new ids.
        let before = wal_position(&admin).await;
        assert_eq!(claim_all(&store, &key, &fresh(round + 1, 10_000)).await, 10_000);
        let fresh_bytes = wal_position(&admin).await - before;
        assert!(fresh_bytes > 1_000_000, "{fresh_bytes}");
    }
    assert_eq!(differences.iter().min(), Some(&0), "{differences:?}");
    assert_eq!(backend_bytes, [0, 0, 0]);
    let dead: i64 = admin
        .query_one("SELECT pg_stat_force_next_flush(), n_dead_tup FROM pg_stat_all_tables WHERE relid = 'handstamp.inbox'::regclass", &[])
        .await
        .unwrap()
        .get(1);
    assert_eq!(dead, 0);
    let used: i64 = admin
        .query_one(
            "SELECT count(*) FROM pg_sequences WHERE schemaname = 'handstamp' AND last_value IS NOT NULL",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(used, 0, "no sequence is burned");
}

/// WAL that the store's own backend wrote; only newer servers tell.
async fn own_wal(server: Server, store: &PostgresStore, key: &ConsumerKey) -> i64 {
    if server == Server::V15 {
        return 0;
    }
    let (tx, _) = store.begin(key, &[]).await.unwrap();
    tx.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    store.commit(tx).await.unwrap();
    let (tx, _) = store.begin(key, &[]).await.unwrap();
    let row = tx
        .query_one("SELECT wal_bytes::int8 FROM pg_stat_get_backend_wal(pg_backend_pid())", &[])
        .await
        .unwrap();
    store.commit(tx).await.unwrap();
    row.get(0)
}

/// Bytes a row with its index, after VACUUM.
async fn bytes_a_row(admin: &Client, rows: f64) -> f64 {
    admin.batch_execute("VACUUM handstamp.inbox").await.unwrap();
    let row = admin.query_one("SELECT pg_total_relation_size('handstamp.inbox')::float8", &[]).await.unwrap();
    row.get::<_, f64>(0) / rows
}

async fn a_remembered_id_is_small(server: Server) {
    let (_private, admin, store, key) = quiet(server).await;
    let rows = 200_000_u32;
    for (v7, bar) in [(true, 105.0), (false, 118.0)] {
        admin.batch_execute("TRUNCATE handstamp.inbox").await.unwrap();
        for batch in 0..rows / 1000 {
            let mut requests = fresh(batch, 1000);
            if !v7 {
                for (request, n) in requests.iter_mut().zip(0_u32..) {
                    request.id = random_uuid(batch, n);
                }
            }
            let (tx, claims) = store.begin(&key, &requests).await.unwrap();
            assert!(claims.iter().all(|c| *c == Claim::First));
            store.commit(tx).await.unwrap();
        }
        let bytes = bytes_a_row(&admin, f64::from(rows)).await;
        println!("postgres{server:?} v7={v7}: {bytes:.1} bytes a row");
        assert!(bytes <= bar, "v7={v7}: {bytes}");
    }
}

fn random_uuid(batch: u32, n: u32) -> MessageId {
    let hex = blake3::hash(&[batch.to_be_bytes(), n.to_be_bytes()].concat()).to_hex();
    let text = format!("{}-{}-4{}-9{}-{}", &hex[..8], &hex[8..12], &hex[12..15], &hex[15..18], &hex[18..30]);
    MessageId::try_from(text.as_str()).unwrap()
}

#[tokio::test]
async fn duplicates_write_nothing_on_15() {
    duplicates_write_nothing(Server::V15).await;
}

#[tokio::test]
async fn duplicates_write_nothing_on_18() {
    duplicates_write_nothing(Server::V18).await;
}

#[tokio::test]
async fn a_remembered_id_is_small_on_15() {
    a_remembered_id_is_small(Server::V15).await;
}

#[tokio::test]
async fn a_remembered_id_is_small_on_18() {
    a_remembered_id_is_small(Server::V18).await;
}

/// I3: what was settled survives a crash of the server even where the role switched durability off.
async fn a_commit_survives_a_crash(server: Server) {
    let (private, admin, store, _) = quiet(server).await;
    for setting in ["wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'"] {
        admin.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    admin
        .batch_execute(
            "CREATE ROLE app LOGIN; ALTER ROLE app SET synchronous_commit = off;
             CREATE TABLE ours (n int); CREATE TABLE control (n int); GRANT ALL ON ours, control TO app",
        )
        .await
        .unwrap();
    store
        .migrate(&MigrateOptions { grant_to: vec!["app".into()], ..MigrateOptions::default() })
        .await
        .unwrap();
    // The settings count from a fresh start on.
    drop(admin);
    private.crash_and_start();
    let app_url = private.url.replace("//postgres@", "//app@");
    let mut control_lost = false;
    for round in 1..=5_i64 {
        let store = PostgresStore::new(PostgresOptions::parse(&app_url).unwrap()).unwrap();
        let key = store.register(&name("wallet"), &Fingerprint("test".into()), false).await.unwrap();
        let message = [request(&format!("m{round}"), None)];
        let (tx, claims) = store.begin(&key, &message).await.unwrap();
        assert_eq!(claims, [Claim::First]);
        let off: String = tx.query_one("SHOW synchronous_commit", &[]).await.unwrap().get(0);
        assert_eq!(off, "off", "the role's own setting");
        tx.execute("INSERT INTO ours VALUES (1)", &[]).await.unwrap();
        store.commit(tx).await.unwrap();
        // The control: a plain commit of the same role, told Ok, behind ours.
        let plain = crate::harness::connect(&app_url).await;
        plain.batch_execute("INSERT INTO control VALUES (1)").await.unwrap();
        private.crash_and_start();

        let admin = private.admin().await;
        let row = admin
            .query_one("SELECT (SELECT count(*) FROM ours), (SELECT count(*) FROM control)", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), round, "settled before its outcome was durable");
        let store = PostgresStore::new(PostgresOptions::parse(&app_url).unwrap()).unwrap();
        let (tx, claims) = store.begin(&key, &message).await.unwrap();
        assert!(matches!(claims[0], Claim::Duplicate { .. }));
        store.rollback(tx).await.unwrap();
        // The server's own writer may come between by chance, once in ten seconds: then again.
        control_lost = row.get::<_, i64>(1) < round;
        if control_lost {
            break;
        }
    }
    assert!(control_lost, "the control proves nothing: its commits survived every crash");
}

#[tokio::test]
async fn a_commit_survives_a_crash_on_15() {
    a_commit_survives_a_crash(Server::V15).await;
}

#[tokio::test]
async fn a_commit_survives_a_crash_on_18() {
    a_commit_survives_a_crash(Server::V18).await;
}
