//! The rows of start records and crashes, each under the file's write lock: who calls has it.

use super::failure::damaged;
use super::inbox::check_consumer;
use super::migrate::own_error;
use super::parked::{self, Which};
use handstamp_core::parked::{Dedup, ParkedMessage};
use handstamp_core::{
    Company, ConsumerKey, Crash, DeadLetter, MessageId, Orphan, Owner, Start, Starter, StoreError, TakenOver,
    Timestamp,
};
use rusqlite::{Connection, Row, ToSql, params};
use std::collections::HashSet;
use std::sync::Arc;

const START: &str = include_str!("sql/start.sql");
const END: &str = include_str!("sql/start_end.sql");
const END_ALL: &str = include_str!("sql/start_end_all.sql");
const KNOWN: &str = include_str!("sql/start_known.sql");
const CRASHED: &str = include_str!("sql/start_crashed.sql");
const COUNTED: &str = include_str!("sql/start_counted.sql");
const ABSOLVE_KNOWN: &str = include_str!("sql/crashes_known.sql");
const TAKE_OVER: &str = include_str!("sql/start_take_over.sql");
const LOOK: &str = include_str!("sql/start_look.sql");
const PARKED: &str = include_str!("sql/start_parked.sql");
const ANY: &str = include_str!("sql/start_parked_any.sql");
const OTHERS: &str = include_str!("sql/start_parked_others.sql");
const OWN: &str = include_str!("sql/start_parked_own.sql");
const PARKED_CRASHED: &str = include_str!("sql/start_parked_crashed.sql");
const PARKED_END_ALL: &str = include_str!("sql/start_parked_end_all.sql");
const ANY_CRASH: &str = include_str!("sql/crashes_any.sql");
const CRASHES: &str = include_str!("sql/crashes.sql");
const WITHDRAW: &str = include_str!("sql/crashes_withdraw.sql");

/// A start of a parked message by somebody else: which, whose, and when.
pub(super) type Others = HashSet<(Dedup, [u8; 16], i64)>;
/// A start of a message alone in a lane by somebody else: where, whose, and when.
pub(super) type OthersInLanes = HashSet<(Arc<str>, Owner, Timestamp)>;

/// Our rows of a consumer.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) consumer: &'a ConsumerKey,
}

