//! Level 0 without rusqlite's types: what the guide prints, executed as it prints it; and tables of the user's own.

use crate::support::{beside, number, open};
use handstamp_core::{Claim, MessageId};
use handstamp_stores::own_table::OwnTable;
use handstamp_stores::sqlite::{self, ConsumerName};
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

/// The guide's block of SQL that mentions this.
fn guide(part: &str) -> String {
    let text = include_str!("../../../../docs/guides/level-0.md");
    let mut blocks = text.split("```sql\n").skip(1).map(|block| block.split("```").next().unwrap().trim());
    blocks.find(|sql| sql.contains(part)).unwrap().to_owned()
}

/// Whoever claims first, the other one is told so, for every kind of id.
#[tokio::test]
async fn the_statement_of_the_guide_means_the_same_id() {
    let folder = TempDir::new().unwrap();
    drop(open(&folder).await);
    let mut file = beside(&folder);
    for _ in 0..2 {
        file.execute_batch(&guide("INTO handstamp_consumers")).unwrap();
    }
    let consumer = ConsumerName::register(&file, "wallet").unwrap();
    let claim = guide("INTO handstamp_inbox");
    let by_statement = |file: &Connection, id: &str| file.execute(&claim, ["wallet", id]).unwrap() == 1;
    let long = "x".repeat(1024);
    let ids = [
        "a",
        "fifteen-bytes-1",
        "sixteen-bytes-12",
        "0193f5a0-7c3e-7b1a-8000-0123456789ab",
        "0193F5A0-7C3E-7B1A-8000-0123456789AB",
        "0193f5a0-7c3e-7b1a-8000-0123456789ab\n",
        "0193f5a07c3e7b1a80000123456789ab",
        "g193f5a0-7c3e-7b1a-8000-0123456789ab",
        "0193f5a0--c3e-7b1a-8000-0123456789ab",
        "0-93f5a0-7c3e-7b1a-8000-0123456789ab",
        "Zählung-\u{1F4B6}-größer",
        "1e3",
        "007",
        &long,
    ];
    for (at, text) in ids.into_iter().enumerate() {
        let by_statement_first = at % 2 == 0;
        for first in [true, false] {
            if by_statement_first == first {
                assert_eq!(by_statement(&file, text), first, "{text:?}");
                continue;
            }
            let mut tx = file.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let answer = sqlite::claim(&mut tx, &consumer, &MessageId::try_from(text).unwrap()).unwrap();
            assert_eq!(answer == Claim::First, first, "{text:?}: {answer:?}");
            tx.commit().unwrap();
        }
    }
    let rows = i64::try_from(ids.len()).unwrap();
    assert_eq!(number(&file, "SELECT count(*) FROM handstamp_inbox"), rows);
    assert_eq!(file.execute(&claim, ["stock", "a"]).unwrap(), 0, "not registered");
}

#[test]
fn an_own_table_remembers_too() {
    let mut file = Connection::open_in_memory().unwrap();
    file.execute_batch(
        "CREATE TABLE processed_messages (consumer TEXT, message_id TEXT, PRIMARY KEY (consumer, message_id));
         CREATE TABLE without_key (id TEXT)",
    )
    .unwrap();
    let table = OwnTable::new("processed_messages", "message_id").unwrap();
    for name in ["wallet", "stock"] {
        let table = table.clone().of_consumer("consumer", name).unwrap();
        for (commits, first) in [(false, true), (true, true), (true, false)] {
            let mut tx = file.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            assert_eq!(sqlite::claim_own(&mut tx, &table, "m").unwrap(), first);
            if commits {
                tx.commit().unwrap();
            }
        }
    }
    let mut tx = file.transaction().unwrap();
    assert!(sqlite::claim_own(&mut tx, &OwnTable::new("without_key", "id").unwrap(), "m").is_err());
}
