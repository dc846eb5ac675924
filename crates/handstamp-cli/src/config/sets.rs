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

#[cfg(test)]
mod tests {
    use crate::config::{Uses, effective, load::parse, parsed};
    use handstamp_stores::effect::{ExpectSet, ParamSource};
    use std::path::Path;

    fn with(effect: &str) -> String {
        format!(
            "name = \"w\"\nsource = {{ type = \"file\", path = \"-\" }}\nidentity = {{ field = \"/id\" }}\n\
             store = {{ type = \"sqlite\", path = \"s\" }}\n[[effect]]\nsql = \"INSERT INTO t SELECT amount FROM messages\"\n{effect}"
        )
    }

    #[test]
    fn what_is_read_is_printed_and_read_again() {
        let text = with(
            "set = true\nexpect_rows_sql = \"SELECT count(*) FROM messages\"\nlock = \"SELECT n FROM messages\"\n\
             optional = [\"city\"]\ncolumns.amount = \"numeric\"\n\
             columns.city = { type = \"text\", pointer = \"/address/city\" }\n\
             columns.photo = { type = \"blob\", header = \"photo\", encoding = \"base64\" }\n",
        );
        let config = parsed(Path::new("p.toml"), &text);
        let spec = &config.effects[0].spec;
        let set = spec.set.as_ref().unwrap();
        assert_eq!(set.columns["amount"].type_name, "numeric");
        assert_eq!(set.columns["photo"].param.source, Some(ParamSource::Header("photo".into())));
        assert_eq!(set.expect, ExpectSet::Query("SELECT count(*) FROM messages".into()));
        assert_eq!(
            (set.lock.as_deref(), &*spec.optional),
            (Some("SELECT n FROM messages"), &["city".to_owned()][..])
        );
        let again = parsed(Path::new("p.toml"), &effective(&config));
        assert_eq!(again.effects[0].spec, *spec);
        let any = parsed(
            Path::new("p.toml"),
            &with("set = true\nexpect_rows = \"any\"\ncolumns.amount = \"any\"\n"),
        );
        assert_eq!(any.effects[0].spec.set.as_ref().unwrap().expect, ExpectSet::Any);
        let again = parsed(Path::new("p.toml"), &effective(&any));
        assert_eq!(again.effects[0].spec, any.effects[0].spec);
    }

    #[test]
    fn mistakes_name_their_key_and_what_would_be_right() {
        for (effect, says) in [
            ("columns.amount = \"int4\"", "columns: only with `set = true`"),
            ("lock = \"SELECT 1\"", "lock: only with `set = true`"),
            ("set = false\nexpect_rows_sql = \"SELECT 1\"", "expect_rows_sql: only with `set = true`"),
            ("set = 1", "set: expected true or false"),
            (
                "set = true\nexpect_rows = 1",
                "`expect_rows` as a number is for an effect that runs for each message",
            ),
            (
                "set = true\nexpect_rows = \"any\"\nexpect_rows_sql = \"SELECT count(*) FROM messages\"",
                "only one of `expect_rows` and `expect_rows_sql`",
            ),
            ("set = true\nparams.amount = \"/x\"", "declare `columns` here"),
            ("set = true\ncolumns.amount = 4", "a type such as \"numeric\""),
            ("set = true\ncolumns.amount = { pointer = \"/x\" }", "type: is missing"),
            (
                "set = true\ncolumns.amount = { type = \"int4\", tpye = \"x\" }",
                "unknown key; did you mean `type`?",
            ),
            ("set = true\ncolumns.Amount = \"int4\"", "lower-case"),
            ("set = true\ncolumns.amount = \"int4); DROP TABLE t\"", "no type that a column may have"),
            ("set = true\nlock = \"DELETE FROM messages\"", "lock is no SELECT"),
        ] {
            let lookup = |_: &str| Err(std::env::VarError::NotPresent);
            let problems =
                parse(Path::new("p.toml"), &with(effect), Uses::Pipeline, &lookup).expect_err(effect);
            let said: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
            assert!(said.iter().any(|said| said.contains(says)), "{effect}: {said:?}");
            assert!(said.iter().all(|said| said.starts_with("effect[1].")), "{effect}: {said:?}");
        }
    }
}
