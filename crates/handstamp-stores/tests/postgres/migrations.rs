//! Migrations: from many processes at once, with the user's own file, and by a role without rights.

use crate::harness::{Server, TestDatabase, connect, name, on_each_server, request};
use crate::parked::park;
use crate::starts::{alone, lane, starter};
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_core::{Claim, Company, ConsumerKey, Fingerprint, Lost, StartStore, Store, StoreErrorKind};
use handstamp_stores::postgres::{
    MigrateOptions, PostgresStore, SCHEMA_VERSION, SchemaName, Setup, migrate, migrate_with, show_sql,
};

on_each_server!(
    migrating_again_does_nothing,
    a_setup_file_runs_once_and_is_never_changed,
    a_failing_setup_leaves_nothing,
    a_changed_migration_is_refused,
    grants_cover_everything_that_running_needs,
);

#[tokio::test]
async fn many_processes_migrate_at_once_on_15() {
    many_processes_migrate_at_once(Server::V15).await;
}

#[tokio::test]
async fn many_processes_migrate_at_once_on_18() {
    many_processes_migrate_at_once(Server::V18).await;
}

async fn many_processes_migrate_at_once(server: Server) {
    let database = TestDatabase::empty(server).await;
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let client = database.admin().await;
        tasks.push(tokio::spawn(async move { migrate(&client).await.unwrap() }));
    }
    let mut applied = 0;
    for task in tasks {
        let migrated = task.await.unwrap();
        assert_eq!(migrated.version, SCHEMA_VERSION);
        applied += migrated.applied.len();
    }
    assert_eq!(i32::try_from(applied).unwrap(), SCHEMA_VERSION, "each migration once");
}

#[tokio::test]
async fn the_printed_sql_is_what_migrate_runs() {
    let (by_hand, by_program) =
        (TestDatabase::empty(Server::V18).await, TestDatabase::new(Server::V18).await);
    let admin = by_hand.admin().await;
    admin.batch_execute(&show_sql(&SchemaName::default())).await.unwrap();
    let shape = "SELECT string_agg(format('%s %s %s %s', c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod)), ',' ORDER BY c.relname, a.attnum)
         FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid WHERE c.relnamespace = 'handstamp'::regnamespace";
    let hand: String = admin.query_one(shape, &[]).await.unwrap().get(0);
    let program: String = by_program.admin().await.query_one(shape, &[]).await.unwrap().get(0);
    assert_eq!(hand, program);
    assert_eq!(migrate(&admin).await.unwrap().applied, [0; 0], "nothing is left to do");
}

async fn migrating_again_does_nothing(database: TestDatabase) {
    // The role that runs has no right to create and needs none to find that all is done.
    let client = database.client().await;
    assert_eq!(migrate(&client).await.unwrap().applied, [0; 0]);
}

fn setup(text: &str) -> MigrateOptions {
    let setup = Setup { name: "schema.sql".into(), sql: text.into() };
    MigrateOptions { setup: Some(setup), ..MigrateOptions::default() }
}

async fn a_setup_file_runs_once_and_is_never_changed(database: TestDatabase) {
    let admin = database.admin().await;
    let text = "CREATE TABLE once (n int); INSERT INTO once VALUES (1);";
    assert!(migrate_with(&admin, &setup(text)).await.unwrap().setup_run);
    assert!(!migrate_with(&admin, &setup(text)).await.unwrap().setup_run);
    let error = migrate_with(&admin, &setup("CREATE TABLE other ()")).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Config);
    assert!(error.to_string().contains("schema.sql"), "{error}");
    assert_eq!(database.number("SELECT count(*) FROM once").await, 1);
    // The same text under another name is the same file.
    let mut moved = setup(text);
    moved.setup.as_mut().unwrap().name = "moved.sql".into();
    assert!(!migrate_with(&admin, &moved).await.unwrap().setup_run);
}

async fn a_failing_setup_leaves_nothing(database: TestDatabase) {
    let admin = database.admin().await;
    for text in ["CREATE TABLE half (n int); SELECT nothing", "CREATE TABLE half (n int); ROLLBACK; BEGIN"] {
        let error = migrate_with(&admin, &setup(text)).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Config, "{error}");
        assert!(error.to_string().contains("schema.sql"), "{error}");
    }
    assert_eq!(database.number("SELECT count(*) FROM pg_class WHERE relname = 'half'").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM handstamp.setups").await, 0);
}

