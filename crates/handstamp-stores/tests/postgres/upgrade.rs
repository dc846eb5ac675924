//! From one version of the schema to the next, with data in it and with programs of both versions running.

use crate::harness::{TestDatabase, connect, id, letter, name, request};
use crate::parked::{ids, take};
use crate::starts::{alone, lane, starter};
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_core::{
    Claim, Company, FailureClass, Fingerprint, InboxState, PruneStore, StartStore, Store, StoreErrorKind,
    Version, VersionKey, VersionStore,
};
use handstamp_stores::postgres::{MigrateOptions, SCHEMA_VERSION, migrate_with, show_sql};
use handstamp_stores::redrive::{Operation, Redrive, Redriven};
use handstamp_stores::rows::DeadLetterKey;
use std::collections::BTreeMap;
use std::time::Duration;

/// Runs a test once on each server, without our tables.
macro_rules! from_nothing {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            use crate::harness::{Server, TestDatabase};
            #[tokio::test]
            async fn postgres15() {
                super::$name(TestDatabase::empty(Server::V15).await).await;
            }
            #[tokio::test]
            async fn postgres18() {
                super::$name(TestDatabase::empty(Server::V18).await).await;
            }
        }
    )* };
}

from_nothing!(
    from_1_to_this_version,
    what_version_1_runs_works_on_version_2,
    from_2_to_this_version,
    what_version_2_runs_works_on_version_3,
    from_3_to_this_version,
    what_version_3_runs_works_on_version_4,
    from_4_to_this_version,
    what_version_4_runs_works_on_version_5,
);

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

/// The schema as version 2 of the program left it, with its rights.
async fn version_2(database: &TestDatabase) {
    version_1(database).await;
    let second = include_str!("../../src/postgres/migrations/0002_parked.sql");
    let made = format!(
        "{second}; INSERT INTO handstamp.migrations VALUES (2, '{}');
         GRANT UPDATE, DELETE ON handstamp.dead_letters TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON handstamp.parked TO {role};
         GRANT SELECT, INSERT ON handstamp.attempts, handstamp.audit TO {role};
         INSERT INTO handstamp.consumers (id, name, fingerprint) VALUES (1, 'wallet', 'test')",
        blake3::hash(second.as_bytes()).to_hex(),
        role = database.role
    );
    database.admin().await.batch_execute(&made.replace("{schema}", "handstamp")).await.unwrap();
}

/// The schema as version 3 of the program left it, with its rights.
async fn version_3(database: &TestDatabase) {
    version_2(database).await;
    let third = include_str!("../../src/postgres/migrations/0003_starts.sql");
    let made = format!(
        "{third}; INSERT INTO handstamp.migrations VALUES (3, '{}');
         GRANT SELECT, INSERT, UPDATE, DELETE ON handstamp.starts, handstamp.parked_starts TO {role};
         GRANT SELECT, INSERT, DELETE ON handstamp.crashes TO {role}",
        blake3::hash(third.as_bytes()).to_hex(),
        role = database.role
    );
    database.admin().await.batch_execute(&made.replace("{schema}", "handstamp")).await.unwrap();
}

/// The schema as version 4 of the program left it, with its rights.
async fn version_4(database: &TestDatabase) {
    version_3(database).await;
    let fourth = include_str!("../../src/postgres/migrations/0004_versions.sql");
    let made = format!(
        "{fourth}; INSERT INTO handstamp.migrations VALUES (4, '{}');
         GRANT SELECT, INSERT, UPDATE ON handstamp.versions TO {role}",
        blake3::hash(fourth.as_bytes()).to_hex(),
        role = database.role
    );
    database.admin().await.batch_execute(&made.replace("{schema}", "handstamp")).await.unwrap();
}

