//! What can be typed, and what is said about mistakes.

use crate::common::Lab;
#[cfg(not(feature = "crash-points"))]
use std::path::Path;

/// The lab's commands, as its help lists them.
#[cfg(not(feature = "crash-points"))]
fn commands(lab: &Lab) -> Vec<String> {
    let help = lab.exits(&["--help"], 0);
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    assert!(names.len() >= 6, "{help}");
    names.into_iter().filter(|name| name != "help").collect()
}

/// The reference is the help itself. `HANDSTAMP_UPDATE=1` writes it anew.
#[cfg(not(feature = "crash-points"))]
#[test]
fn the_labs_reference_is_what_help_says() {
    let lab = Lab::new();
    let mut page = "# The commands of the lab\n\nWhat `--help` says; a test compares them.\n".to_owned();
    let commands = commands(&lab);
    for command in std::iter::once(None).chain(commands.iter().map(|name| Some(name.as_str()))) {
        let words: Vec<&str> = command.into_iter().collect();
        let help = lab.exits(&[&words[..], &["--help"]].concat(), 0);
        let title = [&["handstamp", "lab"], &words[..]].concat().join(" ");
        let text: Vec<&str> = help.lines().map(str::trim_end).collect();
        page.push_str(&format!("\n## `{title}`\n\n```text\n{}\n```\n", text.join("\n").trim()));
    }
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/reference/lab.md");
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(page.lines()).find(|(kept, page)| kept != page);
    assert!(kept == page, "HANDSTAMP_UPDATE=1 cargo test -p handstamp-cli --test lab writes it: {differs:?}");
}

#[test]
fn mistakes_are_named_before_anything_is_started() {
    let lab = Lab::new();
    for (args, word) in [
        (&["kill", "--subjects", "a9"][..], "\"a9\" is no subject: a1, a2"),
        (&["kill", "--work", "0ms"], "--work"),
        (&["kill", "--kills", "0"], "--kills"),
        (&["kill", "--session-timeout", "10ms"], "--session-timeout"),
        (&["kill", "--subjects", "handstamp-program"], "Postgres"),
        (&["kill", "--resume", "nowhere"], "holds no lab run"),
        (&["verify", "nowhere"], "holds no lab run"),
        (&["zombie"], "--database"),
        (&["storage"], "--database"),
        (&["clean"], "--brokers"),
    ] {
        let said = lab.refuses(args);
        assert!(said.contains(word), "{args:?}: {said}");
    }
}

#[test]
fn servers_that_are_away_are_named_without_their_password() {
    let lab = Lab::new();
    let database = "postgres://me:canary@127.0.0.1:1/none";
    let said = lab.command(&["kill", "--database", database]).output().unwrap();
    let text = crate::common::shown(&said);
    assert_eq!(said.status.code(), Some(3), "{text}");
    assert!(text.contains("Postgres") && !text.contains("canary"), "{text}");
    let object = lab.object(&["kill", "--brokers", "127.0.0.1:1", "--json"], 3);
    assert!(object["error"].as_str().unwrap().contains("broker") && object["exit_code"] == 3, "{object}");
}
