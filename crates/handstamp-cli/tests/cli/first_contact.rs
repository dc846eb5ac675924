//! Before the first message: starter pipelines, shells, manual pages, editors.

use crate::common::{Place, root};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The schema as the program prints it.
fn schema() -> Value {
    Place::new().quiet(&["schema"]).exits(0).json()
}

fn validator() -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema()).unwrap()
}

fn as_json(toml: &str) -> Value {
    toml_edit::de::from_str(toml).unwrap_or_else(|error| panic!("{error} in {toml}"))
}

/// Every combination, with the sum that its sample is worth where it has one.
const COMBINATIONS: [(&str, &str); 4] =
    [("file", "sqlite"), ("file", "postgres"), ("kafka", "sqlite"), ("kafka", "postgres")];

#[test]
fn init_writes_a_pipeline_that_says_what_it_is_and_replaces_nothing() {
    for (source, store) in COMBINATIONS {
        let place = Place::new();
        let done = place.quiet(&["init", "new/dir", "--source", source, "--store", store]).exits(0);
        let text = place.read("new/dir/pipeline.toml");
        for row in done.stdout.lines().filter_map(|line| line.strip_prefix("wrote ")) {
            assert!(place.path(row).is_file(), "{row}");
        }
        assert!(done.stdout.contains("handstamp check new/dir/pipeline.toml"), "{}", done.stdout);
        assert!(done.stdout.contains("--dry-run"), "{}", done.stdout);
        // The first line is read by editors, and leads to the file beside it.
        assert!(text.starts_with("#:schema ./handstamp.schema.json\n"), "{text}");
        let beside: Value = serde_json::from_str(&place.read("new/dir/handstamp.schema.json")).unwrap();
        assert_eq!(beside, schema());
        assert!(validator().is_valid(&as_json(&text)), "{text}");
        // Every key but the plainest has a comment above it.
        let comments = text.lines().filter(|line| line.starts_with('#')).count();
        assert!(comments >= 12, "{text}");
        let before: Vec<String> = ["pipeline.toml", "schema.sql", "handstamp.schema.json"]
            .iter()
            .map(|name| place.read(&format!("new/dir/{name}")))
            .collect();
        let again = place.quiet(&["init", "new/dir", "--source", source, "--store", store]).exits(2);
        assert!(again.stderr.contains("new/dir/pipeline.toml"), "{}", again.stderr);
        assert!(again.stderr.contains("nothing was written"), "{}", again.stderr);
        let after: Vec<String> = ["pipeline.toml", "schema.sql", "handstamp.schema.json"]
            .iter()
            .map(|name| place.read(&format!("new/dir/{name}")))
            .collect();
        assert_eq!(before, after);
    }
}

/// One file that is there is enough: no other is written.
#[test]
fn init_writes_all_of_its_files_or_none() {
    let place = Place::new();
    place.write("credits.jsonl", "mine\n");
    let done = place.quiet(&["init"]).exits(2);
    assert!(done.stderr.contains("credits.jsonl is there already"), "{}", done.stderr);
    let names: Vec<_> =
        std::fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["credits.jsonl"]);
    assert_eq!(place.read("credits.jsonl"), "mine\n");
}

#[cfg(all(feature = "file", feature = "sqlite"))]
#[test]
fn the_starter_of_a_file_and_sqlite_passes_check_and_runs() {
    let place = Place::new();
    place.quiet(&["init"]).exits(0);
    place.quiet(&["check", "pipeline.toml"]).exits(0);
    let dry = place.quiet(&["run", "pipeline.toml", "--dry-run", "--json"]).exits(0).json();
    let run = place.quiet(&["run", "pipeline.toml", "--json"]).exits(0);
    assert_eq!(run.counts(["received", "applied", "duplicate", "dead_lettered", "parked"]), [6, 3, 1, 1, 1]);
    for word in ["applied", "duplicate", "dead_lettered", "parked"] {
        assert_eq!(dry["counts"][word], run.json()[word], "{word}: {dry}");
    }
}

#[cfg(all(feature = "file", feature = "kafka", feature = "postgres", feature = "sqlite"))]
mod on_servers {
    use super::*;
    use crate::kafka_postgres::{psql, unique, url, variable};

