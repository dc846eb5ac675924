//! How SQLite finds the rows of our statements: by an index, however many there are.

use crate::support::{attempt, beside, number, open, park, registered, row};
use handstamp_core::Store;
use handstamp_core::parked::{ParkingStore, Resumed};
use handstamp_stores::sqlite;
use rusqlite::{Connection, StatementStatus};
use std::path::Path;
use tempfile::TempDir;

/// Every statement of the folder, with its file's name.
fn statements() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sqlite/sql");
    let mut all: Vec<(String, String)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    all.sort();
    all
}

fn sql(name: &str) -> String {
    statements().into_iter().find(|(file, _)| file == name).unwrap().1
}

/// The lines of a plan.
fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let mut rows = plan.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get(3).unwrap());
    }
    lines
}

#[test]
fn no_statement_reads_a_whole_table() {
    let connection = Connection::open_in_memory().unwrap();
    sqlite::migrate(&connection).unwrap();
    let all = statements();
    assert!(all.len() > 45, "{}", all.len());
    for (name, sql) in all {
        let lines = plan(&connection, &sql);
        let whole = |line: &&String| {
            let says = line.starts_with("SCAN ");
            // Subqueries of one row, and the few consumers of a file, which have no condition.
            says && !line.contains("CONSTANT ROW")
                && !line.contains("(subquery")
                && name != "consumer_insert.sql"
        };
        assert_eq!(lines.iter().find(whole), None, "{name}: {lines:#?}");
    }
    uses_its_indexes(&connection);
}

