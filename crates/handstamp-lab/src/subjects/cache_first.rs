//! The id is marked in a cache outside the database, then the effect is applied: what dies in between is
//! taken for a duplicate when it comes again. The cache is a file beside the database that survives the
//! process, as a cache server would. The work lies inside the window.

use super::db::{Db, apply};
use super::{Res, Said, Setup, client, say};
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

pub(super) fn run(setup: &Setup) -> Res<()> {
    let mut config = client::config(setup);
    config.set("enable.auto.commit", "false");
    let consumer = client::subscribe(&config, setup)?;
    let mut db = Db::connect(&setup.database)?;
    let path = setup.folder.join(format!("{}.cache", setup.topic));
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let mut cache: HashSet<String> = known.lines().map(str::to_owned).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    let mut after_mark = client::Point::default();
    loop {
        let Some(message) = client::poll(&consumer, Duration::from_secs(1)) else { continue };
        let credit = client::credit(&message)?;
        if cache.insert(credit.id.clone()) {
            writeln!(file, "{}", credit.id)?;
            after_mark.pass(setup);
            setup.work();
            db.begin()?;
            apply(&mut db, &credit)?;
            db.commit()?;
        } else {
            say(&Said::DuplicateSkipped(credit.id.clone()));
        }
        client::commit(&consumer, &message)?;
    }
}