    /// A starter pipeline on servers, with names of its own.
    #[test]
    fn the_starters_pass_check_and_run_on_real_servers() {
        for (source, store) in COMBINATIONS {
            let name = unique();
            psql("", &format!("CREATE DATABASE {name}"));
            let place = Place::new()
                .env("DATABASE_URL", &url(&name, None))
                .env("KAFKA_BROKERS", &variable("HANDSTAMP_TEST_KAFKA"))
                .env("KAFKA_TOPIC", &name)
                .env("KAFKA_GROUP", &name);
            place.quiet(&["init", "--source", source, "--store", store]).exits(0);
            if store == "postgres" {
                place.quiet(&["migrate", "pipeline.toml"]).exits(0);
            }
            let (mut received, mut applied) = (6, 3);
            if source == "kafka" {
                (received, applied) = (40, 40);
                let publish =
                    ["publish", "pipeline.toml", "--sample", "credits", "--count", "40", "--create-topic"];
                place.quiet(&publish).exits(0);
            }
            let check = place.quiet(&["check", "pipeline.toml"]).exits(0);
            assert!(check.stdout.contains("0 failed, 0 warnings"), "{source} {store}: {}", check.stdout);
            let mut run = vec!["run", "pipeline.toml", "--json"];
            if source == "kafka" {
                run.extend(["--until-idle", "2s"]);
            }
            let run = place.quiet(&run).exits(0);
            assert_eq!(run.counts(["received", "applied"]), [received, applied], "{source} {store}");
            psql("", &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        }
    }
}

/// TOML files of the repository that are pipelines, and those that its pages show.
fn pipelines() -> BTreeMap<String, String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, found);
                }
            } else if name.ends_with(".toml") || name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    let is_pipeline = |text: &str| {
        ["[source]", "[store]", "[[effect]]"]
            .iter()
            .all(|section| text.lines().any(|line| line.trim() == *section))
    };
    let mut files = Vec::new();
    walk(root(), &mut files);
    let mut found = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.display().to_string();
        if name.ends_with(".toml") {
            found.insert(name, text);
            continue;
        }
        for (at, piece) in text.split("```toml\n").skip(1).enumerate() {
            let piece = piece.split("```").next().unwrap_or_default();
            found.insert(format!("{name}, piece {}", at + 1), piece.to_owned());
        }
    }
    found.retain(|_, text| is_pipeline(text));
    found
}