/// What version 2 sent, of messages of their own for each `n`.
fn version_2_runs(n: u32) -> String {
    include_str!("version_2.sql").replace("{n}", &n.to_string())
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

async fn from_1_to_this_version(database: TestDatabase) {
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
    assert_eq!((migrated.applied, migrated.version), ((2..=SCHEMA_VERSION).collect(), SCHEMA_VERSION));
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
    version_2(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_1_runs()).await.unwrap();
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    // What version 1 reads of it: a state that it knows, whose outcome is durable.
    let sql = "SELECT state::text FROM handstamp.inbox WHERE id = '0b' AND consumer = 1";
    let state: String = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(state.chars().next().and_then(InboxState::from_letter), Some(InboxState::Parked));
    client.batch_execute(&version_1_runs()).await.unwrap();
    assert_eq!(client.query_one(sql, &[]).await.unwrap().get::<_, String>(0), state);
}

/// With parked messages, dead letters, their history and the audit, and somebody in the middle of a transaction.
async fn from_2_to_this_version(database: TestDatabase) {
    version_2(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    let (wallet, fingerprint) = (name("wallet"), Fingerprint("test".into()));
    let store = database.store();
    let error = store.register(&wallet, &fingerprint, false).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotMigrated);
    assert!(error.to_string().contains("version 2") && error.to_string().contains("migrate"), "{error}");

    let holds = "BEGIN; SELECT FROM handstamp.parked FOR UPDATE; UPDATE handstamp.inbox SET state = state";
    client.batch_execute(holds).await.unwrap();
    let admin = database.admin().await;
    let migrated = migrate_with(&admin, &MigrateOptions::default()).await.unwrap();
    assert_eq!((migrated.applied, migrated.version), ((3..=SCHEMA_VERSION).collect(), SCHEMA_VERSION));
    client.batch_execute("COMMIT").await.unwrap();
    let error = database.store().rehearse(&wallet, &fingerprint).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let options = MigrateOptions { grant_to: vec![database.role.clone()], ..MigrateOptions::default() };
    assert_eq!(migrate_with(&admin, &options).await.unwrap().applied, [0; 0]);

    // Everything goes on: what was due, what was given up, what was said of it.
    let store = database.store();
    assert!(store.rehearse(&wallet, &fingerprint).await.unwrap());
    let key = store.register(&wallet, &fingerprint, false).await.unwrap();
    let (mut tx, rows) = store.start_due(&key, 10, &starter(1), Company::None).await.unwrap().unwrap();
    let mut attempts: Vec<_> =
        ids(&rows).into_iter().zip(rows.iter().map(|row| row.letter.attempts)).collect();
    attempts.sort();
    assert_eq!(attempts, [("0b".to_owned(), 3), ("0c".to_owned(), 0), ("0e".to_owned(), 2)]);
    assert!(rows.iter().all(|row| row.crashes.is_empty()));
    let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
    store.resume(&mut tx, &key, &outcomes).await.unwrap();
    store.commit(tx).await.unwrap();
    let listed = store.dead_letters(&wallet, None, None, 10).await.unwrap();
    assert_eq!((listed.len(), listed[0].id.clone()), (1, Some(id("0d"))));
    assert_eq!(store.attempts(&wallet, listed[0].key).await.unwrap().len(), 1);
    assert_eq!(store.audit(&wallet, None, 10).await.unwrap().len(), 1);
    let redrive = Redrive { dead_letter: listed[0].key, new_id: None, order_key: None };
    let operation = Operation { number: [1; 16], done_by: "o".into(), why: "w".into() };
    assert_eq!(store.redrive(&wallet, &[redrive], &operation).await.unwrap(), [Redriven::Parked]);
    assert_eq!(store.audit(&wallet, None, 10).await.unwrap().len(), 2);
    let start = alone(1, "l", "new");
    let (tx, claims) = store.start_and_begin(&key, &[request("new", None)], &start).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.rollback(tx).await.unwrap();
    assert_eq!(store.take_over(&key, &starter(2), &[lane("l")]).await.unwrap().crashes.len(), 1);
}

/// Version 2 accepts the schema of version 3 and must then work on it, beside what version 3 started.
async fn what_version_2_runs_works_on_version_3(database: TestDatabase) {
    version_3(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    // Version 3 has started what is parked, and a lane, and counts a crash; version 2 knows nothing of it.
    client.batch_execute(VERSION_3_STARTS).await.unwrap();
    client.batch_execute(&version_2_runs(1)).await.unwrap();
    let takes = "BEGIN; SELECT FROM handstamp.parked FOR UPDATE SKIP LOCKED;
                 DELETE FROM handstamp.parked WHERE id = '0e'; UPDATE handstamp.inbox SET state = 'a' WHERE id = '0e'; COMMIT";
    client.batch_execute(takes).await.unwrap();
    for (table, rows) in [("parked", 5), ("dead_letters", 2), ("audit", 2), ("attempts", 6), ("starts", 1)] {
        assert_eq!(
            database.number(&format!("SELECT count(*) FROM handstamp.{table}")).await,
            rows,
            "{table}"
        );
    }
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox WHERE state = 'a'").await, 3);
    // What version 2 took is started for ever after, and nobody is parked under it: it suspects nobody.
    migrate_with(&database.admin().await, &MigrateOptions::default()).await.unwrap();
    let store = database.store();
    let key = store.register(&name("wallet"), &Fingerprint("test".into()), false).await.unwrap();
    let mut taken = 0;
    while let Some((mut tx, rows)) = store.start_due(&key, 10, &starter(2), Company::None).await.unwrap() {
        let suspected = ids(&rows).iter().filter(|id| id.starts_with('0')).count();
        assert!(suspected == 0 || rows.len() == 1, "{:?}", ids(&rows));
        let outcomes: Vec<_> = rows.iter().map(|row| (row.dedup, Resumed::Applied)).collect();
        store.resume(&mut tx, &key, &outcomes).await.unwrap();
        store.commit(tx).await.unwrap();
        taken += rows.len();
    }
    assert_eq!(taken, 5);
    let sql = show_sql(&handstamp_stores::postgres::SchemaName::default());
    for table in
        ["TABLE \"handstamp\".parked", "UNLOGGED TABLE \"handstamp\".starts", "TABLE \"handstamp\".crashes"]
    {
        assert!(sql.contains(table), "{table}");
    }
}

/// With starts and a crash in it: what version 3 knows of them stays, and marks can be raised.
async fn from_3_to_this_version(database: TestDatabase) {
    version_3(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    client.batch_execute(VERSION_3_STARTS).await.unwrap();
    let (wallet, fingerprint) = (name("wallet"), Fingerprint("test".into()));
    let error = database.store().register(&wallet, &fingerprint, false).await.unwrap_err();
    assert!(error.to_string().contains("version 3") && error.to_string().contains("migrate"), "{error}");
    let admin = database.admin().await;
    let migrated = migrate_with(&admin, &MigrateOptions::default()).await.unwrap();
    assert_eq!((migrated.applied, migrated.version), ((4..=SCHEMA_VERSION).collect(), SCHEMA_VERSION));
    let error = database.store().rehearse(&wallet, &fingerprint).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let options = MigrateOptions { grant_to: vec![database.role.clone()], ..MigrateOptions::default() };
    assert_eq!(migrate_with(&admin, &options).await.unwrap().applied, [0; 0]);
    let store = database.store();
    assert!(store.rehearse(&wallet, &fingerprint).await.unwrap());
    let key = store.register(&wallet, &fingerprint, false).await.unwrap();
    let orphans = store.take_over(&key, &starter(9), &[lane("credits/0")]).await.unwrap().orphans;
    assert_eq!(orphans.len(), 1);
    let marks = BTreeMap::from([(VersionKey([1; 16]), Version::parse("5").unwrap())]);
    for before in [BTreeMap::new(), marks.clone()] {
        let (mut tx, _) = store.begin(&key, &[]).await.unwrap();
        assert_eq!(store.raise_marks(&mut tx, &key, &marks).await.unwrap(), before);
        store.commit(tx).await.unwrap();
    }
}

/// Version 3 accepts the schema of version 4 and must then work on it, beside marks that version 4 raised.
async fn what_version_3_runs_works_on_version_4(database: TestDatabase) {
    version_4(&database).await;
    let marks = "INSERT INTO handstamp.versions (consumer, key, version) VALUES (1, decode(repeat('01', 16), 'hex'), '\\x0102')";
    let taken = format!("{marks}; REVOKE ALL ON handstamp.versions FROM {}", database.role);
    database.admin().await.batch_execute(&taken).await.unwrap();
    // As a role without any right on what is new.
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    client.batch_execute(VERSION_3_STARTS).await.unwrap();
    client.batch_execute(&version_2_runs(1)).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM handstamp.starts").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.versions").await, 1);
    assert!(client.batch_execute("SELECT FROM handstamp.versions").await.is_err());
    let sql = show_sql(&handstamp_stores::postgres::SchemaName::default());
    assert!(sql.contains("TABLE \"handstamp\".versions"));
}

/// With ids in it that somebody of version 4 goes on claiming: they stay, are found by their time, and go when asked.
async fn from_4_to_this_version(database: TestDatabase) {
    version_4(&database).await;
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    let (wallet, fingerprint) = (name("wallet"), Fingerprint("test".into()));
    let error = database.store().register(&wallet, &fingerprint, false).await.unwrap_err();
    assert!(error.to_string().contains("version 4") && error.to_string().contains("migrate"), "{error}");
    let before = database.number("SELECT count(*) FROM handstamp.inbox").await;
    let admin = database.admin().await;
    let migrated = migrate_with(&admin, &MigrateOptions::default()).await.unwrap();
    assert_eq!((migrated.applied, migrated.version), ((5..=SCHEMA_VERSION).collect(), SCHEMA_VERSION));
    assert_eq!(database.number("SELECT count(*) FROM handstamp.inbox").await, before);
    // Who was let in by version 4 runs, and is told what it lacks when it is to delete.
    let store = database.store();
    let key = store.register(&wallet, &fingerprint, false).await.unwrap();
    admin.batch_execute("UPDATE handstamp.inbox SET seen_at = seen_at - 1000000").await.unwrap();
    let day = Duration::from_secs(86_400);
    let error = store.prune_ids(&key, day, 10, None).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::SchemaMismatch);
    assert!(error.to_string().contains("--grant-to"), "{error}");
    let options = MigrateOptions { grant_to: vec![database.role.clone()], ..MigrateOptions::default() };
    assert_eq!(migrate_with(&admin, &options).await.unwrap().applied, [0; 0]);
    let old = database.number("SELECT count(*) FROM handstamp.inbox WHERE state IN ('a', 'x')").await;
    let step = database.store().prune_ids(&key, day, 1000, None).await.unwrap();
    assert_eq!((i64::try_from(step.deleted).unwrap(), step.next), (old, None));
    assert!(old > 0 && old < before, "{old} of {before}");
}

