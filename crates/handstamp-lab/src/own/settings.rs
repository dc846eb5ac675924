//! What a run with the user's own program is asked to do.

use crate::error::{LabError, Result};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Everything that decides what happens. `Debug` and the saved form hold no value of the environment.
#[derive(Clone, PartialEq)]
pub struct Settings {
    /// Decides messages and faults.
    pub seed: u64,
    /// The program and its arguments; `{brokers}`, `{topic}`, `{group}`, `{database_url}`, `{folder}` and
    /// `{copy}` are put in.
    pub program: Vec<String>,
    /// How many copies run at the same time.
    pub copies: u32,
    /// Variables beside BROKERS, TOPIC, GROUP and DATABASE_URL; the same words are put in. May hold secrets.
    pub env: Vec<(String, String)>,
    /// What is sent.
    pub messages: Messages,
    /// What happens to the copies.
    pub faults: Faults,
    /// The broker, beside where it is.
    pub broker: BrokerSettings,
    /// How effects are counted.
    pub counted_by: CountedBy,
    /// Parameters that the program's database URL has and the lab's own has not, such as `sslmode=require`.
    pub url_parameters: Option<String>,
    /// SQL that makes the user's tables in the run's database.
    pub setup_sql: Option<String>,
    /// A command that does so, with the variables of the program.
    pub setup_command: Vec<String>,
    /// How long no new effect may come before the run is given up; longer than the session timeout.
    pub patience: Duration,
    /// A drained group is done when no effect came for so long.
    pub quiet: Duration,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("seed", &self.seed)
            .field("copies", &self.copies)
            .field("messages", &self.messages)
            .field("faults", &self.faults)
            .field("broker", &self.broker)
            .finish_non_exhaustive()
    }
}

/// The messages, made from templates in which `{n}`, `{id}`, `{uuid}`, `{account}` and `{amount}` are put in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Messages {
    /// How many different ids.
    pub count: u64,
    /// The id.
    pub id: String,
    /// The record's key; `None`: no key.
    pub key: Option<String>,
    /// The body.
    pub body: String,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// The part of the messages that is sent a second time, at a new offset.
    pub duplicates: f64,
    /// The part of the records that changes places with a later one.
    pub reordered: f64,
    /// The part of the messages that has the bad body.
    pub bad: f64,
    /// The body of a bad message: it must have no effect.
    pub bad_body: String,
    /// How many accounts `{account}` names, from 1.
    pub accounts: u64,
    /// Partitions of the topic.
    pub partitions: i32,
}

/// What happens to the copies, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// How often a copy is killed (SIGKILL) and started again.
    pub kills: u32,
    /// How often a copy is stopped (SIGSTOP) and goes on later (SIGCONT).
    pub stops: u32,
    /// How often every connection to the database is reset.
    pub cuts: u32,
    /// How often every connection to the brokers is reset.
    pub broker_cuts: u32,
    /// How long after the first effect since the last fault, from and to, in milliseconds.
    pub after_ms: (u64, u64),
    /// How long a stop lasts, from and to, in milliseconds.
    pub stop_for_ms: (u64, u64),
}

impl Faults {
    /// Kills, stops, cuts from the database and cuts from the brokers.
    #[must_use]
    pub fn asked(&self) -> [u32; 4] {
        [self.kills, self.stops, self.cuts, self.broker_cuts]
    }
}

/// The broker, beside where it is. `Debug` shows no option's value.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct BrokerSettings {
    /// Its listeners that send clients to the lab's proxy: `LISTENER=TOLD[,…]`, two addresses for each broker.
    pub proxied: Option<String>,
    /// Options of the lab's own clients, as librdkafka names them. May hold secrets.
    pub options: Vec<(String, String)>,
}

impl std::fmt::Debug for BrokerSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.options.iter().map(|(name, _)| name).collect();
        f.debug_struct("BrokerSettings").field("proxied", &self.proxied).field("options", &names).finish()
    }
}

/// How the user's effects are counted: one id for each effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountedBy {
    /// A query whose first column is the id.
    Query(String),
    /// A command that prints one id a line.
    Command(Vec<String>),
}

/// Words that may stand in the templates of messages.
pub const MESSAGE_WORDS: [&str; 5] = ["n", "id", "uuid", "account", "amount"];
/// Words that may stand in arguments and variables.
pub const PROGRAM_WORDS: [&str; 6] = ["brokers", "topic", "group", "database_url", "folder", "copy"];

