//! The effective configuration as TOML: every key, defaults included. Variables stand as they were
//! written, passwords are masked.

use super::identity;
use super::model::{Config, EffectSection, SourceSection, StoreSection};
use super::parse::{Text, shown_size};
use handstamp_core::retry::RetryPolicy;
use handstamp_core::{OnFailure, OnIdReuse, Order};
use handstamp_stores::effect::{Encoding, ExpectRows, ExpectSet, ParamSource, ParamSpec, SetSpec};
use std::fmt::Write as _;
use std::time::Duration;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value, value};

/// The whole configuration.
pub(crate) fn effective(config: &Config) -> String {
    let mut document = DocumentMut::new();
    document["name"] = value(config.name.as_str());
    document["consumer"] = Item::Table(consumer(config));
    document["retry"] = Item::Table(retry(&config.options.policy.retry));
    document["source"] = Item::Table(source(&config.source));
    document["identity"] = Item::Table(identity::table(&config.identity));
    document["store"] = Item::Table(store(&config.store));
    if let Some(topic) = &config.dead_letter {
        let mut table = Table::new();
        table["topic"] = text(topic);
        document["dead_letter"] = Item::Table(table);
    }
    if let Some(address) = config.watch {
        let mut table = Table::new();
        table["listen"] = value(address.to_string());
        document["watch"] = Item::Table(table);
    }
    if let Some(table) = super::retention::table(config) {
        document["retention"] = table;
    }
    let mut out = document.to_string();
    for effect in &config.effects {
        // Writing to a String cannot fail.
        let _ = write!(out, "\n[[effect]]\n{}", effect_table(effect));
    }
    out
}

fn consumer(config: &Config) -> Table {
    let options = &config.options;
    let mut table = Table::new();
    table["batch_max"] = count(options.batch_max);
    table["batch_max_bytes"] = value(shown_size(options.batch_max_bytes));
    table["batch_wait"] = time(options.batch_wait);
    table["concurrency"] = count(options.concurrency);
    table["queue_max_bytes"] = value(shown_size(options.queue_max_bytes));
    table["max_message_bytes"] = value(shown_size(options.message_max_bytes));
    table["handler_timeout"] = time(options.handler_timeout);
    table["shutdown_timeout"] = time(options.shutdown_timeout);
    table["order"] = value(match options.order {
        Order::Partition => "partition",
        Order::Key => "key",
        Order::None => "none",
    });
    table["on_failure"] = value(match options.policy.on_failure {
        OnFailure::Park => "park",
        OnFailure::Block => "block",
    });
    table["parked_max"] = value(i64::try_from(options.parked_max).unwrap_or(i64::MAX));
    table["on_id_reuse"] = value(match options.policy.on_id_reuse {
        OnIdReuse::DeadLetter => "dead_letter",
        OnIdReuse::Count => "count",
    });
    if let Some(guard) = &options.version {
        table["version"] = value(guard.version.as_str());
        if let Some(key) = &guard.key {
            table["version_key"] = value(key.as_str());
        }
    }
    table["inbox"] = value(options.inbox);
    table["naturally_idempotent"] = value(options.naturally_idempotent);
    table["ignore_unmatched"] = value(config.ignore_unmatched);
    table
}

fn retry(policy: &RetryPolicy) -> Table {
    let mut table = Table::new();
    table["max_attempts"] = value(i64::from(policy.max_attempts));
    table["immediate"] = value(i64::from(policy.immediate));
    table["wait"] = time(policy.wait);
    table["backoff_base"] = time(policy.backoff.base);
    table["backoff_cap"] = time(policy.backoff.cap);
    if let Some(max_age) = policy.max_age {
        table["max_age"] = time(max_age);
    }
    table["max_crashes"] = value(i64::from(policy.max_crashes));
    for (code, attempts) in &policy.max_attempts_by_code {
        table["on"][code]["max_attempts"] = value(i64::from(*attempts));
    }
    table
}

