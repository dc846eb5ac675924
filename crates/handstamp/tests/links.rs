//! Every relative link and every anchor in the repository's Markdown leads somewhere.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a report looks like: its charts lie beside it only where it was written.
const SNAPSHOT: &str = "crates/handstamp-lab/src/report/planted.md";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                pages(&path, found);
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// The lines of a page that are no code, each with its number.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => lines.push((at + 1, without_code(line))),
            (Some(_), _) => {}
        }
    }
    lines
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').enumerate().map(|(at, piece)| if at % 2 == 0 { piece } else { "" }).collect()
}

/// Where the links of a page lead: `](target)`, also of images, and `[name]: target`.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for piece in line.split("](").skip(1) {
            let target = piece.split(')').next().unwrap_or_default();
            // What stands in quotes behind a target is its title.
            found.push((number, target.split(' ').next().unwrap_or_default().to_owned()));
        }
        let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        found.extend(defined.map(|(_, target)| (number, target.trim().to_owned())));
    }
    found.retain(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"));
    found
}

/// The anchors of a page's headings, as the forges make them.
fn anchors(text: &str) -> Vec<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let title = title.trim().to_lowercase();
        let kept = title.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        let anchor: String = kept.collect();
        let before = times.entry(anchor.clone()).or_default();
        anchors.push(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    anchors
}

/// What is wrong with the links of a page.
fn faults(page: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, target) in targets(text) {
        let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(f, a)| (f, Some(a)));
        let place = if file.is_empty() { page.to_owned() } else { page.parent().unwrap().join(file) };
        let lost = if !place.exists() {
            true
        } else if let Some(anchor) = anchor {
            let there = if file.is_empty() { text.to_owned() } else { fs::read_to_string(&place).unwrap() };
            !anchors(&there).iter().any(|known| known == anchor)
        } else {
            false
        };
        if lost || target.is_empty() {
            faults.push(format!("{}:{number}: ({target}) leads nowhere", page.display()));
        }
    }
    faults
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let mut found = Vec::new();
    pages(&root(), &mut found);
    found.sort();
    let mut links = 0;
    let mut lost = Vec::new();
    for page in found.iter().filter(|page| !page.ends_with(SNAPSHOT)) {
        let text = fs::read_to_string(page).unwrap();
        links += targets(&text).len();
        lost.extend(faults(page, &text));
    }
    assert!(found.len() >= 30 && links >= 30, "{} pages, {links} links: the walk is broken", found.len());
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = root().join("README.md");
    for (text, lost) in [
        ("[a](docs/ARCHITECTURE.md) ![b](docs)", false),
        ("[a](docs/NOWHERE.md)", true),
        ("[a](docs/ARCHITECTURE.md#the-problem)", false),
        ("[a](docs/ARCHITECTURE.md#the-poblem)", true),
        ("# A `title`, twice\n# A title, twice\n[a](#a-title-twice-1)", false),
        ("# A title\n[a](#a-title-1)", true),
        ("[a]()", true),
        ("`[a](nowhere)`\n```\n[a](nowhere)\n```\n", false),
        ("[a](https://example.org/nowhere)", false),
        ("[a]: docs/NOWHERE.md", true),
    ] {
        assert_eq!(!faults(&page, text).is_empty(), lost, "{text}");
    }
}