/// Version 4 accepts the schema of version 5 and must then work on it, beside ids that version 5 forgot.
async fn what_version_4_runs_works_on_version_5(database: TestDatabase) {
    assert_eq!(SCHEMA_VERSION, 5, "the next version needs such a test of its own");
    version_4(&database).await;
    migrate_with(&database.admin().await, &MigrateOptions::default()).await.unwrap();
    let pruned = "INSERT INTO handstamp.pruned (consumer, horizon) VALUES (1, 0)";
    database.admin().await.batch_execute(pruned).await.unwrap();
    // As a role without any right on what is new.
    let client = connect(&database.url()).await;
    client.batch_execute(&version_2_runs(0)).await.unwrap();
    client.batch_execute(VERSION_3_STARTS).await.unwrap();
    client.batch_execute(VERSION_4_MARKS).await.unwrap();
    database.admin().await.batch_execute("DELETE FROM handstamp.inbox WHERE state = 'a'").await.unwrap();
    client.batch_execute(&version_2_runs(1)).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM handstamp.versions").await, 1);
    assert!(client.batch_execute("SELECT FROM handstamp.pruned").await.is_err());
    let sql = show_sql(&handstamp_stores::postgres::SchemaName::default());
    assert!(sql.contains("TABLE \"handstamp\".pruned"));
}

