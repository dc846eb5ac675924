//! The examples do what they say: a second delivery changes nothing.

#![allow(clippy::unwrap_used, reason = "a panic is the failure report")]

use std::process::Command;

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn level0_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("wallet.db");
    let credit =
        |id: &str| run(env!("CARGO_BIN_EXE_level0_sqlite"), &[database.to_str().unwrap(), id, "100"]);
    assert_eq!(credit("evt-1"), "applied evt-1\nbalance 100\n");
    assert_eq!(credit("evt-2"), "applied evt-2\nbalance 200\n");
    assert_eq!(credit("evt-2"), "skipped duplicate evt-2\nbalance 200\n");
}

#[tokio::test]
async fn level0_on_postgres() {
    let database = handstamp_e2e::servers::Database::create().await;
    database.client.batch_execute("DROP TABLE accounts").await.unwrap();
    let credit = |id: &str| run(env!("CARGO_BIN_EXE_level0_postgres"), &[&database.url, id, "100"]);
    assert_eq!(credit("evt-1"), "applied evt-1\nbalance 100\n");
    assert_eq!(credit("evt-1"), "skipped duplicate evt-1\nbalance 100\n");
    database.drop_now().await;
}

#[test]
fn level1_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("in.jsonl");
    let lines = [
        r#"{"id":"evt-1","account_id":1,"amount":100}"#,
        r#"{"id":"evt-2","account_id":1,"amount":100}"#,
        r#"{"id":"evt-2","account_id":1,"amount":100}"#,
        r#"{"id":"evt-3","account_id":1,"amount":"much"}"#,
    ];
    std::fs::write(&file, lines.join("\n")).unwrap();
    let database = folder.path().join("wallet.db");
    let both = [file.to_str().unwrap(), database.to_str().unwrap()];
    let program = env!("CARGO_BIN_EXE_level1_file");
    assert_eq!(run(program, &both), "applied 2, duplicates 1, dead letters 1\n");
    assert_eq!(run(program, &both), "applied 0, duplicates 0, dead letters 0\n");
}

#[tokio::test]
async fn level1_on_kafka_and_postgres() {
    let database = handstamp_e2e::servers::Database::create().await;
    let topic = handstamp_e2e::servers::Topic::create(2).await;
    for id in ["evt-1", "evt-2", "evt-2"] {
        topic.send(id, "1", r#"{"account_id":1,"amount":100}"#);
    }
    topic.flush();
    let arguments = [topic.brokers.as_str(), &topic.name, &topic.group, &database.url];
    assert_eq!(run(env!("CARGO_BIN_EXE_level1_kafka"), &arguments), "applied 2, duplicates 1\n");
    let balance = database.client.query_one("SELECT balance FROM accounts WHERE id = 1", &[]).await.unwrap();
    assert_eq!(balance.get::<_, i64>(0), 200);
    topic.delete().await;
    database.drop_now().await;
}
