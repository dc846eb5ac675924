//! What became of cells and what that shows (pure). Points are words here, so that a program without crash
//! points reads a folder too.

use super::broken::Broken;
use crate::checker::Verdict;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where messages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// A file of JSON lines.
    File,
    /// A topic and a consumer group.
    Kafka,
}

/// Where effects go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// A file.
    Sqlite,
    /// A schema.
    Postgres,
}

impl SourceKind {
    /// As in `[source] type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Kafka => "kafka",
        }
    }
}

impl StoreKind {
    /// As in `[store] type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// A cell by its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Where the process dies.
    pub point: String,
    /// What is done there, and what is not.
    pub about: String,
    /// The how manieth time it gets there.
    pub nth: u32,
    /// Where messages come from.
    pub source: SourceKind,
    /// Where effects go.
    pub store: StoreKind,
    /// A control: what is broken on purpose.
    pub broken: Option<Broken>,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, store) = (self.source.as_str(), self.store.as_str());
        write!(f, "{}:{} on {source} and {store}", self.point, self.nth)?;
        match self.broken {
            Some(broken) => write!(f, ", {}", broken.about()),
            None => Ok(()),
        }
    }
}

/// What the database showed when the process was dead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct AtCrash {
    /// Effects.
    pub effects: u64,
    /// Parked messages.
    pub parked: u64,
    /// Dead letters.
    pub dead: u64,
}

/// What an operator's command was to do, and what its audit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Operated {
    /// Messages that it was to be done to.
    pub meant: u64,
    /// Lines of the audit.
    pub lines: u64,
    /// Different messages that they are about.
    pub messages: u64,
}

impl Operated {
    /// Whether it was done to each message once, as far as the audit knows.
    #[must_use]
    pub fn is_once_each(self) -> bool {
        self.lines == self.meant && self.messages == self.meant
    }
}

/// What became of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Which one.
    pub cell: Named,
    /// The process died at the point every time: SIGKILL, and the mark names it.
    pub hit: bool,
    /// How the armed process ended, when it was not at the point.
    pub otherwise: Option<String>,
    /// What was durable right after the last crash: evidence of where it was.
    pub at_crash: AtCrash,
    /// From what was sent and the database alone.
    pub verdict: Verdict,
    /// Bad messages sent, and dead letters found.
    pub bad: (u64, u64),
    /// What an operator did, where the point is one of an operator's command.
    pub operated: Option<Operated>,
    /// Milliseconds.
    pub took_ms: u64,
}

/// What a cell shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Shows {
    /// What it must.
    AsItMust,
    /// A promise was broken: something doubled, lost, or off.
    Violation,
    /// The point was not hit, or a broken consumer did no harm: the cell proves nothing.
    Nothing,
}

impl Outcome {
    /// Judges the cell.
    #[must_use]
    pub fn shows(&self) -> Shows {
        let harm = match self.cell.broken {
            Some(Broken::NoInbox) => self.verdict.doubled > 0,
            Some(Broken::SettleFirst | Broken::DoneFirst) => self.verdict.lost > 0,
            None if !self.keeps() => return Shows::Violation,
            None => true,
        };
        if self.hit && harm { Shows::AsItMust } else { Shows::Nothing }
    }

    /// Whether every promise was kept.
    fn keeps(&self) -> bool {
        self.verdict.is_clean()
            && self.bad.0 == self.bad.1
            && self.operated.is_none_or(Operated::is_once_each)
    }

    /// What is to be said of it, in a line.
    #[must_use]
    pub fn words(&self) -> String {
        let verdict = &self.verdict;
        let mut words = format!("{} doubled, {} lost", verdict.doubled, verdict.lost);
        if self.bad.0 != self.bad.1 {
            words.push_str(&format!(", {} dead letters for {} bad messages", self.bad.1, self.bad.0));
        }
        if !verdict.accounts_off.is_empty() || verdict.unsent > 0 || verdict.dead_lettered > 0 {
            let (off, unsent) = (verdict.accounts_off.len(), verdict.unsent);
            let dead = verdict.dead_lettered;
            words.push_str(&format!(", {off} accounts off, {unsent} never sent, {dead} good ones dead"));
        }
        if let Some(operated) = self.operated.filter(|operated| !operated.is_once_each()) {
            let Operated { meant, lines, messages } = operated;
            words.push_str(&format!(", {lines} audit lines about {messages} messages for {meant}"));
        }
        if let Some(otherwise) = &self.otherwise {
            words.push_str(&format!("; the point was NOT hit: it {otherwise}"));
        }
        words
    }