fn source(source: &SourceSection) -> Table {
    let mut table = Table::new();
    match source {
        SourceSection::Kafka(kafka) => {
            table["type"] = value("kafka");
            table["brokers"] = text(&kafka.brokers);
            table["topics"] = value(kafka.topics.iter().map(Text::shown).collect::<Array>());
            table["group"] = text(&kafka.group);
            table["commit_every"] = time(kafka.commit_every);
            table["revoke_timeout"] = time(kafka.revoke_timeout);
            let mut options = Table::new();
            for (key, option) in &kafka.options {
                options[key] = value(option.shown());
            }
            if !options.is_empty() {
                table["options"] = Item::Table(options);
            }
        }
        SourceSection::File(file) => {
            table["type"] = value("file");
            table["path"] = text(&file.path);
            optional(&mut table, "state_dir", file.state_dir.as_ref());
        }
    }
    table
}

fn store(store: &StoreSection) -> Table {
    let mut table = Table::new();
    match store {
        StoreSection::Sqlite(sqlite) => {
            table["type"] = value("sqlite");
            table["path"] = text(&sqlite.path);
            optional(&mut table, "setup", sqlite.setup.as_ref());
            table["lock_timeout"] = time(sqlite.lock_timeout);
        }
        StoreSection::Postgres(postgres) => {
            table["type"] = value("postgres");
            table["url"] = text(&postgres.url);
            optional(&mut table, "migrate_url", postgres.migrate_url.as_ref());
            for (key, url) in [("url", Some(&postgres.url)), ("migrate_url", postgres.migrate_url.as_ref())] {
                if let (Some(mut key), Some(place)) = (table.key_mut(key), url.and_then(place)) {
                    key.leaf_decor_mut().set_prefix(format!("# {place}\n"));
                }
            }
            table["schema"] = text(&postgres.schema);
            optional(&mut table, "setup", postgres.setup.as_ref());
            table["lock_timeout"] = time(postgres.lock_timeout);
        }
    }
    table
}

fn effect_table(effect: &EffectSection) -> Table {
    let spec = &effect.spec;
    let mut table = Table::new();
    table["sql"] = text(&effect.sql);
    optional(&mut table, "when", effect.when.as_ref());
    match spec.expect_rows {
        Some(ExpectRows::Exactly(rows)) => {
            table["expect_rows"] = value(i64::try_from(rows).unwrap_or(i64::MAX))
        }
        Some(_) => table["expect_rows"] = value("any"),
        None => {}
    }
    if !spec.optional.is_empty() {
        table["optional"] = value(spec.optional.iter().map(String::as_str).collect::<Array>());
    }
    let mut params = InlineTable::new();
    for (name, param) in &spec.params {
        params.insert(name, Value::InlineTable(rule_of(param)));
    }
    if !params.is_empty() {
        table["params"] = value(params);
    }
    if let Some(set) = &spec.set {
        set_keys(&mut table, set);
    }
    table
}

fn rule_of(param: &ParamSpec) -> InlineTable {
    let mut rule = InlineTable::new();
    match &param.source {
        Some(ParamSource::Body(pointer)) => drop(rule.insert("pointer", Value::from(pointer.as_str()))),
        Some(ParamSource::Header(header)) => drop(rule.insert("header", Value::from(header.as_str()))),
        _ => {}
    }
    if let Some(Encoding::Base64) = param.encoding {
        rule.insert("encoding", Value::from("base64"));
    }
    if param.as_text {
        rule.insert("as", Value::from("text"));
    }
    rule
}

fn set_keys(table: &mut Table, set: &SetSpec) {
    table["set"] = value(true);
    let mut columns = InlineTable::new();
    for (name, column) in &set.columns {
        let mut rule = rule_of(&column.param);
        rule.insert("type", Value::from(column.type_name.as_str()));
        columns.insert(name, Value::InlineTable(rule));
    }
    if !columns.is_empty() {
        table["columns"] = value(columns);
    }
    match &set.expect {
        ExpectSet::Query(query) => table["expect_rows_sql"] = value(query),
        ExpectSet::Any => table["expect_rows"] = value("any"),
        _ => {}
    }
    if let Some(lock) = &set.lock {
        table["lock"] = value(lock);
    }
}

fn text(text: &Text) -> Item {
    value(text.shown())
}