#[test]
fn every_pipeline_of_the_repository_fits_the_schema() {
    let validator = validator();
    let found = pipelines();
    assert!(found.len() >= 4, "{:?}", found.keys());
    for (name, text) in found {
        let errors: Vec<String> = validator
            .iter_errors(&as_json(&text))
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{name}: {errors:#?}");
    }
}

const WALLET: &str = r#"
name = "wallet"
[source]
type = "file"
path = "credits.jsonl"
[identity]
field = "/event_id"
[store]
type = "sqlite"
path = "wallet.db"
[[effect]]
sql = "INSERT INTO t (id) VALUES (:message_id)"
"#;

/// A file that an editor marks is one that `check` refuses, and the other way round.
#[test]
fn broken_files_are_refused_by_the_schema_and_by_check() {
    let validator = validator();
    assert!(validator.is_valid(&as_json(WALLET)));
    let place = Place::new();
    for (good, bad) in [
        ("name = \"wallet\"", ""),
        ("name = \"wallet\"", "name = \"my wallet\""),
        ("name = \"wallet\"", "name = 7"),
        ("name = \"wallet\"", "name = \"wallet\"\ncolour = \"red\""),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { batch_max = 0 }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { batch_max = \"many\" }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { batch_wait = 5 }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { batch_wait = \"five\" }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { queue_max_bytes = \"4 miles\" }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { order = \"partitions\" }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { batch_maxi = 5 }"),
        ("name = \"wallet\"", "name = \"wallet\"\nconsumer = { version_key = \"/k\" }"),
        ("name = \"wallet\"", "name = \"wallet\"\nretry = { max_attempts = 1000001 }"),
        ("name = \"wallet\"", "name = \"wallet\"\nretry = { on.\"787\".max_attempt = 3 }"),
        ("name = \"wallet\"", "name = \"wallet\"\ndead_letter = { topic = \"t\" }"),
        ("type = \"file\"", "type = \"kafka\""),
        ("type = \"file\"", "type = \"rabbit\""),
        ("type = \"file\"", "type = \"file\"\ngroup = \"g\""),
        ("path = \"credits.jsonl\"", ""),
        ("[identity]\nfield = \"/event_id\"", ""),
        ("field = \"/event_id\"", "field = \"event_id\""),
        ("field = \"/event_id\"", "field = \"/event_id\"\nkey = true"),
        ("field = \"/event_id\"", "key = false"),
        ("type = \"sqlite\"", "type = \"sqlite\"\nurl = \"postgres://h\""),
        ("path = \"wallet.db\"", "path = [\"wallet.db\"]"),
        ("sql = ", "expect_rows = -1\nsql = "),
        ("sql = ", "expect_rows = \"some\"\nsql = "),
        ("sql = ", "params = { id = \"x\" }\nsql = "),
        ("sql = ", "statement = "),
    ] {
        assert_eq!(WALLET.matches(good).count(), 1, "{good}");
        let text = WALLET.replace(good, bad);
        assert!(!validator.is_valid(&as_json(&text)), "the schema takes {bad:?}");
        place.write("bad.toml", &text);
        let check = place.quiet(&["check", "bad.toml"]).exits(2);
        assert!(check.stderr.contains("bad.toml:"), "{bad:?}: {}", check.stderr);
    }
}

#[test]
fn a_key_that_stands_elsewhere_is_told_its_section() {
    let place = Place::new();
    place.write(
        "bad.toml",
        &WALLET.replace("path = \"credits.jsonl\"", "path = \"credits.jsonl\"\nhandler_timeout = \"5s\""),
    );
    let check = place.quiet(&["check", "bad.toml"]).exits(2);
    assert!(
        check.stderr.contains("source.handler_timeout: unknown key; it belongs to [consumer]"),
        "{}",
        check.stderr
    );
}

/// What bash completes behind these words.
fn completed(place: &Place, words: &[&str]) -> Vec<String> {
    let script = format!(
        "source ./completions.bash\nCOMP_WORDS=({})\nCOMP_CWORD={}\n_handstamp handstamp \"${{COMP_WORDS[COMP_CWORD]}}\" \
         \"${{COMP_WORDS[COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
    );
    let output = Command::new("bash")
        .args(["--norc", "--noprofile", "-c", &script])
        .current_dir(place.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let place = Place::new();
    place.write("completions.bash", &place.quiet(&["completions", "bash"]).exits(0).stdout);
    assert_eq!(completed(&place, &["handstamp", "mig"]), ["migrate"]);
    assert_eq!(completed(&place, &["handstamp", "dlq", "redr"]), ["redrive"]);
    assert_eq!(completed(&place, &["handstamp", "run", "--dry"]), ["--dry-run"]);
    assert_eq!(completed(&place, &["handstamp", "init", "--store", "post"]), ["postgres"]);
}

#[test]
fn every_shell_has_a_script_that_names_the_commands() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = place.quiet(&["completions", shell]).exits(0).stdout;
        for word in ["migrate", "redrive", "dry-run"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    place.quiet(&["completions", "tcsh"]).exits(2);
    assert_eq!(place.run_full(&["completions", "bash"]).code, Some(1));
}

/// What a manual page is made of: requests begin a line, everything else is text or an escape that is known.
fn is_a_page(page: &str, name: &str) {
    let title = format!(".TH {name} 1");
    assert!(page.lines().any(|line| line.starts_with(&title)), "{title}: {}", &page[..page.len().min(400)]);
    for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
        assert!(page.lines().any(|line| line == section), "{name}: {section}");
    }
    for line in page.lines().filter(|line| line.starts_with('.')) {
        let request: String = line.chars().skip(1).take_while(|c| c.is_ascii_alphabetic()).collect();
        let known = ["TH", "SH", "SS", "TP", "RS", "RE", "br", "ie", "el", "nf", "fi", "PP", "IP", "B", "I"];
        assert!(known.contains(&request.as_str()), "{name}: {line}");
    }
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let place = Place::new();
    let first = place.quiet(&["man"]).exits(0).stdout;
    is_a_page(&first, "handstamp");
    place.quiet(&["man", "man1"]).exits(0);
    let pages: Vec<_> =
        std::fs::read_dir(place.path("man1")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(pages.len() >= 12, "{pages:?}");
    for page in &pages {
        let name = page.file_stem().unwrap().to_string_lossy().into_owned();
        is_a_page(&std::fs::read_to_string(page).unwrap(), &name);
    }
    for name in ["handstamp", "handstamp-run", "handstamp-dlq-redrive", "handstamp-init"] {
        assert!(place.path(&format!("man1/{name}.1")).is_file(), "{name}: {pages:?}");
    }
    renders_without_a_warning(&place, &pages);
}

/// Where a renderer is installed it has nothing to complain about.
fn renders_without_a_warning(place: &Place, pages: &[PathBuf]) {
    let tried =
        ["mandoc -Tlint -Wwarning", "groff -K utf8 -man -ww -Tutf8 -z"].into_iter().find_map(|line| {
            let mut words = line.split(' ');
            let mut command = Command::new(words.next()?);
            command.args(words).args(pages).current_dir(place.path(""));
            command.stdin(Stdio::null()).output().ok().map(|output| (line, output))
        });
    if let Some((line, output)) = tried {
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success() && said.trim().is_empty(), "{line}: {said}");
    }
}