    /// The two figures, and the word that must not be missed.
    #[must_use]
    pub fn short(&self) -> String {
        let counts = format!("{}/{}", self.verdict.doubled, self.verdict.lost);
        match self.shows() {
            Shows::AsItMust => counts,
            Shows::Violation => format!("{counts} VIOLATION"),
            Shows::Nothing if self.hit => format!("{counts} no harm"),
            Shows::Nothing => format!("{counts} not hit"),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn named(broken: Option<Broken>) -> Named {
        Named {
            point: "somewhere".into(),
            about: "the commit is durable, nothing is settled".into(),
            nth: 3,
            source: SourceKind::File,
            store: StoreKind::Sqlite,
            broken,
        }
    }

    fn outcome(broken: Option<Broken>, doubled: u64, lost: u64) -> Outcome {
        let verdict = Verdict { doubled, lost, ..Verdict::default() };
        let cell = named(broken);
        let at_crash = AtCrash::default();
        Outcome {
            cell,
            hit: true,
            otherwise: None,
            at_crash,
            verdict,
            bad: (2, 2),
            operated: None,
            took_ms: 1,
        }
    }

    #[test]
    fn a_promise_broken_is_a_violation_and_a_harmless_fault_proves_nothing() {
        assert_eq!(outcome(None, 0, 0).shows(), Shows::AsItMust);
        assert_eq!(outcome(None, 1, 0).shows(), Shows::Violation);
        assert_eq!(outcome(None, 0, 1).shows(), Shows::Violation);
        assert_eq!(Outcome { bad: (2, 1), ..outcome(None, 0, 0) }.shows(), Shows::Violation);
        assert_eq!(Outcome { bad: (2, 3), ..outcome(None, 0, 0) }.shows(), Shows::Violation);
        assert_eq!(Outcome { hit: false, ..outcome(None, 0, 0) }.shows(), Shows::Nothing);
        // A violation is one whether or not the point was hit.
        assert_eq!(Outcome { hit: false, ..outcome(None, 1, 0) }.shows(), Shows::Violation);
        assert_eq!(outcome(Some(Broken::NoInbox), 3, 0).shows(), Shows::AsItMust);
        assert_eq!(outcome(Some(Broken::NoInbox), 0, 0).shows(), Shows::Nothing);
        assert_eq!(outcome(Some(Broken::SettleFirst), 0, 3).shows(), Shows::AsItMust);
        assert_eq!(outcome(Some(Broken::SettleFirst), 3, 0).shows(), Shows::Nothing);
        assert_eq!(outcome(Some(Broken::DoneFirst), 0, 3).shows(), Shows::AsItMust);
        assert_eq!(outcome(Some(Broken::DoneFirst), 3, 0).shows(), Shows::Nothing);
    }

    #[test]
    fn what_an_operator_does_is_audited_once_for_each_message() {
        for (lines, messages, shows) in [
            (9, 9, Shows::AsItMust),
            (8, 8, Shows::Violation),
            (10, 9, Shows::Violation),
            (9, 8, Shows::Violation),
            (10, 10, Shows::Violation),
        ] {
            let operated = Some(Operated { meant: 9, lines, messages });
            let outcome = Outcome { operated, ..outcome(None, 0, 0) };
            assert_eq!(outcome.shows(), shows, "{lines} lines about {messages}");
            let told = format!("{lines} audit lines about {messages} messages for 9");
            assert_eq!(outcome.words().contains(&told), shows == Shows::Violation);
        }
    }
}
