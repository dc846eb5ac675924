//! From one version of the schema to the next, with data in it and with programs of both versions running.

use crate::harness::{TestDatabase, connect, id, letter, name, on_each_server, request};
use crate::parked::{ids, park, take};
use handstamp_core::{Claim, FailureClass, Fingerprint, InboxState, Store, StoreErrorKind};
use handstamp_stores::postgres::{MigrateOptions, SCHEMA_VERSION, migrate_with, show_sql};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;

mod from_1_to_2 {
    #[tokio::test]
    async fn postgres15() {
        super::from_1_to_2(crate::harness::TestDatabase::empty(crate::harness::Server::V15).await).await;
    }
    #[tokio::test]
    async fn postgres18() {
        super::from_1_to_2(crate::harness::TestDatabase::empty(crate::harness::Server::V18).await).await;
    }
}

on_each_server!(what_version_1_runs_works_on_version_2,);

/// The schema as version 1 of the program left it, with its rights.
async fn version_1(database: &TestDatabase) {
    let first = include_str!("../../src/postgres/migrations/0001_inbox.sql");
    let bootstrap = include_str!("../../src/postgres/sql/bootstrap.sql");
    let made = format!(
        "{bootstrap}{first}; INSERT INTO handstamp.migrations VALUES (1, '{}');
         GRANT USAGE ON SCHEMA handstamp TO {role}; GRANT SELECT ON handstamp.migrations, handstamp.setups TO {role};
         GRANT SELECT, INSERT, UPDATE ON handstamp.consumers, handstamp.inbox TO {role};
         GRANT SELECT, INSERT ON handstamp.dead_letters TO {role}",
        blake3::hash(first.as_bytes()).to_hex(),
        role = database.role
    );
    database.admin().await.batch_execute(&made.replace("{schema}", "handstamp")).await.unwrap();
}

/// What version 1 sent for a consumer, a claim, a dead letter and its inbox row, as it sent it.
const VERSION_1: &str = "
    INSERT INTO handstamp.consumers (id, name, fingerprint)
    SELECT (coalesce((SELECT max(id) FROM handstamp.consumers), 0) + 1)::int2, 'wallet', 'test'
    ON CONFLICT DO NOTHING;
    INSERT INTO handstamp.inbox (digest, seen_at, consumer, state, id)
    SELECT NULL, (extract(epoch FROM now())::int8 - 1577836800)::int4, 1, 'a', c.id
    FROM unnest(ARRAY['applied', 'dead']::bytea[]) AS c (id) ON CONFLICT DO NOTHING;
    INSERT INTO handstamp.dead_letters (
        consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
        topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
        value_full_bytes, value_blake3
    )
    SELECT 1, '\\x{dedup}'::bytea, 2, 1, 3, 'failed', NULL, 'r', 'dead', 7, 'credits', 0, 5, NULL, NULL, 'k', '{}', '{}', '{}', NULL, NULL
    ON CONFLICT DO NOTHING;
    UPDATE handstamp.inbox SET state = 'd' WHERE id = ANY (ARRAY['dead']::bytea[]) AND consumer = 1";

fn version_1_runs() -> String {
    let dedup = DeadLetterKey(letter(Some("dead"), FailureClass::Failed, None).dedup());
    VERSION_1.replace("{dedup}", &dedup.to_string())
}

async fn from_1_to_2(database: TestDatabase) {
    version_1(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_1_runs()).await.unwrap();
    let store = database.store();
    let error = store.register(&name("wallet"), &Fingerprint("test".into()), false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated);
    assert!(error.to_string().contains("version 1") && error.to_string().contains("migrate"), "{error}");

    // Somebody of version 1 is in the middle of a transaction, and goes on after the migration.
    client.batch_execute("BEGIN; UPDATE handstamp.inbox SET state = state").await.unwrap();
    let admin = database.admin().await;
    let migrated = migrate_with(&admin, &MigrateOptions::default()).await.unwrap();
    assert_eq!((migrated.applied.as_slice(), migrated.version), (&[2][..], 2));
    client.batch_execute("COMMIT").await.unwrap();
    client.batch_execute(&version_1_runs()).await.unwrap();

    // Rights on the new tables are given as ever, and what lacks them says how.
    let error = store.rehearse(&name("wallet"), &Fingerprint("test".into())).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let options = MigrateOptions { grant_to: vec![database.role.clone()], ..MigrateOptions::default() };
    assert_eq!(migrate_with(&admin, &options).await.unwrap().applied, [0; 0]);
    let store = database.store();
    assert!(store.rehearse(&name("wallet"), &Fingerprint("test".into())).await.unwrap());

    // What version 1 gave up can be sent back, and what it applied stays applied.
    let key = store.register(&name("wallet"), &Fingerprint("test".into()), false).await.unwrap();
    let (tx, claims) = store.begin(&key, &[request("applied", None), request("dead", None)]).await.unwrap();
    assert!(matches!(claims[0], Claim::Duplicate { state: InboxState::Applied, .. }), "{claims:?}");
    assert!(matches!(claims[1], Claim::Duplicate { state: InboxState::Dead, .. }), "{claims:?}");
    store.rollback(tx).await.unwrap();
    let listed = store.dead_letters(&key.name, None, None, 10).await.unwrap();
    let redrive = Redrive { dead_letter: listed[0].key, new_id: None, order_key: None };
    let operation = Operation { number: [1; 16], done_by: "o".into(), why: "w".into() };
    assert_eq!(store.redrive(&key.name, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
    let (tx, rows) = take(&store, &key).await.unwrap();
    assert_eq!(ids(&rows), ["dead"]);
    store.rollback(tx).await.unwrap();
}

/// Version 1 accepts the schema of version 2 and must then work on it, beside messages that version 2 parked.
async fn what_version_1_runs_works_on_version_2(database: TestDatabase) {
    assert_eq!(SCHEMA_VERSION, 2, "the next version needs such a test of its own");
    let client = connect(&database.url()).await;
    let newest: i32 =
        client.query_one("SELECT max(number) FROM handstamp.migrations", &[]).await.unwrap().get(0);
    assert!(newest <= 1 + 1, "version 1 refuses what is newer than the next");
    client.batch_execute(&version_1_runs()).await.unwrap();
    let store = database.store();
    let key = store.register(&name("wallet"), &Fingerprint("test".into()), false).await.unwrap();
    park(&store, &key, &["parked"], None).await;
    // What version 1 reads of it: a state that it knows, whose outcome is durable.
    let sql = "SELECT state::text FROM handstamp.inbox WHERE id = 'parked' AND consumer = 1";
    let state: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(state.chars().next().and_then(InboxState::from_letter), Some(InboxState::Parked));
    client.batch_execute(&version_1_runs()).await.unwrap();
    assert_eq!(store.inbox_row(&key.name, &id("parked")).await.unwrap().unwrap().state, InboxState::Parked);
    assert!(show_sql(&handstamp_stores::postgres::SchemaName::default()).contains("handstamp\".parked"));
}
