//! `lab faults partition`: one member is cut off from the broker for longer than its session, while it still
//! reaches the database and other members work; and the leader of three brokers is killed.
//!
//! ```text
//!  victim ── proxies ── broker          others ── broker          all ── database
//!              ╳  longer than the session: the others take the victim's partitions over
//!              ╳  the victim finishes what it has in hand, in the database
//!           healed: it comes back, and what it still believes to be its own must not count twice
//! ```
//!
//! The control is the same with database-then-offset and no inbox as the victim and the others: it must double.

use super::fault::Scene;
use super::group::{Around, Group, Member, PARTITIONS};
use super::lanes::{Lane, deal, work_off};
use super::outcome::{self, Outcome};
use super::record::{self, Phase, Seen};
use super::report::{Row, Standing, violation};
use super::settings::{Command, RowKey, Settings};
use super::through::Through;
use crate::checker::{self, Verdict};
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::{self, Entry, Event};
use crate::proxy::{Accept, Ending, Flow, Rules, Way, WayRules};
use crate::subjects::Subject;
use crate::workload::Credit;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// `session.timeout.ms` of every member.
const SESSION_MS: u64 = 2000;
/// How long the broker is cut off: three sessions, and until the others have every partition, at most ten.
const CUT: Duration = Duration::from_millis(3 * SESSION_MS);
const CUT_MAX: Duration = Duration::from_millis(10 * SESSION_MS);
/// How often the broker is asked for committed offsets.
const ASK_EVERY: Duration = Duration::from_millis(250);
/// A healed member is given so long to come back before the next round.
const HEALED: Duration = Duration::from_secs(3);
/// Longest wait for the first effects, and for new ones with a broker dead.
const FIRST_MAX: Duration = Duration::from_secs(60);
/// Work on each message beside the database.
const WORK_MS: u64 = 20;
/// Members of each group, the victim included.
const MEMBERS: u64 = 3;
/// Longest wait for the brokers to say who leads.
const METADATA_MAX: Duration = Duration::from_secs(20);

/// What is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// Nothing gets through.
    BothWays,
    /// What the victim says does not arrive; it hears the broker.
    UpOnly,
    /// What the broker says does not arrive; it hears the victim.
    DownOnly,
    /// The leader of a partition is killed, on three brokers.
    LeaderKilled,
}

impl Split {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::BothWays, Self::UpOnly, Self::DownOnly, Self::LeaderKilled];

    /// For people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::BothWays => "broker cut off, both ways",
            Self::UpOnly => "broker cut off, requests lost",
            Self::DownOnly => "broker cut off, answers lost",
            Self::LeaderKilled => "three brokers, leader killed",
        }
    }

    /// Whether it needs three brokers.
    pub(super) fn needs_three(self) -> bool {
        self == Self::LeaderKilled
    }

    fn rules(self) -> Rules {
        let stalled = WayRules { flow: Flow::Stall, ..WayRules::default() };
        match self {
            Self::UpOnly => Rules { accept: Accept::HalfOpen, ..Rules::NONE }.with(Way::Up, stalled),
            Self::DownOnly => Rules { accept: Accept::HalfOpen, ..Rules::NONE }.with(Way::Down, stalled),
            Self::BothWays | Self::LeaderKilled => Rules::partition(),
        }
    }
}

/// What came of one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartitionRow {
    /// What was cut.
    pub split: Split,
    /// Who was cut off.
    pub subject: Subject,
    /// How often.
    pub rounds: u32,
    /// Rounds in which every partition went on while the victim, or a broker, was away.
    pub taken_over: u32,
    /// Between the victim and the brokers; between all and them where a leader was killed.
    pub broker: Through,
    /// Between the subjects and the database.
    pub database: Through,
    /// Whether everything was handled and settled in the end.
    pub drained: bool,
    /// The verdict of the checker.
    pub verdict: Verdict,
}

impl PartitionRow {
    /// Out of a complete history.
    pub(super) fn of(
        split: Split,
        subject: Subject,
        rounds: u32,
        entries: &[Entry],
        sent: &[Credit],
    ) -> Self {
        let taken = |seen: &Seen| u32::from(*seen == Seen::Round { taken_over: true });
        let (database, broker, _) = record::passed(entries);
        Self {
            split,
            subject,
            rounds,
            taken_over: record::seen(entries).map(|(_, seen)| taken(seen)).sum(),
            broker,
            database,
            drained: record::drained(entries),
            verdict: checker::judge(sent, &history::end_state(entries).cloned().unwrap_or_default()),
        }
    }

