//! Look up, act, mark, in three transactions: what dies between act and mark was applied and is not known.

use super::db::{Db, apply};
use super::{CONSUMER, Res, Said, Setup, client, say};
use std::time::Duration;

const LOOK_UP: &str = "SELECT 1 FROM processed_messages WHERE consumer = $1 AND message_id = $2";
const MARK: &str =
    "INSERT INTO processed_messages (consumer, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "false");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    let mut before_mark = client::Point::default();
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        setup.work();
        let key = [CONSUMER.into(), (&credit.id).into()];
        if db.exists(LOOK_UP, &key)? {
            say(&Said::DuplicateSkipped(credit.id.clone()));
        } else {
            db.begin()?;
            apply(&mut db, &credit)?;
            db.commit()?;
            before_mark.pass(setup);
            db.execute(MARK, &key)?;
        }
        client::commit(&consumer, &message)?;
    }
}
