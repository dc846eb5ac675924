//! Auto-commit as the client library has it by default: every five seconds it commits what it handed over,
//! finished or not. One message a poll, so that only the message in hand is stored too early.

use super::db::{Db, apply};
use super::{Res, Setup, client};
use std::time::Duration;

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "true");
    config.set("auto.commit.interval.ms", "5000");
    config.set("enable.auto.offset.store", "true");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        setup.work();
        db.begin()?;
        apply(&mut db, &credit)?;
        db.commit()?;
    }
}