    fn standing(&self) -> Standing {
        let around = if self.broker.bytes_down == 0 || self.database.bytes_down == 0 {
            Some("the subjects went around a proxy".to_owned())
        } else if self.broker.connections_lost == 0 {
            Some("no connection was cut".to_owned())
        } else {
            None
        };
        if !self.subject.promises() {
            let Verdict { lost, unsent, accounts_off, .. } = &self.verdict;
            let broken = *lost > 0 || *unsent > 0 || !accounts_off.is_empty();
            let why = if broken {
                Some(format!("the control itself is broken: {}", violation(&self.verdict)))
            } else if self.verdict.doubled == 0 {
                Some("the control without an inbox doubled nothing: this proves nothing".to_owned())
            } else {
                // That something doubled says that somebody took over.
                around
            };
            return why.map_or(Standing::Control, Standing::Inconclusive);
        }
        if !self.verdict.is_clean() {
            return Standing::Violated(violation(&self.verdict));
        }
        if !self.drained {
            return Standing::Violated("messages did not flow again by themselves".to_owned());
        }
        let missed = self.rounds.saturating_sub(self.taken_over);
        let alone = (missed > 0 || self.rounds == 0)
            .then(|| format!("in {missed} of {} rounds nobody took over", self.rounds));
        around.or(alone).map_or(Standing::Held, Standing::Inconclusive)
    }

    /// Its row of the table.
    pub(super) fn row(&self, key: RowKey) -> Row {
        Row {
            name: key.name(),
            cells: vec![
                ("doubled", self.verdict.doubled.to_string()),
                ("lost", self.verdict.lost.to_string()),
                ("dead letters", self.verdict.dead_lettered.to_string()),
                ("taken over", format!("{} of {}", self.taken_over, self.rounds)),
                ("broker bytes", (self.broker.bytes_up + self.broker.bytes_down).to_string()),
                ("connections lost", self.broker.connections_lost.to_string()),
                ("database bytes", (self.database.bytes_up + self.database.bytes_down).to_string()),
            ],
            standing: self.standing(),
        }
    }
}

/// Runs every split for ours and the first one for the control too, and says what that proves.
///
/// # Errors
/// `Usage` when the folder holds a run; a server does not start or answer, a member ends by itself,
/// `Cancelled`.
pub fn run(
    around: &Around<'_>,
    splits: &[Split],
    subject: Subject,
    rounds: u32,
    side_by_side: usize,
) -> Result<Outcome> {
    let command = Command::Partition { subject, splits: splits.to_vec(), rounds };
    let settings = Settings { seed: around.seed, side_by_side, command };
    settings.save(around.folder)?;
    work(around, &settings, side_by_side)
}

/// Does the rows that are left.
pub(super) fn work(around: &Around<'_>, settings: &Settings, side_by_side: usize) -> Result<Outcome> {
    let Command::Partition { rounds, .. } = settings.command else {
        return Err(settings.other_than("partition", around.folder));
    };
    let lanes = lanes(outcome::left(around.folder, settings), side_by_side);
    work_off(around, lanes, side_by_side, &|around, scene, key| one(around, scene, key, rounds))?;
    outcome::recompute(around.folder)
}

/// Three brokers are started for their own rows alone.
fn lanes(rows: Vec<RowKey>, side_by_side: usize) -> Vec<Lane> {
    let needs_three = |key: &RowKey| matches!(key, RowKey::Partition(split, _) if split.needs_three());
    let (three, alone): (Vec<RowKey>, Vec<RowKey>) = rows.into_iter().partition(needs_three);
    let rest = if three.is_empty() { side_by_side } else { side_by_side.saturating_sub(1) };
    let mut lanes = deal("kafka3", "postgres", &three, 1);
    lanes.extend(deal("kafka", "postgres", &alone, rest));
    lanes
}