async fn a_changed_migration_is_refused(database: TestDatabase) {
    let admin = database.admin().await;
    admin.batch_execute("UPDATE handstamp.migrations SET checksum = 'x'").await.unwrap();
    let error = migrate(&admin).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Config);
    admin.batch_execute("DELETE FROM handstamp.migrations; INSERT INTO handstamp.migrations SELECT n, 'x' FROM generate_series(2, 9) AS n").await.unwrap();
    assert!(migrate(&admin).await.is_err());
}

async fn grants_cover_everything_that_running_needs(database: TestDatabase) {
    let admin = database.admin().await;
    let role = format!("{} \"odd\"", database.role);
    admin.batch_execute(&format!("CREATE ROLE \"{}\" LOGIN", role.replace('"', "\"\""))).await.unwrap();
    let text = "CREATE SCHEMA bank; CREATE TABLE bank.accounts (id int GENERATED ALWAYS AS IDENTITY, balance int); CREATE VIEW sums AS SELECT sum(balance) FROM bank.accounts";
    migrate_with(&admin, &setup(text)).await.unwrap();
    let options = MigrateOptions { grant_to: vec![role.clone()], ..MigrateOptions::default() };
    migrate_with(&admin, &options).await.unwrap();
    let url = database.url().replace(
        &format!("//{}@", database.role),
        &format!("//{}@", role.replace(' ', "%20").replace('"', "%22")),
    );
    let client = connect(&url).await;
    client.batch_execute("INSERT INTO bank.accounts (balance) VALUES (1); UPDATE bank.accounts SET balance = 2; SELECT * FROM sums").await.unwrap();
    assert!(client.batch_execute("DROP TABLE bank.accounts").await.is_err());
    let store =
        PostgresStore::new(handstamp_stores::postgres::PostgresOptions::parse(&url).unwrap()).unwrap();
    let key = store.register(&name("c"), &Fingerprint("f".into()), false).await.unwrap();
    let (tx, claims) = store.begin(&key, &[request("m", None)]).await.unwrap();
    assert_eq!(claims, [Claim::First]);
    store.commit(tx).await.unwrap();
    start_everything(&store, &key).await;
    drop((client, store));
    admin
        .batch_execute(&format!("DROP OWNED BY \"{0}\"; DROP ROLE \"{0}\"", role.replace('"', "\"\"")))
        .await
        .unwrap();
    let error = migrate_with(
        &admin,
        &MigrateOptions { grant_to: vec!["nobody_there".into()], ..MigrateOptions::default() },
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("nobody_there"), "{error}");
}

/// Every call that has to do with start records, with rows behind each.
async fn start_everything(store: &PostgresStore, key: &ConsumerKey) {
    let (dies, lives) = (starter(1), starter(2));
    for start in [alone(1, "l", "x"), alone(1, "l", "y")] {
        let (tx, _) = store.start_and_begin(key, &[], &start).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    let seen = store.take_over(key, &lives, &[lane("l")]).await.unwrap();
    assert_eq!((seen.orphans.len(), seen.crashes.len()), (1, 1));
    park(store, key, &["p", "q"], None).await;
    for by in [&dies, &dies, &lives] {
        let (mut tx, rows) = store.start_due(key, 1, by, Company::None).await.unwrap().unwrap();
        if by == &lives {
            assert_eq!(rows[0].crashes.len(), 1);
            store.resume(&mut tx, key, &[(rows[0].dedup, Resumed::Applied)]).await.unwrap();
        }
        store.commit(tx).await.unwrap();
    }
    let (tx, rows) = store.start_due(key, 1, &dies, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    let (tx, again) = store.start_again(key, &[rows[0].dedup], &lives, Company::None).await.unwrap();
    assert_eq!(again[0].crashes.len(), 1);
    store.rollback(tx).await.unwrap();
    store.end_starts(key, &lives.owner, Some(&[lane("l")])).await.unwrap();
    store.forget(key, &[(lane("l"), dies.owner)]).await.unwrap();
    let (mut tx, _) = store.begin(key, &[]).await.unwrap();
    store.absolve(&mut tx, key, &[seen.crashes[0].dedup]).await.unwrap();
    store.commit(tx).await.unwrap();
    store.withdraw(key, &dies.owner, Lost::Everything).await.unwrap();
    store.end_starts(key, &lives.owner, None).await.unwrap();
    assert_eq!(store.take_over(key, &lives, &[lane("l")]).await.unwrap().orphans, []);
}
