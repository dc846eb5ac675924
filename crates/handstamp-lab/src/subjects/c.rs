//! The inbox by hand: the id and the effect commit in one transaction, the offset after it. A message that
//! comes again finds its row and is skipped; its offset is committed all the same.

use super::db::{Db, apply};
use super::{CONSUMER, Res, Said, Setup, client, say, stall};
use std::time::{Duration, Instant};

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
        let asked = Instant::now();
        let claimed = db.execute(CLAIM, &[CONSUMER.into(), (&credit.id).into()])? == 1;
        say_if_held_up(asked);
        if claimed {
            stall::pass(setup, &credit.id)?;
            apply(&mut db, &credit)?;
        } else {
            say(&Said::DuplicateSkipped(credit.id.clone()));
        }
        db.commit()?;
        client::commit(&consumer, &message)?;
    }
}

/// The claim waits while another's transaction holds the same id: until that commits or rolls back, nobody
/// can know.
fn say_if_held_up(asked: Instant) {
    let waited = asked.elapsed();
    if waited > Duration::from_millis(250) {
        say(&Said::HeldUp(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX)));
    }
}
