//! Living owners that are taken for dead, in the moment between a start and its lock, and whoever takes them for dead.

use crate::starts::{CRASHES, PARKED_STARTS, dedup, keys, owners, starter};
use crate::support::{beside, number, open, park, registered, row};
use handstamp_core::{Company, StartStore, Starter, Store, StoreErrorKind};
use handstamp_stores::sqlite::SqliteStore;
use std::time::Duration;
use tempfile::TempDir;

/// Another process comes in between a start and its lock and counts its owner, or resumes a message of it, as
/// triggers do here.
#[tokio::test]
async fn a_living_owner_that_was_counted_objects_before_it_begins() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None), row("b", None)]).await;
    let eyes = beside(&folder);
    eyes.execute_batch(
        "CREATE TABLE often (left INTEGER NOT NULL); INSERT INTO often VALUES (0);
         CREATE TRIGGER counts AFTER INSERT ON handstamp_parked_starts WHEN (SELECT left FROM often) > 0 BEGIN
             UPDATE often SET left = left - 1;
             INSERT INTO handstamp_crashes (consumer, dedup, owner, node, at_ms)
             VALUES (NEW.consumer, NEW.dedup, NEW.owner, NEW.node, NEW.at_ms);
         END",
    )
    .unwrap();
    let by = starter("living/1");
    for often in [1, 2, 5] {
        eyes.execute("UPDATE often SET left = ?1", [often]).unwrap();
        let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
        assert_eq!(keys(&rows), ["a", "b"].map(dedup), "{often}");
        assert!(rows.iter().all(|row| row.crashes.is_empty()), "{often}: {rows:?}");
        // The handler fails, and that takes nothing back of what was objected.
        store.rollback(tx).await.unwrap();
        assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (2, 0), "{often}");
        eyes.execute("UPDATE often SET left = ?1", [often]).unwrap();
        let (tx, rows) = store.start_again(&consumer, &[dedup("b")], &by, Company::None).await.unwrap();
        store.rollback(tx).await.unwrap();
        assert_eq!((keys(&rows), number(&eyes, CRASHES)), (vec![dedup("b")], 0), "{often}");
    }
    // The same where a start is ended: nothing runs without one.
    eyes.execute_batch(
        "CREATE TRIGGER ends AFTER INSERT ON handstamp_parked_starts WHEN (SELECT left FROM often) < 0 BEGIN
             UPDATE often SET left = left + 1;
             DELETE FROM handstamp_parked_starts WHERE dedup = NEW.dedup;
         END;
         UPDATE often SET left = -3",
    )
    .unwrap();
    let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((rows.len(), number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (2, 2, 0));
    // Who is counted without an end leaves them to others.
    eyes.execute("UPDATE often SET left = 1000", []).unwrap();
    let error = store.start_due(&consumer, 10, &by, Company::None).await.map(drop).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Conflict, "{error}");
    eyes.execute("UPDATE often SET left = 0", []).unwrap();
    let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!((rows.len(), number(&eyes, CRASHES)), (2, 0));
}

/// Who finds a start that somebody else left has started nothing yet, and counts nobody who moves meanwhile.
#[tokio::test(start_paused = true)]
async fn who_moves_is_not_counted() {
    let folder = TempDir::new().unwrap();
    let (store, beside_it) = (open(&folder).await, open(&folder).await);
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    let (dead, living, next) = (starter("dead/1"), starter("living/2"), starter("next/3"));
    let eyes = beside(&folder);
    for by in [&dead, &living] {
        drop(store.start_due(&consumer, 1, by, Company::None).await.unwrap().unwrap());
    }
    let move_on = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let left = (number(&eyes, PARKED_STARTS), number(&eyes, CRASHES));
        let (tx, rows) =
            beside_it.start_again(&consumer, &[dedup("a")], &living, Company::None).await.unwrap();
        beside_it.rollback(tx).await.unwrap();
        beside_it.end_starts(&consumer, &living.owner, None).await.unwrap();
        (left, owners(&rows[0].crashes))
    };
    let (started, (left, of_living)) =
        tokio::join!(store.start_due(&consumer, 10, &next, Company::None), move_on);
    assert_eq!(left, (2, 1), "the next one has started nothing and counted nobody");
    assert_eq!(of_living, [dead.owner]);
    let (tx, rows) = started.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(owners(&rows[0].crashes), [dead.owner]);
    assert_eq!((number(&eyes, PARKED_STARTS), number(&eyes, CRASHES)), (2, 1));
}

/// Two that live find what a third left. One of them had tried the message before, and while it looks twice itself it
/// is not counted for that.
#[tokio::test(start_paused = true)]
async fn who_looks_twice_has_moved() {
    let folder = TempDir::new().unwrap();
    let (store, beside_it) = (open(&folder).await, open(&folder).await);
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None)]).await;
    let (dead, living, next) = (starter("dead/1"), starter("living/2"), starter("next/3"));
    drop(store.start_due(&consumer, 1, &living, Company::None).await.unwrap().unwrap());
    let left = "INSERT INTO handstamp_parked_starts SELECT consumer, dedup, ?1, 'dead/1', at_ms, alone
        FROM handstamp_parked_starts";
    beside(&folder).execute(left, [dead.owner.0]).unwrap();
    let run = async |store: &SqliteStore, by: &Starter| {
        let (tx, rows) = store.start_again(&consumer, &[dedup("a")], by, Company::None).await.unwrap();
        store.rollback(tx).await.unwrap();
        store.end_starts(&consumer, &by.owner, None).await.unwrap();
        owners(&rows[0].crashes)
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        run(&beside_it, &living).await
    };
    let counted = tokio::join!(run(&store, &next), later);
    assert_eq!(counted, (vec![dead.owner], vec![dead.owner]));
}

/// Between a start and its lock somebody else has tried the message, and it waits for the next attempt.
#[tokio::test]
async fn what_is_not_due_any_more_is_not_answered() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder).await;
    let consumer = registered(&store, "wallet").await;
    park(&store, &consumer, &[row("a", None), row("b", None)]).await;
    let eyes = beside(&folder);
    let later = |id_text: &str| {
        let key: String = dedup(id_text).iter().map(|byte| format!("{byte:02x}")).collect();
        eyes.execute_batch(&format!(
            "CREATE TRIGGER later_{id_text} AFTER INSERT ON handstamp_parked_starts BEGIN
                 UPDATE handstamp_parked SET due_at_ms = due_at_ms + 3600000 WHERE dedup = x'{key}';
             END"
        ))
        .unwrap();
    };
    let by = starter("first/1");
    later("a");
    let (tx, rows) = store.start_due(&consumer, 10, &by, Company::None).await.unwrap().unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(keys(&rows), [dedup("b")]);
    later("b");
    assert!(store.start_due(&consumer, 10, &by, Company::None).await.unwrap().is_none());
    // Taken again, due or not.
    let (tx, rows) =
        store.start_again(&consumer, &[dedup("a"), dedup("b")], &by, Company::None).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert_eq!(keys(&rows), ["a", "b"].map(dedup));
}
