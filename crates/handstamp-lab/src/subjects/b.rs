//! Database first, offset second, and no inbox: what dies between the two commits comes again and is
//! applied again.

use super::db::{Db, apply};
use super::{Res, Setup, client, stall};
use std::time::Duration;

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "false");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    let mut after_commit = client::Point::default();
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        setup.work();
        stall::pass(setup, &credit.id)?;
        db.begin()?;
        apply(&mut db, &credit)?;
        db.commit()?;
        after_commit.pass(setup);
        client::commit(&consumer, &message)?;
    }
}
