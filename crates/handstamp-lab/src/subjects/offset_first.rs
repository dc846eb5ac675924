//! Offset first, database second: at most once. What dies in between is never delivered again. The work lies
//! inside that window.

use super::db::{Db, apply};
use super::{Res, Setup, client};
use std::time::Duration;

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "false");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    let mut after_offset = client::Point::default();
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        client::commit(&consumer, &message)?;
        after_offset.pass(setup);
        setup.work();
        db.begin()?;
        apply(&mut db, &credit)?;
        db.commit()?;
    }
}