/// What version 4 writes of its own.
const VERSION_4_MARKS: &str = "
    INSERT INTO handstamp.versions AS v (consumer, key, version)
    VALUES (1, decode(repeat('01', 16), 'hex'), '\\x0102')
    ON CONFLICT (consumer, key) DO UPDATE SET previous = v.version, version = greatest(v.version, excluded.version)";

/// What version 3 writes of its own.
const VERSION_3_STARTS: &str = "
    INSERT INTO handstamp.starts (
        consumer, lane, owner, node, at_ms, first_position, last_position, count, alone, alone_dedup
    )
    VALUES (1, 'credits/0', decode(repeat('01', 16), 'hex'), 'host:1', floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
            0, 499, 500, NULL, NULL)
    ON CONFLICT (consumer, lane, owner) DO UPDATE SET at_ms = excluded.at_ms;
    INSERT INTO handstamp.parked_starts (consumer, dedup, owner, node, at_ms, alone)
    SELECT 1, dedup, decode(repeat('01', 16), 'hex'), 'host:1', floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, false FROM handstamp.parked;
    INSERT INTO handstamp.crashes (consumer, dedup, owner, node, at_ms)
    SELECT 1, dedup, decode(repeat('01', 16), 'hex'), 'host:1', floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 FROM handstamp.parked
    ON CONFLICT DO NOTHING";