/// The indexes that the statements name are those that SQLite takes.
fn uses_its_indexes(connection: &Connection) {
    for (name, index) in [
        ("parked_due.sql", "handstamp_parked_by_due (consumer=? AND due_at_ms<?)"),
        ("parked_take.sql", "handstamp_parked_by_due (consumer=? AND due_at_ms<?)"),
        ("parked_keys.sql", "handstamp_parked_by_order (consumer=? AND order_key=?)"),
        ("parked_insert.sql", "handstamp_parked_by_order (consumer=? AND order_key=?)"),
        ("redrive_move.sql", "handstamp_parked_by_order (consumer=? AND order_key=?)"),
        ("parked_status.sql", "COVERING INDEX handstamp_parked_by_seq (consumer=?)"),
        ("parked_page.sql", "handstamp_parked_by_seq (consumer=? AND rowid>?)"),
        ("parked_page.sql", "handstamp_parked_by_order (consumer=? AND order_key=? AND seq<?)"),
        ("dead_letters_count.sql", "COVERING INDEX handstamp_dead_letters_by_time (consumer=?)"),
        ("attempts_keep.sql", "handstamp_attempts_by_message (consumer=? AND dedup=?)"),
        ("attempts.sql", "handstamp_attempts_by_message (consumer=? AND dedup=?)"),
        ("audit.sql", "handstamp_audit_by_message (consumer=? AND dedup=? AND number<?)"),
        ("audit_all.sql", "handstamp_audit_by_number (consumer=? AND rowid<?)"),
        ("dead_letter_page.sql", "handstamp_dead_letters_by_time (consumer=? AND"),
        ("start_end.sql", "handstamp_starts USING PRIMARY KEY (consumer=? AND lane=? AND owner=?)"),
        ("start_end_all.sql", "handstamp_starts USING PRIMARY KEY (consumer=?)"),
        ("start_known.sql", "handstamp_starts USING PRIMARY KEY (consumer=? AND lane=?)"),
        ("start_known.sql", "i USING PRIMARY KEY (id=? AND consumer=?)"),
        ("start_crashed.sql", "s USING PRIMARY KEY (consumer=? AND lane=? AND owner=?)"),
        ("start_counted.sql", "c USING PRIMARY KEY (consumer=? AND dedup=? AND owner=?)"),
        ("crashes_known.sql", "handstamp_crashes USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("start_take_over.sql", "s USING PRIMARY KEY (consumer=? AND lane=?)"),
        ("start_look.sql", "handstamp_parked_by_due (consumer=? AND due_at_ms<?)"),
        ("start_look.sql", "s USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("start_parked.sql", "(consumer=? AND dedup=?)"),
        ("start_parked_crashed.sql", "s USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("start_parked_others.sql", "s USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("start_parked_any.sql", "COVERING INDEX handstamp_parked_starts_by_owner (consumer=?)"),
        ("crashes_any.sql", "(consumer=?)"),
        ("start_parked_own.sql", "COVERING INDEX handstamp_parked_starts_by_owner (consumer=? AND owner=?)"),
        ("start_parked_end_all.sql", "handstamp_parked_starts_by_owner (consumer=? AND owner=?)"),
        ("resume_started.sql", "handstamp_parked_starts USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("crashes.sql", "c USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("crashes_forget.sql", "handstamp_crashes USING PRIMARY KEY (consumer=? AND dedup=?)"),
        ("crashes_withdraw.sql", "handstamp_crashes_by_owner (consumer=? AND owner=?)"),
    ] {
        let lines = plan(connection, &sql(name));
        assert!(lines.iter().any(|line| line.contains(index)), "{name}: {lines:#?}");
    }
    for sorted in [
        "parked_take.sql",
        "parked_page.sql",
        "parked_status.sql",
        "start_look.sql",
        "attempts.sql",
        "audit.sql",
        "audit_all.sql",
    ] {
        let lines = plan(connection, &sql(sorted));
        assert!(!lines.iter().any(|line| line.contains("TEMP B-TREE")), "{sorted}: {lines:#?}");
    }
}

/// Steps of SQLite's machine, which say how many rows were looked at, whatever this machine is doing.
fn steps(connection: &Connection, sql: &str, values: &[i64]) -> i32 {
    let mut statement = connection.prepare(sql).unwrap();
    for (at, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(at + 1, value).unwrap();
    }
    let mut rows = statement.raw_query();
    while rows.next().unwrap().is_some() {}
    drop(rows);
    statement.get_status(StatementStatus::VmStep)
}

/// A hundred thousand rows are due by their own times; half of them wait behind one that is not.
#[tokio::test]
async fn what_is_due_is_found_past_what_waits_behind_one_key() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("first", Some(1))]).await;
    let eyes = beside(&folder);
    let columns =
        "consumer, due_at_ms, parked_at_ms, order_key, behind, failed_at_ms, received_at_ms, attempts,
        class, reason, id, digest, topic, partition, position, headers";
    eyes.execute_batch(&format!(
        "INSERT INTO handstamp_parked (dedup, {columns})
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
         SELECT CAST(printf('%016d', n.i) AS BLOB), p.consumer, p.due_at_ms - 200000 + n.i, p.parked_at_ms,
                iif(n.i <= 50000, p.order_key, NULL), n.i <= 50000,
                p.failed_at_ms, p.received_at_ms, 0, p.class, p.reason, CAST(n.i AS BLOB), p.digest, p.topic,
                p.partition, p.position, p.headers
         FROM n, handstamp_parked AS p WHERE p.seq = 1;"
    ))
    .unwrap();
    // The first of the key fails and waits.
    let (mut tx, rows) = store.take_again(&consumer, &[row("first", None).letter.dedup()]).await.unwrap();
    let wait = std::time::Duration::from_secs(3600);
    let again = Resumed::Again { wait, failed: attempt(1) };
    store.resume(&mut tx, &consumer, &[(rows[0].dedup, again)]).await.unwrap();
    store.commit(tx).await.unwrap();
    let (tx, rows) = store.take_due(&consumer, 10).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|row| row.order_key.is_none()));
    let number_of = i64::from(consumer.id);
    let costs = [
        ("parked_due.sql", vec![number_of], 60),
        ("parked_take.sql", vec![number_of, 10], 600),
        ("start_look.sql", vec![number_of, 10, 0], 600),
        // Some steps a row for the count, and no row is read for it.
        ("parked_status.sql", vec![number_of], 400_000),
    ];
    // Statistics change what SQLite thinks of an index: none, those of many rows, and such that are all wrong.
    let wrong = "UPDATE sqlite_stat1 SET stat = '10000000 10000000 1'";
    for statistics in ["SELECT 1", "ANALYZE", wrong] {
        eyes.execute_batch(statistics).unwrap();
        // A new connection reads them.
        let eyes = beside(&folder);
        for (name, values, most) in &costs {
            let seen = steps(&eyes, &sql(name), values);
            assert!(seen < *most, "{name}, {statistics}: {seen} steps");
        }
        uses_its_indexes(&eyes);
    }
    let status = store.parked_status(&consumer).await.unwrap();
    assert_eq!((status.count, status.due_in), (100_001, Some(std::time::Duration::ZERO)));
    // Without the others nothing is due for an hour, and only the first of the key can be.
    eyes.execute("DELETE FROM handstamp_parked WHERE order_key IS NULL", []).unwrap();
    assert!(store.take_due(&consumer, 10).await.unwrap().is_none());
    let due_in = store.parked_status(&consumer).await.unwrap().due_in.unwrap();
    assert!(due_in > wait / 2 && due_in <= wait, "{due_in:?}");
    assert_eq!(number(&eyes, "SELECT count(*) FROM handstamp_parked WHERE NOT behind"), 1);
}