impl Rows<'_> {
    pub(super) fn run(self, doing: &str, sql: &str, values: &[&dyn ToSql]) -> Result<usize, StoreError> {
        let failed = |e| own_error(self.connection, doing, e);
        self.connection.prepare_cached(sql).map_err(failed)?.execute(values).map_err(failed)
    }

    /// What a statement that asks whether there is something answers.
    fn says(self, sql: &str, values: &[&dyn ToSql]) -> Result<bool, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut asked = self.connection.prepare_cached(sql).map_err(failed)?;
        asked.query_row(values, |row| row.get(0)).map_err(failed)
    }

    pub(super) fn end_lane(self, lane: &Arc<str>, owner: &Owner) -> Result<(), StoreError> {
        self.run("ending start records", END, params![self.consumer.id, lane, owner.0]).map(drop)
    }

    pub(super) fn end_parked_of(self, owner: &Owner) -> Result<(), StoreError> {
        self.run("ending start records", PARKED_END_ALL, params![self.consumer.id, owner.0]).map(drop)
    }

    /// An owner that does anything lives: nothing died with it.
    pub(super) fn take_back(self, owner: &Owner) -> Result<(), StoreError> {
        self.run("taking crashes back", WITHDRAW, params![self.consumer.id, owner.0]).map(drop)
    }

    /// Starts parked messages in place of those that the owner had started.
    pub(super) fn start_parked(
        self,
        keys: &[Dedup],
        by: &Starter,
        company: Company,
    ) -> Result<(), StoreError> {
        check_consumer(self.connection, self.consumer)?;
        self.take_back(&by.owner)?;
        self.end_parked_of(&by.owner)?;
        let is_alone = keys.len() == 1 && company == Company::None;
        for dedup in keys {
            let values = params![self.consumer.id, dedup, by.owner.0, by.node, is_alone];
            self.run("writing start records", PARKED, values)?;
        }
        Ok(())
    }

    /// Who else had started some of these messages alone, and is not counted for it.
    pub(super) fn others(self, keys: &[Dedup], owner: &Owner) -> Result<Others, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut others = Others::new();
        if !self.says(ANY, params![self.consumer.id, owner.0])? {
            return Ok(others);
        }
        let mut look = self.connection.prepare_cached(OTHERS).map_err(failed)?;
        for dedup in keys {
            let mut rows = look.query(params![self.consumer.id, dedup, owner.0]).map_err(failed)?;
            while let Some(row) = rows.next().map_err(failed)? {
                let of = || -> rusqlite::Result<_> { Ok((*dedup, row.get(0)?, row.get(1)?)) };
                others.insert(of().map_err(failed)?);
            }
        }
        Ok(others)
    }

    /// Whoever else had started one of these messages alone died of it.
    pub(super) fn count_others(self, keys: &[Dedup], owner: &Owner) -> Result<(), StoreError> {
        keys.iter().try_for_each(|dedup| {
            let values = params![self.consumer.id, dedup, owner.0];
            self.run("counting crashes", PARKED_CRASHED, values).map(drop)
        })
    }

    /// How many parked messages the owner has started.
    pub(super) fn own(self, owner: &Owner) -> Result<usize, StoreError> {
        let failed = |e| own_error(self.connection, "looking for start records", e);
        let mut own = self.connection.prepare_cached(OWN).map_err(failed)?;
        let own: i64 = own.query_row(params![self.consumer.id, owner.0], |row| row.get(0)).map_err(failed)?;
        Ok(usize::try_from(own).unwrap_or_default())
    }

    fn crashes(self, dedup: &Dedup) -> Result<Vec<Crash>, StoreError> {
        let failed = |e| own_error(self.connection, "reading crashes", e);
        let mut crashes = self.connection.prepare_cached(CRASHES).map_err(failed)?;
        let read = |row: &Row<'_>| {
            let by = Starter { owner: Owner(row.get(0)?), node: row.get(1)? };
            Ok(Crash { dedup: *dedup, by, at: Timestamp(row.get(2)?), is_new: false })
        };
        let rows = crashes.query_map(params![self.consumer.id, dedup], read).map_err(failed)?;
        rows.collect::<Result<_, _>>().map_err(failed)
    }
}

pub(super) fn start_lane(
    connection: &Connection,
    consumer: &ConsumerKey,
    start: &Start,
) -> Result<(), StoreError> {
    let failed = |e| own_error(connection, "writing a start record", e);
    let Start { by, lane, first, last, count, alone } = start;
    let stored = alone.as_ref().map(MessageId::to_stored);
    let dedup = alone.as_ref().map(DeadLetter::dedup_of_id);
    let mut record = connection.prepare_cached(START).map_err(failed)?;
    let values = params![consumer.id, lane, by.owner.0, by.node, first, last, count, stored, dedup];
    match record.execute(values) {
        Ok(_) => Ok(()),
        Err(error) => {
            // No row of the consumer to refer to: that is what is wrong.
            check_consumer(connection, consumer)?;
            Err(failed(error))
        }
    }
}

