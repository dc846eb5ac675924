//! The inbox by hand: the id and the effect commit in one transaction, the offset after it. A message that
//! comes again finds its row and is skipped; its offset is committed all the same.

use super::db::{Db, apply};
use super::{CONSUMER, Res, Said, Setup, client, say};
use std::time::Duration;

const CLAIM: &str =
    "INSERT INTO processed_messages (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "false");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        setup.work();
        db.begin()?;
        if db.execute(CLAIM, &[CONSUMER.into(), (&credit.id).into()])? == 1 {
            apply(&mut db, &credit)?;
        } else {
            say(&Said::DuplicateSkipped(credit.id.clone()));
        }
        db.commit()?;
        client::commit(&consumer, &message)?;
    }
}
