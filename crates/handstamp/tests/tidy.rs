//! Rules of the house that a compiler does not check: sizes, mirrored names, promises that name a test.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn walk(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&path, extension, found);
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    walk(&root(), extension, &mut found);
    assert!(!found.is_empty(), "no .{extension} file found: the walk is broken");
    found
}

/// Macros that make a test of each name they are given.
const TEST_LISTS: [&str; 3] = ["on_each_server!", "on_both_stores!", "$crate::$then!"];

/// Every test function of the workspace as `relative/path.rs::name`, and whether it is ignored.
fn tests() -> BTreeMap<String, bool> {
    let mut all = BTreeMap::new();
    for path in files("rs") {
        let relative = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let (mut is_test, mut ignored, mut in_list) = (false, false, false);
        for line in read(&path).lines() {
            let line = line.trim();
            in_list |= TEST_LISTS.iter().any(|list| line.starts_with(list));
            if in_list {
                let names = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                all.extend(
                    names.filter(|name| name.len() > 3).map(|name| (format!("{relative}::{name}"), false)),
                );
                in_list = !line.starts_with([')', '}']);
            }
            is_test |= ["#[test]", "#[tokio::test", "proptest!"].iter().any(|start| line.starts_with(start));
            ignored |= line.starts_with("#[ignore");
            let name = line
                .trim_start_matches("pub(crate) ")
                .trim_start_matches("pub ")
                .trim_start_matches("async ")
                .strip_prefix("fn ")
                .and_then(|rest| rest.split(['(', '<']).next());
            if let Some(name) = name {
                if is_test {
                    all.insert(format!("{relative}::{name}"), ignored);
                }
                (is_test, ignored) = (false, false);
            }
        }
    }
    all
}

#[test]
fn no_file_is_longer_than_600_lines() {
    let long: Vec<String> = files("rs")
        .into_iter()
        .map(|path| (read(&path).lines().count(), path))
        .filter(|(lines, _)| *lines > 600)
        .map(|(lines, path)| format!("{lines} {}", path.display()))
        .collect();
    assert!(long.is_empty(), "split these: {long:#?}");
}

#[test]
fn unsafe_code_lives_in_one_module() {
    let allowed: Vec<String> = files("rs")
        .into_iter()
        .filter(|path| read(path).lines().any(|line| line.trim_start().starts_with("#![allow(unsafe_code)")))
        .map(|path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(allowed, ["crates/handstamp-sources/src/kafka/ffi.rs"]);
}

#[test]
fn no_test_is_ignored() {
    let ignored: Vec<String> =
        tests().into_iter().filter(|(_, ignored)| *ignored).map(|(name, _)| name).collect();
    assert!(ignored.is_empty(), "a missing server fails, it does not skip: {ignored:#?}");
}

#[test]
fn stores_and_sources_mirror_their_names() {
    let names = |folder: &str| -> BTreeSet<String> {
        fs::read_dir(root().join(folder))
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.ends_with(".rs"))
            .collect()
    };
    for name in ["config.rs", "inbox.rs", "store.rs", "effect.rs", "failure.rs", "migrate.rs", "classify.rs"]
    {
        for store in ["sqlite", "postgres"] {
            assert!(
                names(&format!("crates/handstamp-stores/src/{store}")).contains(name),
                "{store} lacks {name}"
            );
        }
    }
    for name in ["config.rs", "source.rs", "sink.rs"] {
        for source in ["file", "kafka"] {
            assert!(
                names(&format!("crates/handstamp-sources/src/{source}")).contains(name),
                "{source} lacks {name}"
            );
        }
    }
}

/// The names in the first cells of a file's table of its folder, if it has one.
fn named_in_the_table(text: &str) -> Option<BTreeSet<String>> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("//! |"));
    if !["//! | file | owns |", "//! | module | owns |"].contains(&lines.next()?) {
        return None;
    }
    let rows = lines.map_while(|line| line.strip_prefix("//! | ").or(line.strip_prefix("//! |---")));
    let first_cells = rows.map(|row| row.split(" |").next().unwrap_or_default().to_owned());
    let quoted = |cell: String| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    Some(first_cells.flat_map(quoted).collect())
}