/// What others left on lanes, and those of them that are to be waited for: who was alone, is not counted and was not
/// seen before.
pub(super) fn take_over(
    connection: &Connection,
    consumer: &ConsumerKey,
    owner: &Owner,
    lanes: &[Arc<str>],
    seen: &OthersInLanes,
) -> Result<(TakenOver, OthersInLanes), StoreError> {
    let rows = Rows { connection, consumer };
    let mut taken = TakenOver::default();
    for lane in lanes {
        let of_lane = params![consumer.id, lane, owner.0];
        rows.run("forgetting crashes of known messages", ABSOLVE_KNOWN, of_lane)?;
        rows.run("removing start records of known messages", KNOWN, of_lane)?;
        let failed = |e| own_error(connection, "reading start records", e);
        let mut orphans = connection.prepare_cached(TAKE_OVER).map_err(failed)?;
        let mut found = orphans.query(of_lane).map_err(failed)?;
        while let Some(row) = found.next().map_err(failed)? {
            taken.orphans.push(orphan_of(row, lane).map_err(failed)??);
        }
    }
    let (mut alone, mut new, mut unsure) = (HashSet::new(), HashSet::new(), OthersInLanes::new());
    for Orphan { start, at } in &taken.orphans {
        let Some(dedup) = start.alone.as_ref().map(DeadLetter::dedup_of_id) else { continue };
        let (lane, by) = (Arc::clone(&start.lane), start.by.owner);
        alone.insert(dedup);
        if seen.contains(&(Arc::clone(&lane), by, *at)) {
            if rows.run("counting crashes", CRASHED, params![consumer.id, lane, by.0])? > 0 {
                new.insert((dedup, by));
            }
        } else if !rows.says(COUNTED, params![consumer.id, dedup, by.0])? {
            unsure.insert((lane, by, *at));
        }
    }
    for dedup in &alone {
        taken.crashes.extend(rows.crashes(dedup)?);
    }
    for crash in &mut taken.crashes {
        crash.is_new = new.contains(&(crash.dedup, crash.by.owner));
    }
    taken.crashes.sort_by_key(|crash| (crash.at, crash.by.owner));
    Ok((taken, unsure))
}

fn orphan_of(row: &Row<'_>, lane: &Arc<str>) -> rusqlite::Result<Result<Orphan, StoreError>> {
    let stored: Option<Vec<u8>> = row.get(6)?;
    let Ok(alone) = stored.as_deref().map(MessageId::from_stored).transpose() else {
        return Ok(Err(damaged("the id in its start record is none")));
    };
    let start = Start {
        by: Starter { owner: Owner(row.get(0)?), node: row.get(1)? },
        lane: Arc::clone(lane),
        first: row.get(3)?,
        last: row.get(4)?,
        count: row.get(5)?,
        alone,
    };
    Ok(Ok(Orphan { start, at: Timestamp(row.get(2)?) }))
}

/// Ends start records of an owner: those of lanes, or all of them and those of parked messages.
pub(super) fn end(rows: Rows<'_>, owner: &Owner, lanes: Option<&[Arc<str>]>) -> Result<(), StoreError> {
    match lanes {
        Some(lanes) => lanes.iter().try_for_each(|lane| rows.end_lane(lane, owner)),
        None => {
            rows.run("ending start records", END_ALL, params![rows.consumer.id, owner.0])?;
            rows.end_parked_of(owner)
        }
    }
}

/// The first that are due, up to one that another owner had started; that one alone where it is the first, and then
/// true.
pub(super) fn due_together(
    connection: &Connection,
    consumer: &ConsumerKey,
    max: usize,
    owner: &Owner,
) -> Result<(Vec<Dedup>, bool), StoreError> {
    let failed = |e| own_error(connection, "looking for what is due", e);
    let mut look = connection.prepare_cached(LOOK).map_err(failed)?;
    let max = i64::try_from(max).unwrap_or(i64::MAX);
    let mut rows = look.query(params![consumer.id, max, owner.0]).map_err(failed)?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let is_suspect: bool = row.get(1).map_err(failed)?;
        if is_suspect && !keys.is_empty() {
            break;
        }
        keys.push(row.get(0).map_err(failed)?);
        if is_suspect {
            return Ok((keys, true));
        }
    }
    Ok((keys, false))
}

pub(super) fn take_with_crashes(
    connection: &Connection,
    consumer: &ConsumerKey,
    keys: &[Dedup],
    which: Which,
) -> Result<Vec<ParkedMessage>, StoreError> {
    let mut taken = parked::take_again(connection, consumer, keys, which)?;
    let rows = Rows { connection, consumer };
    if rows.says(ANY_CRASH, params![consumer.id])? {
        for row in &mut taken {
            row.crashes = rows.crashes(&row.dedup)?;
        }
    }
    Ok(taken)
}
