//! The pages of `lab throughput` and `lab storage`.

use super::About;
use super::chart::{Bar, Chart, Row as ChartRow, Scale, Spread, fixed};
use super::page::{Page, Picture, Table};
use super::svg::colour;
use crate::reference;
use crate::subjects::Subject;
use crate::throughput::{Range, Rates};
use serde_json::Value;

fn spread(figures: &[f64]) -> Option<Spread> {
    Range::of(figures).map(|Range { median, min, max }| Spread { median, min, max })
}

fn one(value: f64) -> Spread {
    Spread { median: value, min: value, max: value }
}

fn words(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(|| "–".to_owned(), |spread| spread.words(digits))
}

fn asked(about: Option<&About>) -> Value {
    about.map_or(Value::Null, |about| about.settings.clone())
}

fn number(settings: &Value, name: &str) -> String {
    settings.get(name).and_then(Value::as_u64).map_or_else(|| "?".to_owned(), super::grouped)
}

/// Names, what they are, and their rates, as a chart.
pub(super) fn rates_picture(rates: &[(String, String, Vec<f64>)], under: String) -> Picture {
    let rows = rates.iter().filter_map(|(name, about, rates)| {
        let published = reference::THROUGHPUT.iter().find(|(published, _)| published == name);
        let bar = Bar {
            what: "",
            colour: colour::GREEN,
            spread: spread(rates)?,
            reference: published.map(|(_, rate)| one(*rate)),
            more: String::new(),
        };
        Some(ChartRow { name: name.clone(), about: about.clone(), bars: vec![bar] })
    });
    let chart = Chart {
        title: "Messages a second, nobody killed".to_owned(),
        under,
        axis: "messages a second".to_owned(),
        legend: vec![(colour::GREEN, "median, with the range from least to most".to_owned())],
        scale: Scale::Linear,
        digits: 1,
        stacked: false,
        rows: rows.collect(),
    };
    Picture { file: "throughput.svg", title: chart.title.clone(), words: chart.words(), svg: chart.draw() }
}

/// The page of `lab throughput`.
pub(super) fn throughput(rates: &[Rates], about: Option<&About>) -> Page {
    let settings = asked(about);
    let base = rates.iter().find(|one| one.contender.subject == Subject::B);
    let row = |one: &Rates| {
        let ratio = base.and_then(|base| one.ratio(base));
        let ratio = ratio.map(|Range { median, min, max }| Spread { median, min, max });
        vec![
            one.name.clone(),
            words(spread(&one.per_second), 1),
            words(ratio, 2),
            one.per_second.len().to_string(),
        ]
    };
    let messages = number(&settings, "messages");
    let describe = |one: &Rates| match one.contender.batch_max {
        1 => one.contender.subject.describe().to_owned(),
        most => format!("Handstamp, at most {most} a transaction"),
    };
    let drawn: Vec<_> =
        rates.iter().map(|one| (one.name.clone(), describe(one), one.per_second.clone())).collect();
    let servers = about.map_or("servers not noted", |about| about.servers.as_str());
    let under = format!(
        "One consumer, {messages} messages, no work beside the database, every message settled. On {servers}."
    );
    let published =
        reference::THROUGHPUT.iter().map(|(name, rate)| vec![(*name).to_owned(), fixed(*rate, 1)]);
    Page {
        what: "lab throughput",
        title: "Messages a second",
        about: format!(
            "One consumer, {messages} messages, no work beside the database, every message settled; everybody takes a \
             turn in each round."
        ),
        conclusion: None,
        table: Table {
            header: vec!["subject", "messages/s", "of b's in the same round", "rounds"],
            rows: rates.iter().map(row).collect(),
        },
        more: vec![],
        notes: vec!["Median (least–most)."],
        published: Table {
            header: vec!["subject, 100,000 messages", "messages/s"],
            rows: published.collect(),
        },
        pictures: vec![rates_picture(&drawn, under)],
        programs: Vec::new(),
        settings,
        outcome: serde_json::to_value(rates).unwrap_or_default(),
    }
}

/// The page of `lab storage`.
#[cfg(feature = "postgres")]
pub(super) fn storage(tables: &[crate::storage::Bytes], about: Option<&About>) -> Page {
    let settings = asked(about);
    let published = |name: &str| reference::STORAGE.iter().find(|(published, ..)| *published == name);
    let row = |one: &crate::storage::Bytes| {
        let mut cells = vec![one.name.clone()];
        cells.extend([&one.heap, &one.index, &one.total()].map(|figures| words(spread(figures), 1)));
        cells
    };
    let drawn = tables.iter().filter_map(|table| {
        let bar = |what, colour, figures: &[f64]| {
            // Ranges of parts say nothing about the whole; they stand in the table.
            Some(Bar {
                what,
                colour,
                spread: one(spread(figures)?.median),
                reference: None,
                more: String::new(),
            })
        };
        let mut bars =
            vec![bar("heap", colour::BLUE, &table.heap)?, bar("index", colour::SKY, &table.index)?];
        bars[0].reference = published(&table.name).map(|(_, heap, ..)| one(*heap));
        bars[1].reference = published(&table.name).map(|(.., total)| one(*total));
        let about = if table.name.starts_with("handstamp") {
            "the inbox of Handstamp"
        } else {
            "a table as published"
        };
        Some(ChartRow { name: table.name.clone(), about: about.to_owned(), bars })
    });
    let servers = about.map_or("servers not noted", |about| about.servers.as_str());
    let rows = number(&settings, "rows");
    let chart = Chart {
        title: "Bytes per remembered id".to_owned(),
        under: format!("{rows} rows after VACUUM, medians. On {servers}."),
        axis: "bytes; published figures: heap, and heap and index together".to_owned(),
        legend: vec![(colour::BLUE, "heap".to_owned()), (colour::SKY, "index".to_owned())],
        scale: Scale::Linear,
        digits: 1,
        stacked: true,
        rows: drawn.collect(),
    };
    let figures = reference::STORAGE.iter().map(|(name, heap, index, total)| {
        vec![(*name).to_owned(), fixed(*heap, 1), fixed(*index, 1), fixed(*total, 1)]
    });
    Page {
        what: "lab storage",
        title: "Bytes per remembered id",
        about: format!(
            "{rows} ids in each table, sizes as the server tells them after VACUUM, divided by the rows."
        ),
        conclusion: None,
        table: Table {
            header: vec!["id in", "heap", "index", "together"],
            rows: tables.iter().map(row).collect(),
        },
        more: vec![],
        notes: vec!["Median (least–most)."],
        published: Table {
            header: vec!["id in, 1,000,000 rows", "heap", "index", "together"],
            rows: figures.collect(),
        },
        pictures: vec![Picture {
            file: "bytes.svg",
            title: chart.title.clone(),
            words: chart.words(),
            svg: chart.draw(),
        }],
        programs: Vec::new(),
        settings,
        outcome: serde_json::to_value(tables).unwrap_or_default(),
    }
}
