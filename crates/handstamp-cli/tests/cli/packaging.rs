//! The files by which others run the program: a unit for systemd, an image. The image is not built here.

use crate::common::{Place, root};
use std::process::Command;
use std::time::Duration;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join("packaging").join(path)).unwrap()
}

/// The values of a key of the unit, in their order.
fn values<'u>(unit: &'u str, key: &str) -> Vec<&'u str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn the_unit_waits_longer_than_a_stop_may_take_and_does_not_repeat_what_cannot_work() {
    let unit = read("systemd/handstamp@.service");
    let place = Place::wallet();
    let printed = place.quiet(&["check", "file.toml", "--print"]).exits(0).stdout;
    let line = printed.lines().find_map(|line| line.strip_prefix("shutdown_timeout = \"")).unwrap();
    let stop = humantime::parse_duration(line.trim_end_matches('"')).unwrap();
    let [limit] = values(&unit, "TimeoutStopSec")[..] else { panic!("one limit") };
    // The source's end takes up to twelve seconds beyond it.
    assert!(Duration::from_secs(limit.parse().unwrap()) >= stop + Duration::from_secs(12), "{limit}");
    assert_eq!(values(&unit, "Restart"), ["on-failure"]);
    assert_eq!(values(&unit, "RestartPreventExitStatus"), ["2 4"]);
    assert_eq!(values(&unit, "KillSignal"), ["SIGTERM"]);
    for hardened in
        ["NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "RestrictAddressFamilies"]
    {
        assert_eq!(values(&unit, hardened).len(), 1, "{hardened}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let place = Place::new();
    // The program of this test, so that it is found; and no manual page, which is not installed.
    let unit = read("systemd/handstamp@.service")
        .replace("/usr/local/bin/handstamp", env!("CARGO_BIN_EXE_handstamp"));
    let unit: Vec<&str> = unit.lines().filter(|line| !line.starts_with("Documentation=")).collect();
    place.write("handstamp@.service", &unit.join("\n"));
    let file = place.path("handstamp@.service");
    match Command::new("systemd-analyze").arg("verify").arg(&file).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("handstamp")).collect();
            assert!(output.status.success() && ours.is_empty(), "{said}");
        }
        // What it would say is then found by whoever installs it.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound),
    }
}

#[test]
fn the_image_holds_the_program_alone_and_runs_it_as_nobody() {
    let file = read("container/Dockerfile");
    let mut instructions: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match instructions.last_mut().filter(|_| goes_on) {
            Some(last) => last.push_str(&format!(" {}", line.trim_end_matches('\\').trim())),
            None => instructions.push(line.trim_end_matches('\\').trim().to_owned()),
        }
        goes_on = line.ends_with('\\');
    }
    let known = ["FROM", "RUN", "WORKDIR", "COPY", "ARG", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD"];
    for instruction in &instructions {
        let word = instruction.split(' ').next().unwrap();
        assert!(known.contains(&word), "{instruction}");
    }
    let last = instructions.iter().rposition(|one| one.starts_with("FROM ")).unwrap();
    assert!(last > 0 && instructions[0].ends_with(" AS build"), "two stages");
    let image = &instructions[last..];
    let has = |wanted: &str| image.iter().any(|one| one.starts_with(wanted));
    assert!(has("COPY --from=build /src/target/release/handstamp "), "{image:#?}");
    assert!(
        image.iter().filter(|one| one.starts_with("COPY ")).count() == 1,
        "the program alone: {image:#?}"
    );
    assert!(has("USER 65532"), "{image:#?}");
    assert!(
        has("STOPSIGNAL SIGTERM") && has("ENTRYPOINT [\""),
        "no shell in front of the program: {image:#?}"
    );
    // The compiler of the image is not older than the program asks for.
    let wanted = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let wanted = wanted
        .lines()
        .find_map(|line| line.strip_prefix("rust-version = \""))
        .unwrap()
        .trim_matches('"')
        .to_owned();
    assert!(instructions[0].starts_with(&format!("FROM rust:{wanted}")), "{}", instructions[0]);
}