/// Enough that the group is not done before the last round is.
fn messages(rounds: u32) -> u64 {
    let all = (CUT + HEALED * 2) * rounds + Duration::from_secs(10);
    u64::try_from(all.as_millis()).unwrap_or(u64::MAX) * MEMBERS / WORK_MS
}

fn one(around: &Around<'_>, scene: &mut Scene<'_>, key: RowKey, rounds: u32) -> Result<()> {
    let RowKey::Partition(split, subject) = key else {
        return Err(LabError::usage("no row of a partition"));
    };
    let mut group = scene.group(key, messages(rounds))?.with_session_timeout(SESSION_MS);
    let (database, proxied, direct) = (scene.database_url(), scene.bootstrap(), scene.direct());
    group.note(scene.passed(key));
    let others = if split.needs_three() { &proxied } else { &direct };
    let mut members = vec![group.start(&proxied, &database, WORK_MS)?];
    for _ in 1..MEMBERS {
        members.push(group.start(others, &database, WORK_MS)?);
    }
    if !group.watch.wait_for_more(50, FIRST_MAX)? {
        members.iter_mut().try_for_each(Member::check)?;
    }
    for round in 0..rounds {
        // All partitions are handed out by then.
        group.watch.linger(HEALED)?;
        group.begin(Phase::Fault);
        let taken_over = if split.needs_three() {
            leader_dies(scene, &mut group)?
        } else {
            // A control needs nobody to take over everything: that something doubles says enough.
            let at_most = if subject.promises() { CUT_MAX } else { CUT };
            cut_off(scene, split, round, at_most, &mut group)?
        };
        group.begin(Phase::Returned);
        group.note(Event::Fault(Seen::Round { taken_over }));
        members.iter_mut().try_for_each(Member::check)?;
    }
    group.watch.linger(HEALED)?;
    group.begin(Phase::Rest);
    let mut last = vec![group.start(&direct, &database, 0)?, group.start(&direct, &database, 0)?];
    for mut member in members {
        member.ask_to_end()?;
        member.wait(around.cancel)?;
    }
    group.drain(&mut last)?;
    // A member without a handler for it dies of SIGTERM; everything is settled by then.
    for member in &mut last {
        member.ask_to_end()?;
        member.wait(around.cancel)?;
    }
    group.note(scene.passed(key));
    group.finish()
}

/// Cuts the victim off, and says whether the others had every partition meanwhile.
fn cut_off(
    scene: &Scene<'_>,
    split: Split,
    round: u32,
    at_most: Duration,
    group: &mut Group<'_>,
) -> Result<bool> {
    let begun = Instant::now();
    scene.brokers(|proxy| proxy.set(split.rules()));
    // Before the session is over nobody may take over.
    group.watch.linger(Duration::from_millis(SESSION_MS / 2))?;
    let first = group.committed()?;
    group.watch.linger(CUT.saturating_sub(begun.elapsed()))?;
    let ends = group.ends()?;
    let took = loop {
        if went_on(&first, &group.committed()?, &ends) {
            break true;
        }
        if begun.elapsed() >= at_most {
            break false;
        }
        group.watch.linger(ASK_EVERY)?;
    };
    scene.brokers(|proxy| {
        proxy.set(Rules::NONE);
        // Healed in turn by what was held back going on, and by a reset.
        if round % 2 == 1 {
            proxy.cut(Ending::Reset);
        }
    });
    Ok(took)
}

/// Kills the leader of a partition, waits for new effects, and starts it again.
fn leader_dies(scene: &Scene<'_>, group: &mut Group<'_>) -> Result<bool> {
    let leader = leader(&scene.direct(), group.topic())?;
    scene.kill_broker(leader)?;
    group.watch.linger(Duration::from_millis(SESSION_MS))?;
    let dead_since = group.watch.effects()?;
    let took = group.watch.wait_for_more(dead_since + 50, FIRST_MAX)?;
    scene.start_broker(leader)?;
    Ok(took)
}

fn went_on(first: &BTreeMap<i32, i64>, last: &BTreeMap<i32, i64>, ends: &BTreeMap<i32, i64>) -> bool {
    (0..PARTITIONS).all(|partition| {
        let of = |map: &BTreeMap<i32, i64>| map.get(&partition).copied().unwrap_or(0);
        of(last) > of(first) || of(last) >= of(ends)
    })
}

