//! The keys of an effect that runs once a batch: `set`, `columns`, `expect_rows_sql`, `lock`.

use super::effects::param;
use super::load::optional;
use super::parse::{Section, Text};
use handstamp_stores::effect::{ColumnSpec, ExpectRows, ExpectSet, SetSpec};
use std::collections::BTreeMap;
use toml_edit::{Item, Value};

/// What the section says of it; `None`: it runs for each message. `rows` is what `expect_rows` says, and is taken
/// where it is a set effect's.
pub(super) fn read(section: &Section<'_, '_>, rows: &mut Option<ExpectRows>) -> Option<SetSpec> {
    let is_set = section.flag("set").unwrap_or(false);
    let columns = columns(section);
    let query = optional(section, "expect_rows_sql").filter(Text::is_known);
    let lock = optional(section, "lock").filter(Text::is_known);
    if !is_set {
        for key in ["columns", "expect_rows_sql", "lock"] {
            if let Some((_, line)) = section.item(key) {
                let why = "only with `set = true`, which makes an effect run once a batch over `messages`";
                section.problem(line, key, why);
            }
        }
        return None;
    }
    if let (Some(query), true) = (&query, section.has("expect_rows")) {
        section.problem(query.line, "expect_rows_sql", "only one of `expect_rows` and `expect_rows_sql`");
    }
    let expect = match query {
        Some(query) => ExpectSet::Query(query.value),
        None if rows.take_if(|rows| *rows == ExpectRows::Any).is_some() => ExpectSet::Any,
        None => ExpectSet::EachMessage,
    };
    Some(SetSpec { columns, expect, lock: lock.map(|lock| lock.value) })
}

fn columns(section: &Section<'_, '_>) -> BTreeMap<String, ColumnSpec> {
    let Some(table) = section.section("columns") else { return BTreeMap::new() };
    let mut columns = BTreeMap::new();
    for (name, line) in table.keys() {
        let Some((item, _)) = table.item(&name) else { continue };
        let column = match item {
            Item::Value(Value::String(_)) => table.text(&name).map(|text| ColumnSpec::new(text.value)),
            _ if item.is_table_like() => table.section(&name).and_then(|inner| {
                let type_name = inner.required_text("type", "\"numeric\"");
                let param = param(inner, line)?;
                Some(ColumnSpec { type_name: type_name?.value, param })
            }),
            _ => {
                let expected = "a type such as \"numeric\", or a table of `type` and `pointer` or `header`, `encoding`, `as`";
                table.wrong_type(line, &name, expected, item);
                None
            }
        };
        columns.extend(column.map(|column| (name, column)));
    }
    columns
}
