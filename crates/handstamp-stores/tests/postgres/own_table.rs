//! Level 0 on a table of the user's own.

use crate::harness::{TestDatabase, on_each_server};
use handstamp_core::StoreErrorKind;
use handstamp_stores::own_table::{IdColumn, OwnTable};
use handstamp_stores::postgres::claim_own;

on_each_server!(an_own_table_remembers_too, a_table_without_a_key_is_refused);

const ID: &str = "0193f5a0-7c3e-7b1a-8000-0123456789ab";

async fn an_own_table_remembers_too(database: TestDatabase) {
    let tables = format!(
        "CREATE TABLE processed_messages (
             consumer text NOT NULL, message_id text NOT NULL, processed_at timestamptz NOT NULL DEFAULT now(),
             PRIMARY KEY (consumer, message_id)
         );
         CREATE TABLE \"Seen\" (id uuid PRIMARY KEY);
         GRANT SELECT, INSERT ON processed_messages, \"Seen\" TO {}",
        database.role
    );
    database.admin().await.batch_execute(&tables).await.unwrap();
    let shared = OwnTable::new("public.processed_messages", "message_id").unwrap();
    let mut client = database.client().await;
    for table in [
        shared.clone().of_consumer("consumer", "wallet-credits").unwrap(),
        shared.of_consumer("consumer", "it's another").unwrap(),
        OwnTable::new("Seen", "id").unwrap().with_column(IdColumn::Uuid),
    ] {
        for (commits, first) in [(false, true), (true, true), (true, false)] {
            let tx = client.transaction().await.unwrap();
            assert_eq!(claim_own(&tx, &table, ID).await.unwrap(), first, "{table:?}");
            match commits {
                true => tx.commit().await.unwrap(),
                false => tx.rollback().await.unwrap(),
            }
        }
    }
    assert_eq!(database.number("SELECT count(*) FROM processed_messages").await, 2);
    let uuids = OwnTable::new("Seen", "id").unwrap().with_column(IdColumn::Uuid);
    let tx = client.transaction().await.unwrap();
    assert_eq!(claim_own(&tx, &uuids, "order-17").await.unwrap_err().kind, StoreErrorKind::Statement);
}

async fn a_table_without_a_key_is_refused(database: TestDatabase) {
    let tables = format!("CREATE TABLE seen (id text); GRANT SELECT, INSERT ON seen TO {}", database.role);
    database.admin().await.batch_execute(&tables).await.unwrap();
    let mut client = database.client().await;
    for table in ["seen", "nowhere"] {
        let tx = client.transaction().await.unwrap();
        let error = claim_own(&tx, &OwnTable::new(table, "id").unwrap(), ID).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::SchemaMismatch, "{error}");
    }
}