/// The number of the broker that leads the first partition.
fn leader(bootstrap: &str, topic: &str) -> Result<u8> {
    let away = |what: &str| LabError::new(LabErrorKind::Unreachable, format!("who leads {topic}: {what}"));
    let mut config = rdkafka::ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("log_level", "3");
    let client: BaseConsumer = config.create().map_err(|error| away("no client").because(error))?;
    let metadata =
        client.fetch_metadata(Some(topic), METADATA_MAX).map_err(|error| away("no answer").because(error))?;
    let leader =
        metadata.topics().first().and_then(|topic| topic.partitions().first()).map(|part| part.leader());
    leader.and_then(|leader| u8::try_from(leader).ok()).ok_or_else(|| away("nobody does"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn going_on_means_every_partition_that_has_something_left() {
        let all =
            |offset: i64| (0..PARTITIONS).map(|partition| (partition, offset)).collect::<BTreeMap<_, _>>();
        assert!(went_on(&all(5), &all(6), &all(10)));
        assert!(went_on(&all(10), &all(10), &all(10)));
        let mut one_stands = all(6);
        one_stands.insert(3, 5);
        assert!(!went_on(&all(5), &one_stands, &all(10)));
        assert!(went_on(&BTreeMap::new(), &all(1), &all(10)));
        assert!(!went_on(&BTreeMap::new(), &BTreeMap::new(), &all(10)));
    }

    #[test]
    fn a_row_needs_a_take_over_and_a_control_needs_a_double() {
        let through = Through { bytes_up: 1, bytes_down: 1, connections_lost: 1, ..Through::default() };
        let row = PartitionRow {
            split: Split::BothWays,
            subject: Subject::Handstamp,
            rounds: 2,
            taken_over: 2,
            broker: through,
            database: through,
            drained: true,
            verdict: Verdict::default(),
        };
        assert_eq!(row.standing(), Standing::Held);
        let inconclusive = |row: PartitionRow| matches!(row.standing(), Standing::Inconclusive(_));
        assert!(inconclusive(PartitionRow { taken_over: 1, ..row.clone() }));
        assert!(inconclusive(PartitionRow { rounds: 0, taken_over: 0, ..row.clone() }));
        // Nothing through a proxy, or nothing cut.
        for (broker, database) in [
            (Through::default(), through),
            (through, Through::default()),
            (Through { bytes_down: 0, ..through }, through),
            (Through { connections_lost: 0, ..through }, through),
        ] {
            assert!(inconclusive(PartitionRow { broker, database, ..row.clone() }));
        }
        let doubled = Verdict { doubled: 1, ..Verdict::default() };
        let violated = PartitionRow { verdict: doubled.clone(), ..row.clone() };
        assert!(matches!(violated.standing(), Standing::Violated(_)));
        assert!(matches!(PartitionRow { drained: false, ..row.clone() }.standing(), Standing::Violated(_)));
        let control = PartitionRow { subject: Subject::B, taken_over: 0, ..row };
        assert!(inconclusive(control.clone()));
        let lost = Verdict { lost: 1, ..doubled.clone() };
        assert!(inconclusive(PartitionRow { verdict: lost, ..control.clone() }));
        let control = PartitionRow { verdict: doubled, ..control };
        assert_eq!(control.standing(), Standing::Control);
        assert!(inconclusive(PartitionRow { broker: Through::default(), ..control }));
    }

    #[test]
    fn three_brokers_are_started_for_their_own_row_and_the_control_is_one_more() {
        for side_by_side in 1..6 {
            let command =
                Command::Partition { subject: Subject::Handstamp, splits: Split::ALL.to_vec(), rounds: 1 };
            let lanes = lanes(Settings { seed: 1, side_by_side, command }.rows(), side_by_side);
            let rows: usize = lanes.iter().map(|lane| lane.rows.len()).sum();
            assert!(rows == Split::ALL.len() + 1 && lanes.len() == side_by_side.max(2), "{lanes:?}");
            let three: Vec<&Lane> = lanes.iter().filter(|lane| lane.kafka == "kafka3").collect();
            assert!(three.len() == 1 && three[0].rows.len() == 1, "{lanes:?}");
        }
    }
}
