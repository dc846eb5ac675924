//! `[retention]`: for how long ids are kept.

use super::model::Config;
use super::parse::Section;
use handstamp_core::Retention;
use std::time::Duration;
use toml_edit::{Item, Table, value};

/// Reads it. Without it nothing is ever forgotten.
pub(super) fn read(top: &Section<'_, '_>) -> Option<Retention> {
    let section = top.section("retention")?;
    let line_of = |key: &str| section.item(key).map_or(section.line, |(_, line)| line);
    let keep = section.duration("keep");
    if !section.has("keep") {
        let why = "is missing: write how long ids are kept, for example `keep = \"14d\"`";
        section.problem(section.line, "keep", why);
    }
    let accept_window = section.duration("accept_window");
    for (key, time) in [("keep", keep), ("accept_window", accept_window)] {
        if time.is_some_and(|time| time < Duration::from_secs(1)) {
            section.problem(line_of(key), key, "at least \"1s\"");
        }
    }
    section.finish();
    keep.map(|keep| Retention { keep, accept_window })
}

/// As it is shown.
pub(super) fn table(config: &Config) -> Option<Item> {
    let retention = config.retention?;
    let time = |time: Duration| value(humantime::format_duration(time).to_string());
    let mut table = Table::new();
    table["keep"] = time(retention.keep);
    if let Some(window) = retention.accept_window {
        table["accept_window"] = time(window);
    }
    Some(Item::Table(table))
}
