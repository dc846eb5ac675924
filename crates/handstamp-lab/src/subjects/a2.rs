//! Auto-commit, a hundred messages taken at a time and handled one by one: the offsets of all hundred are
//! stored when they are taken, so the timer commits messages that nobody has handled.

use super::db::{Db, apply};
use super::{Res, Setup, client};
use std::time::{Duration, Instant};

/// Most messages taken at a time.
const TAKEN: usize = 100;

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "true");
    config.set("auto.commit.interval.ms", "5000");
    config.set("enable.auto.offset.store", "true");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    loop {
        let until = Instant::now() + Duration::from_secs(1);
        let mut taken = Vec::with_capacity(TAKEN);
        while taken.len() < TAKEN {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if let Some(message) = client::poll(&consumer, left) {
                taken.push(client::credit(&message)?);
            }
        }
        for credit in &taken {
            setup.work();
            db.begin()?;
            apply(&mut db, credit)?;
            db.commit()?;
        }
    }
}