/// Where a connection string leads, when nothing in it can be a misread piece of a password.
#[cfg(feature = "postgres")]
fn place(url: &Text) -> Option<String> {
    if url.value.matches('@').count() > 1 {
        return None;
    }
    let place = handstamp_stores::postgres::PostgresOptions::parse(&url.value).ok()?.place();
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/[]".contains(c);
    place.chars().all(plain).then_some(place)
}

#[cfg(not(feature = "postgres"))]
fn place(_: &Text) -> Option<String> {
    None
}

fn optional(table: &mut Table, key: &str, written: Option<&Text>) {
    if let Some(written) = written {
        table[key] = text(written);
    }
}

fn time(time: Duration) -> Item {
    value(humantime::format_duration(time).to_string())
}

fn count(count: usize) -> Item {
    value(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Uses;
    use std::path::Path;

    /// The last resort must have nothing to do here: neither what is printed nor Debug has a secret.
    #[test]
    fn nothing_that_is_printed_has_a_secret_even_without_the_last_resort() {
        let lookup = |_: &str| Ok("canary-value".to_owned());
        for (url, option) in [
            ("postgres://u:canary-value@h/db", "canary-value"),
            ("${DATABASE_URL}", "${PASSWORD}"),
            ("host=h user=u password='canary-value'", "canary-value"),
            ("postgres://u:${PASSWORD}@h/db", "canary${PASSWORD}"),
            ("${A}canary-typed${B}", "${A}canary-typed${B}"),
            ("postgres://u:x@canary-tail/x@127.0.0.1/db", "canary-value"),
            ("host=h password = canary-value", "canary-value"),
            (r"host=h password='q\\'canary-value'", "canary-value"),
            (r"host=h password=q\\ canary-value", "canary-value"),
            ("host=h pasword=canary-value", "canary-value"),
            ("postgres://u@h/db?pass%77ord=canary-value", "canary-value"),
            ("postgres://u@h/db&password=canary-value", "canary-value"),
            ("u:canary-value@h/db", "canary-value"),
            ("postgres:/u:canary-value@h", "canary-value"),
            ("postgres://u:q@h/db,postgres://u:canary-value@h/db", "canary-value"),
        ] {
            let text = format!(
                "name = \"w\"\n[source]\ntype = \"kafka\"\nbrokers = \"${{BROKERS}}\"\ntopics = [\"t\"]\ngroup = \"g\"\n\
                 options = {{ \"sasl.password\" = \"{option}\" }}\n[identity]\nkey = true\n[store]\ntype = \"postgres\"\n\
                 url = \"{url}\"\nmigrate_url = \"{url}\"\n[[effect]]\nsql = \"SELECT 1\"\n"
            );
            let config =
                super::super::load::parse(Path::new("p.toml"), &text, Uses::Pipeline, &lookup).unwrap();
            let printed = effective(&config);
            assert!(!printed.contains("canary"), "{printed}");
            assert!(printed.contains("sasl.password"), "{printed}");
            assert!(!format!("{config:?}").contains("canary"), "{config:?}");
        }
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_connection_string_is_shown_as_its_variable_and_its_place() {
        let lookup = |_: &str| Ok("postgres://u:q@h/db".to_owned());
        for (url, shown) in [
            ("${DATABASE_URL}", "# h:5432/db\nurl = \"${DATABASE_URL}\"\n"),
            ("postgres://u:q@h:7/db", "# h:7/db\nurl = \"***\"\n"),
            ("postgres://h/db?port=x", "\nurl = \"***\"\n"),
        ] {
            let text = format!(
                "name = \"w\"\n[source]\ntype = \"file\"\npath = \"-\"\n[identity]\nfield = \"/id\"\n[store]\n\
                 type = \"postgres\"\nurl = \"{url}\"\n[[effect]]\nsql = \"SELECT 1\"\n"
            );
            let config =
                super::super::load::parse(Path::new("p.toml"), &text, Uses::Pipeline, &lookup).unwrap();
            let printed = effective(&config);
            assert!(printed.contains(shown), "{url}: {printed}");
        }
    }
}
