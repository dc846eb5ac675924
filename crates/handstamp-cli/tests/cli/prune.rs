//! Forgetting: what is refused with its numbers, what goes and what stays, beside a run and by a command.

use crate::common::Place;
use crate::wallet::{number, write};
use std::time::{Duration, SystemTime};

/// The wallet on a file and SQLite, with this retention.
fn wallet(retention: &str) -> Place {
    let place = Place::wallet();
    let toml = place.read("file.toml");
    place.write("file.toml", &format!("{toml}\n{retention}\n"));
    place.run(&["run", "file.toml"]).exits(0);
    place
}

/// Makes everything that is remembered forty days older.
fn forty_days_later(place: &Place) {
    write(place, "UPDATE handstamp_inbox SET seen_at = seen_at - 3456000");
    write(place, "UPDATE handstamp_attempts SET at_ms = at_ms - 3456000000");
    the_position_is_old(place);
}

#[test]
fn without_a_retention_nothing_is_forgotten_and_check_says_so() {
    let place = wallet("");
    let refused = place.quiet(&["prune", "file.toml", "--json"]).exits(2);
    assert!(refused.json()["error"].as_str().unwrap().contains("[retention] is missing"), "{refused:?}");
    assert_eq!(refused.json()["deleted_ids"], 0);
    let check = place.run(&["check", "file.toml"]).exits(0).stdout;
    assert_eq!(check.matches("retention: none").count(), 1, "{check}");
}

#[test]
fn a_file_has_no_known_window_unless_somebody_answers_for_one() {
    let place = wallet("[retention]\nkeep = \"30d\"");
    for dry_run in [&[][..], &["--dry-run"]] {
        let refused = place.quiet(&[&["prune", "file.toml", "--json"], dry_run].concat()).exits(5).json();
        assert!(refused["error"].as_str().unwrap().contains("nobody knows for how long"), "{refused}");
        assert!(refused["hints"][0].as_str().unwrap().contains("accept_window"), "{refused}");
        assert_eq!(refused["windows"][0]["retention_seconds"], serde_json::Value::Null);
        assert_eq!(refused["keep_seconds"], 30 * 86_400);
    }
    let check = place.run(&["check", "file.toml"]).exits(5).stdout;
    assert!(check.contains("retention: nothing will be deleted"), "{check}");
    let short = wallet("[retention]\nkeep = \"20d\"\naccept_window = \"30d\"");
    let refused = short.quiet(&["prune", "file.toml"]).exits(5);
    assert!(refused.stderr.contains("after 20d") && refused.stderr.contains("for 30d"), "{}", refused.stderr);
}

#[test]
fn what_is_applied_goes_and_what_is_dead_stays() {
    let place = wallet("[retention]\nkeep = \"30d\"\naccept_window = \"30d\"");
    let state = |state: &str| {
        number(&place, &format!("SELECT count(*) FROM handstamp_inbox WHERE state = '{state}'"))
    };
    let (applied, dead) = (state("a"), state("d"));
    assert!(applied == 13 && dead > 0, "{applied} {dead}");
    let nothing = place.quiet(&["prune", "file.toml", "--json"]).exits(0).json();
    assert_eq!(
        (&nothing["deleted_ids"], &nothing["forgotten_before"]),
        (&0.into(), &serde_json::Value::Null)
    );
    forty_days_later(&place);
    let would = place.quiet(&["prune", "file.toml", "--json", "--dry-run"]).exits(0).json();
    assert_eq!((&would["would_delete"], &would["deleted_ids"]), (&13.into(), &0.into()));
    assert_eq!(state("a"), 13);
    let text = place.quiet(&["prune", "file.toml"]).exits(0).stdout;
    assert!(text.contains("forgot 13 ids") && text.contains("needed: 30d"), "{text}");
    assert_eq!((state("a"), state("d")), (0, dead));
    let again = place.quiet(&["prune", "file.toml", "--json"]).exits(0).json();
    assert_eq!(again["deleted_ids"], 0);
    assert!(again["forgotten_before"].as_str().unwrap().starts_with("20"), "{again}");
}

/// Whoever answers for a window says that what was read so long ago is not read again.
#[test]
fn an_old_position_is_believed_though_the_ids_behind_it_are_forgotten() {
    let place = wallet("[retention]\nkeep = \"30d\"\naccept_window = \"30d\"");
    let balance = number(&place, "SELECT sum(balance) FROM accounts");
    forty_days_later(&place);
    place.quiet(&["prune", "file.toml"]).exits(0);
    let again = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(again.counts(["received"]), [0], "{}", again.stderr);
    assert_eq!(number(&place, "SELECT sum(balance) FROM accounts"), balance);
    // Of an empty database nothing was forgotten: everything is read.
    for name in ["wallet.db", "wallet.db-wal", "wallet.db-shm"] {
        let _ = std::fs::remove_file(place.path(name));
    }
    the_position_is_old(&place);
    let anew = place.run(&["run", "file.toml", "--json"]).exits(0);
    assert_eq!(anew.counts(["received", "applied"]), [32, 13]);
}