#[test]
fn a_folders_table_names_every_file_of_it_and_no_other() {
    let mut faults = vec![];
    let mut tables = 0;
    for path in files("rs") {
        let text = read(&path);
        let Some(named) = named_in_the_table(&text) else { continue };
        let for_tests = |name: &str| text.contains(&format!("#[cfg(test)]\npub(crate) mod {name};"));
        tables += 1;
        let apart = ["bin", "mod", "lib", "main"];
        let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        let there: BTreeSet<String> = entries
            .filter(|entry| entry.is_dir() || entry.extension().is_some_and(|extension| extension == "rs"))
            .map(|entry| entry.file_stem().unwrap().to_string_lossy().into_owned())
            .filter(|name| !apart.contains(&name.as_str()) && !name.ends_with("tests"))
            .filter(|name| !for_tests(name))
            .collect();
        for name in named.symmetric_difference(&there) {
            let what = if named.contains(name) { "is not there" } else { "is not in the table" };
            faults.push(format!("{}: `{name}` {what}", path.display()));
        }
    }
    assert!(tables >= 10, "only {tables} tables found: the search is broken");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_lesson_names_tests_that_exist_and_what_breaks_them() {
    let text = read(&root().join("docs/lessons.toml"));
    let lessons: toml::Table = text.parse().unwrap();
    let rules = lessons["rule"].as_array().unwrap();
    assert!(rules.len() >= 30, "only {} rules", rules.len());
    let tests = tests();
    let mut faults = vec![];
    for rule in rules {
        let field = |name: &str| rule.get(name).and_then(toml::Value::as_str).unwrap_or_default();
        if field("says").is_empty() || field("broken_by").is_empty() {
            faults.push(format!("{rule}: `says` and `broken_by` are needed"));
        }
        let named = rule.get("tests").and_then(toml::Value::as_array).cloned().unwrap_or_default();
        if named.is_empty() {
            faults.push(format!("{:?} names no test", field("says")));
        }
        for name in named.iter().filter_map(toml::Value::as_str) {
            if tests.get(name) != Some(&false) {
                faults.push(format!("{:?}: no such test: {name}", field("says")));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    let text = read(&root().join("docs/GUARANTEES.md"));
    let tests = tests();
    let mut rows = 0;
    let mut faults = vec![];
    for line in text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| claim")) {
        rows += 1;
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() != 4 || cells.iter().any(|cell| cell.is_empty()) {
            faults.push(format!("four cells, none empty: {line}"));
            continue;
        }
        for name in cells[3].split('`').filter(|piece| piece.contains("::")) {
            if tests.get(name) != Some(&false) {
                faults.push(format!("no such test: {name}"));
            }
        }
        if !cells[3].contains("::") {
            faults.push(format!("names no test: {line}"));
        }
    }
    assert!(rows >= 15, "only {rows} guarantees");
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_words_are_used_precisely() {
    let mut faults = vec![];
    for path in files("md").into_iter().chain(files("rs")) {
        if path.ends_with("tidy.rs") {
            continue;
        }
        for (at, line) in read(&path).lines().enumerate() {
            let lower = line.to_lowercase();
            let Some(found) = lower.find("exactly-once").or_else(|| lower.find("exactly once delivery"))
            else {
                continue;
            };
            // Quoted, it is the words of others that are spoken about.
            if !lower[..found].ends_with(['"', '“']) {
                faults.push(format!("{}:{}: {line}", path.display(), at + 1));
            }
        }
    }
    assert!(faults.is_empty(), "say effectively-once, or quote whom you contradict: {faults:#?}");
}

#[test]
fn decision_records_have_distinct_numbers() {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(root().join("docs/decisions")).unwrap() {
        let name = entry.unwrap().file_name().to_string_lossy().into_owned();
        let number = name.split('-').next().unwrap_or_default().to_owned();
        assert!(number.len() == 4 && number.chars().all(|c| c.is_ascii_digit()), "{name}: NNNN-title.md");
        if let Some(other) = seen.insert(number, name.clone()) {
            panic!("{name} and {other} have one number");
        }
    }
    assert!(seen.len() >= 5);
}
