//! What a report says, as Markdown and as JSON (pure).

use super::About;
use crate::kill::Conclusion;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A table.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let mut text = line(&mut self.header.iter().map(|cell| (*cell).to_owned()));
        let rule =
            self.header.iter().enumerate().map(|(at, _)| if at == 0 { "---" } else { "---:" }.to_owned());
        text.push_str(&line(&mut rule.into_iter()));
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().cloned()));
        }
        text
    }
}

/// A chart in a file of its own.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    pub(super) file: &'static str,
    pub(super) title: String,
    /// What it says, in words.
    pub(super) words: String,
    pub(super) svg: String,
}

/// Everything a report says.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// The command.
    pub(super) what: &'static str,
    pub(super) title: &'static str,
    /// What was done, in a sentence.
    pub(super) about: String,
    pub(super) conclusion: Option<Conclusion>,
    pub(super) table: Table,
    /// Further tables, each under a title of its own.
    pub(super) more: Vec<(&'static str, Table)>,
    /// What the columns mean.
    pub(super) notes: Vec<&'static str>,
    /// Figures of a published lab.
    pub(super) published: Table,
    pub(super) pictures: Vec<Picture>,
    /// Versions of the program that the histories name.
    pub(super) programs: Vec<String>,
    pub(super) settings: Value,
    /// The outcome with all of its figures.
    pub(super) outcome: Value,
}

/// A fault that is felt is what this command has instead of a control.
const UNCONTROLLED: &str = "lab faults outage";

fn sentence<'a>(what: &str, conclusion: &'a Conclusion) -> (String, &'a [String]) {
    match conclusion {
        Conclusion::Kept if what == UNCONTROLLED => {
            ("**Kept:** nothing was doubled and nothing was lost.".to_owned(), &[])
        }
        Conclusion::Kept => (
            "**Kept:** what promises doubled nothing and lost nothing, and the controls did harm.".to_owned(),
            &[],
        ),
        Conclusion::Violated(why) => ("**VIOLATED:** a promise was broken.".to_owned(), why),
        Conclusion::Inconclusive(why) => ("**Inconclusive:** this run proves nothing.".to_owned(), why),
    }
}

impl Page {
    fn programs(&self, about: Option<&About>) -> Vec<String> {
        let mut all = self.programs.clone();
        all.extend(about.map(|about| about.program.clone()));
        all.sort();
        all.dedup();
        all
    }

    fn servers(&self, about: Option<&About>) -> String {
        let place = self.settings.get("place").and_then(Value::as_str).filter(|place| !place.is_empty());
        let noted = about.map(|about| about.servers.as_str());
        place.or(noted).unwrap_or("not noted").to_owned()
    }

    /// For people.
    pub(super) fn markdown(&self, about: Option<&About>) -> String {
        // Writing to a string cannot fail.
        let mut text = format!("# {}\n\n{}\n", self.title, self.about);
        if let Some(conclusion) = &self.conclusion {
            let (sentence, why) = sentence(self.what, conclusion);
            let _ = writeln!(text, "\n{sentence}");
            for reason in why {
                let _ = writeln!(text, "* {reason}");
            }
        }
        let _ = write!(text, "\n## Figures\n\n{}", self.table.markdown());
        for note in &self.notes {
            let _ = writeln!(text, "\n{note}");
        }
        for (title, table) in self.more.iter().filter(|(_, table)| !table.rows.is_empty()) {
            let _ = write!(text, "\n## {title}\n\n{}", table.markdown());
        }
        if !self.pictures.is_empty() {
            text.push_str("\n## Charts\n");
        }
        for picture in &self.pictures {
            let alt = format!("{}. {}", picture.title, picture.words).replace(['[', ']'], "");
            let _ = writeln!(text, "\n![{alt}]({})", picture.file);
        }
        if !self.published.rows.is_empty() {
            let _ = write!(
                text,
                "\n## A published lab, for reference\n\nIn Python, one broker on one machine: another language and another machine, so the order of magnitude\nis what can be compared.\n\n{}",
                self.published.markdown()
            );
        }
        let _ = write!(text, "\n## Made with\n\n{}", self.made_with(about).markdown());
        text.push_str(
            "\n`handstamp lab verify FOLDER` computes this report again from what lies in the run's folder.\n",
        );
        text
    }

    fn made_with(&self, about: Option<&About>) -> Table {
        let or_not = |text: Option<&str>| text.unwrap_or("not noted").to_owned();
        let mut rows = vec![
            vec!["handstamp".to_owned(), self.programs(about).join(", ")],
            vec!["broker; database".to_owned(), self.servers(about)],
            vec!["librdkafka".to_owned(), or_not(about.map(|about| about.librdkafka.as_str()))],
        ];
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            if name != "place" && name != "id" {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                rows.push(vec![format!("`{name}`"), value.replace(',', ", ").replace('"', "")]);
            }
        }
        Table { header: vec!["", "version or setting"], rows }
    }

    /// For programs.
    pub(super) fn json(&self, about: Option<&About>) -> Value {
        let table = |table: &Table| -> Value {
            let row = |row: &Vec<String>| -> Value {
                let cells = table.header.iter().zip(row);
                cells
                    .map(|(name, cell)| ((*name).to_owned(), json!(cell)))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            table.rows.iter().map(row).collect()
        };
        json!({
            "format": 1,
            "command": self.what,
            "versions": {
                "handstamp": self.programs(about),
                "servers": self.servers(about),
                "librdkafka": about.map(|about| &about.librdkafka),
            },
            "seed": self.settings.get("seed"),
            "settings": self.settings,
            "outcome": self.outcome,
            "table": table(&self.table),
            "published": table(&self.published),
            "charts": self.pictures.iter().map(|picture| picture.file).collect::<Vec<_>>(),
        })
    }
}