/// The words in braces of a template, such as `id` of `{"event_id":"{id}"}`.
pub fn words(template: &str) -> impl Iterator<Item = &str> {
    template.match_indices('{').filter_map(|(at, _)| {
        let rest = &template[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_')?;
        (end > 0 && rest[end..].starts_with('}')).then(|| &rest[..end])
    })
}

/// The template with its words put in; a word without a value stays.
pub(super) fn put_in<'v>(template: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let found = words(rest).next().filter(|word| rest[1..].starts_with(word));
        match found.and_then(|word| value(word).map(|value| (word, value))) {
            Some((word, value)) => {
                out.push_str(value);
                rest = &rest[word.len() + 2..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

impl Settings {
    /// What makes no sense is refused before anything is started.
    ///
    /// # Errors
    /// `Usage`, naming the key.
    pub fn checked(self, database_is_sqlite: bool, broker_is_inside: bool) -> Result<Self> {
        let wrong = |what: &str| Err(LabError::usage(what.to_owned()));
        if self.program.is_empty() {
            return wrong("no program: write `lab own -- PROGRAM ARGUMENTS`");
        }
        if self.messages.count == 0 || self.messages.partitions < 1 || self.messages.accounts == 0 {
            return wrong("messages.count, messages.partitions and messages.accounts are at least 1");
        }
        if self.copies == 0 {
            return wrong("program.copies is at least 1");
        }
        let parts = [self.messages.duplicates, self.messages.reordered, self.messages.bad];
        if parts.iter().any(|part| !(0.0..=1.0).contains(part)) {
            return wrong("messages.duplicates, reordered and bad are parts from 0 to 1");
        }
        for (name, (from, to)) in
            [("faults.after", self.faults.after_ms), ("faults.stop_for", self.faults.stop_for_ms)]
        {
            if from > to {
                return wrong(&format!("{name}: the shortest time is longer than the longest"));
            }
        }
        if self.faults.cuts > 0 && database_is_sqlite {
            return wrong(
                "faults.cuts: connections are cut to a Postgres database only; name one by --database",
            );
        }
        if self.url_parameters.is_some() && database_is_sqlite {
            return wrong(
                "database.parameters: a SQLite file has none; name a Postgres database by --database",
            );
        }
        if !self.broker.options.is_empty() && broker_is_inside {
            return wrong("broker.options: the broker inside the lab needs none; name yours by --brokers");
        }
        if self.faults.broker_cuts > 0 && broker_is_inside {
            return wrong(
                "faults.broker_cuts: the broker inside the lab tells its clients its own address, around any proxy; \
                 name one by --brokers whose second listener sends clients to a proxy, and that listener by --proxied",
            );
        }
        if self.faults.broker_cuts > 0 && self.broker.proxied.is_none() {
            return wrong(
                "faults.broker_cuts: a client goes where the broker tells it, around any proxy; name a listener that \
                 sends clients to a port on which only the lab listens: --proxied LISTENER=TOLD, or [broker] proxied",
            );
        }
        Ok(self)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::own) fn settings() -> Settings {
        Settings {
            seed: 7,
            program: vec!["python".into(), "b.py".into()],
            copies: 2,
            env: vec![("PASSWORD".into(), "secret-of-env".into())],
            messages: super::super::messages::tests::messages(),
            faults: Faults {
                kills: 1,
                stops: 0,
                cuts: 0,
                broker_cuts: 0,
                after_ms: (1, 2),
                stop_for_ms: (1, 2),
            },
            broker: BrokerSettings {
                proxied: None,
                options: vec![("sasl.password".into(), "secret-of-broker".into())],
            },
            counted_by: CountedBy::Query("SELECT id FROM ledger".into()),
            url_parameters: None,
            setup_sql: None,
            setup_command: vec![],
            patience: Duration::from_secs(9),
            quiet: Duration::from_secs(1),
        }
    }

    #[test]
    fn cuts_from_what_no_proxy_can_stand_before_are_refused_with_the_reason() {
        let with = |cuts, broker_cuts, proxied: Option<&str>| {
            let mut settings = settings();
            (settings.faults.cuts, settings.faults.broker_cuts) = (cuts, broker_cuts);
            settings.broker.options.clear();
            settings.broker.proxied = proxied.map(str::to_owned);
            settings
        };
        let why = |settings: Settings, sqlite, inside| {
            settings.checked(sqlite, inside).expect_err("refused").to_string()
        };
        assert!(why(with(1, 0, None), true, false).contains("Postgres"));
        assert!(why(with(0, 1, Some("a=b")), false, true).contains("broker inside"));
        assert!(why(with(0, 1, None), false, false).contains("--proxied"));
        with(1, 1, Some("a=b")).checked(false, false).expect("both can be cut");
        with(0, 0, None).checked(true, true).expect("nothing is cut");
        let tls = Settings { url_parameters: Some("sslmode=require".into()), ..with(0, 0, None) };
        assert!(why(tls, true, true).contains("database.parameters"));
        assert!(why(settings(), true, true).contains("broker.options"));
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", settings());
        assert!(shown.contains("b.py") || shown.contains("Settings"), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn words_are_put_in_and_json_stays_json() {
        let value = |word: &str| match word {
            "id" => Some("evt-1"),
            "amount" => Some("7"),
            _ => None,
        };
        let body = r#"{"event_id":"{id}","amount":{amount},"x":{},"y":{"z":{other}}}"#;
        assert_eq!(put_in(body, value), r#"{"event_id":"evt-1","amount":7,"x":{},"y":{"z":{other}}}"#);
        assert_eq!(words(body).collect::<Vec<_>>(), ["id", "amount", "other"]);
        assert_eq!(put_in("{{id}}{id", value), "{evt-1}{id");
        assert_eq!(put_in("", value), "");
    }
}
