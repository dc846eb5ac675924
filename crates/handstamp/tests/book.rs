//! The documentation as a book: `docs/SUMMARY.md` has every page, each once, in an order of its own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs")
}

/// A part of the book: its title, pages that come first, and the folder whose other pages follow.
const PARTS: [(&str, &[&str], Option<&str>); 6] = [
    ("Begin", &["quick-start.md", "concepts.md"], None),
    ("Guides", &["guides/when-something-fails.md"], Some("guides")),
    ("Operate", &["operations.md", "upgrade.md"], None),
    ("Reference", &["reference/config.md", "reference/cli.md"], Some("reference")),
    ("Measured", &["BENCHMARKS.md"], Some("lab")),
    (
        "How and why",
        &["ARCHITECTURE.md", "GUARANTEES.md", "NON-FEATURES.md", "GLOSSARY.md"],
        Some("decisions"),
    ),
];

/// Every page below a folder, as the book names it.
fn pages(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("SUMMARY.md")
        {
            found.insert(path.strip_prefix(docs()).unwrap().to_string_lossy().into_owned());
        }
    }
}

fn title(page: &str) -> String {
    let text = fs::read_to_string(docs().join(page)).unwrap();
    let title = text.lines().find_map(|line| line.strip_prefix("# "));
    title.unwrap_or_else(|| panic!("{page} has no title")).trim().to_owned()
}

fn summary() -> String {
    let mut left = BTreeSet::new();
    pages(&docs(), &mut left);
    let mut text = "# Summary\n".to_owned();
    for (part, first, folder) in PARTS {
        text.push_str(&format!("\n# {part}\n\n"));
        let prefix = folder.map(|folder| format!("{folder}/"));
        let listed = first.iter().map(|page| (*page).to_owned()).collect::<Vec<_>>();
        let others =
            prefix.map(|prefix| left.iter().filter(|page| page.starts_with(&prefix)).cloned().collect());
        let others: Vec<String> = others.unwrap_or_default();
        for page in listed.into_iter().chain(others) {
            if left.remove(&page) {
                text.push_str(&format!("- [{}]({page})\n", title(&page)));
            } else {
                assert!(first.contains(&page.as_str()), "{page} is not there");
            }
        }
    }
    assert!(left.is_empty(), "no part of the book has these pages: {left:?}");
    text
}

/// `HANDSTAMP_UPDATE=1` writes it anew.
#[test]
fn the_summary_has_every_page_of_the_docs_once() {
    let path = docs().join("SUMMARY.md");
    let wanted = summary();
    if std::env::var_os("HANDSTAMP_UPDATE").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == wanted,
        "HANDSTAMP_UPDATE=1 cargo test -p handstamp --test book writes {}",
        path.display()
    );
    let links =
        kept.lines().filter_map(|line| line.strip_prefix("- [")?.split_once("](")?.1.strip_suffix(')'));
    let links: Vec<&str> = links.collect();
    assert!(links.len() >= 40, "only {} pages", links.len());
    for page in &links {
        assert!(docs().join(page).is_file(), "{page} is not there");
        assert_eq!(links.iter().filter(|other| *other == page).count(), 1, "{page} stands there twice");
    }
}

/// What the book's builder reads of its settings.
#[test]
fn the_book_is_the_docs_folder_and_is_built_outside_of_it() {
    let book: toml::Table = fs::read_to_string(docs().join("book.toml")).unwrap().parse().unwrap();
    assert_eq!(book["book"]["src"].as_str(), Some("."));
    assert_eq!(book["build"]["build-dir"].as_str(), Some("../target/book"));
    assert_eq!(book["build"]["create-missing"].as_bool(), Some(false), "a missing page is an error");
}