fn the_position_is_old(place: &Place) {
    for entry in std::fs::read_dir(place.path("")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "position") {
            let then = SystemTime::now() - Duration::from_secs(40 * 86_400);
            std::fs::File::options().write(true).open(path).unwrap().set_modified(then).unwrap();
        }
    }
}

#[test]
fn mistakes_in_the_section_are_named() {
    for (retention, part) in [
        ("[retention]", "retention.keep: is missing"),
        ("[retention]\nkeep = \"0s\"", "retention.keep: at least"),
        ("[retention]\nkeep = \"14d\"\naccept = \"1d\"", "retention.accept"),
    ] {
        let place = Place::wallet();
        let toml = place.read("file.toml");
        place.write("file.toml", &format!("{toml}\n{retention}\n"));
        let said = place.quiet(&["check", "file.toml"]).exits(2).stderr;
        assert!(said.contains(part), "{retention}: {said}");
    }
}

#[cfg(all(feature = "kafka", feature = "postgres"))]
mod servers {
    use super::Place;
    use crate::common::wait_for;
    use crate::kafka_postgres::{psql, unique, url, variable};

    struct Servers {
        place: Place,
        database: String,
    }

    impl Servers {
        fn new(keep: &str) -> Self {
            let database = unique();
            psql("", &format!("CREATE DATABASE {database}"));
            let place = Place::wallet()
                .env("DATABASE_URL", &url(&database, None))
                .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
                .env("KAFKA_TOPIC", &database);
            let toml =
                place.read("kafka.toml").replace("group = \"wallet\"", &format!("group = \"{database}\""));
            place.write("kafka.toml", &format!("{toml}\n[retention]\nkeep = \"{keep}\"\n"));
            let publish = [
                "publish",
                "kafka.toml",
                "--sample",
                "credits",
                "--create-topic",
                "--count",
                "60",
                "--partitions",
                "1",
            ];
            place.run(&publish).exits(0);
            place.run(&["run", "kafka.toml", "--migrate", "--until-idle", "1s"]).exits(0);
            Self { place, database }
        }

        fn ids(&self) -> i64 {
            psql(&self.database, "SELECT count(*) FROM handstamp.inbox").parse().unwrap()
        }

        fn later(&self) {
            psql(&self.database, "UPDATE handstamp.inbox SET seen_at = seen_at - 3456000");
        }
    }

    impl Drop for Servers {
        fn drop(&mut self) {
            psql("", &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.database));
        }
    }

    /// The broker's defaults: seven days, and seven more for a segment.
    #[test]
    fn the_brokers_say_how_long_ids_are_needed() {
        let servers = Servers::new("13d");
        servers.later();
        let refused = servers.place.quiet(&["prune", "kafka.toml", "--json"]).exits(5).json();
        let window = &refused["windows"][0];
        assert_eq!(
            (&window["retention_seconds"], &window["segment_seconds"]),
            (&604_800.into(), &604_800.into())
        );
        let error = refused["error"].as_str().unwrap();
        assert!(error.contains("after 13d") && error.contains("for 14d"), "{error}");
        assert_eq!(servers.ids(), 60);
        let check = servers.place.quiet(&["check", "kafka.toml"]).exits(5).stdout;
        assert!(check.contains("retention: nothing will be deleted"), "{check}");
        // Brokers that do not answer: nothing goes on a guess.
        let toml = servers.place.read("kafka.toml").replace("13d", "14d");
        servers.place.write("kafka.toml", &toml);
        let away =
            servers.place.run_with("off", &["prune", "kafka.toml"], &[("KAFKA_BROKERS", "127.0.0.1:1")]);
        away.exits(3);
        assert_eq!(servers.ids(), 60);
        let done = servers.place.quiet(&["prune", "kafka.toml", "--json"]).exits(0).json();
        assert_eq!((&done["deleted_ids"], &done["needed_seconds"]), (&60.into(), &(14 * 86_400).into()));
        assert_eq!(servers.ids(), 0);
    }

    #[test]
    fn a_run_forgets_beside_consuming() {
        let servers = Servers::new("14d");
        servers.later();
        let mut running = servers.place.start("info", &["run", "kafka.toml"]);
        running.says("old ids are forgotten");
        assert_eq!(servers.ids(), 0);
        running.signal("TERM");
        running.finish().exits(0);
    }

    #[test]
    fn a_run_that_may_not_forget_says_so_and_goes_on() {
        let servers = Servers::new("13d");
        servers.later();
        let mut running = servers.place.start("info", &["run", "kafka.toml"]);
        running.says("no ids are forgotten");
        servers
            .place
            .run(&["publish", "kafka.toml", "--sample", "credits", "--count", "10", "--seed", "7"])
            .exits(0);
        assert!(wait_for(|| servers.ids() == 70), "the run stands");
        running.signal("TERM");
        running.finish().exits(0);
        assert_eq!(servers.ids(), 70);
    }
}
