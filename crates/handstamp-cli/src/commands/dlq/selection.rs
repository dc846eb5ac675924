//! Those dead letters that are meant, one page after the other.
//!
//! They are counted before anything is done, and the walk ends where that count ended: a message that is sent
//! back and given up again meanwhile is not met a second time.

use super::{PAGE, parked};
use crate::backend::Operations;
use crate::cli::dlq::SelectionArgs;
use crate::dlq::groups::{Alike, GroupName};
use crate::exit::CliError;
use handstamp_core::{ConsumerName, InboxState};
use handstamp_stores::redrive::{DeadLetterFilter, ParkedRow};
use handstamp_stores::rows::{DeadLetterCursor, DeadLetterKey, DeadLetterSummary};
use std::collections::VecDeque;

/// A message that is meant: what is known of it, or a key under which there is none.
#[derive(Debug)]
pub(super) enum Meant {
    /// It is a dead letter.
    Letter(Box<DeadLetterSummary>),
    /// It was named by its key or id, and is parked.
    Parked(Box<ParkedRow>),
    /// It was named and is not there.
    Missing(DeadLetterKey),
}

/// The walk.
pub(super) struct Selection<'a, S> {
    store: &'a S,
    name: &'a ConsumerName,
    /// Named ones still to come; or else the filter's.
    named: Option<VecDeque<DeadLetterKey>>,
    filter: DeadLetterFilter,
    group: Option<GroupName>,
    /// How many are meant and still to come.
    left: u64,
    end: Option<DeadLetterCursor>,
    after: Option<DeadLetterCursor>,
    page: VecDeque<DeadLetterSummary>,
    at_end: bool,
}

impl<'a, S: Operations> Selection<'a, S> {
    /// Counts what is meant.
    ///
    /// # Errors
    /// Nothing is meant, or what the store answered.
    pub(super) async fn count(
        store: &'a S,
        name: &'a ConsumerName,
        args: &SelectionArgs,
    ) -> Result<Self, CliError> {
        let filter = args.filter.filter();
        if args.keys.is_empty() && args.group.is_none() && !args.all && filter == DeadLetterFilter::default()
        {
            return Err(CliError::usage("no dead letter is meant")
                .hint("name KEYs, a filter such as --class, or --group; --all means all of them"));
        }
        let named = (!args.keys.is_empty()).then(|| {
            let mut keys = VecDeque::new();
            args.keys.iter().for_each(|key| {
                if !keys.contains(key) {
                    keys.push_back(*key);
                }
            });
            keys
        });
        let mut selection = Self {
            store,
            name,
            left: named.as_ref().map_or(0, |keys| u64::try_from(keys.len()).unwrap_or(u64::MAX)),
            named,
            filter,
            group: args.group,
            end: None,
            after: None,
            page: VecDeque::new(),
            at_end: false,
        };
        if selection.named.is_none() {
            selection.count_all(args.limit.unwrap_or(u64::MAX)).await?;
            selection.look_among_parked().await?;
        }
        selection.left = selection.left.min(args.limit.unwrap_or(u64::MAX));
        Ok(selection)
    }

    /// How many are still to come.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    async fn count_all(&mut self, limit: u64) -> Result<(), CliError> {
        while self.left < limit {
            let page = self.store.letters(self.name, &self.filter, self.end.clone(), PAGE).await?;
            let Some(last) = page.last() else { break };
            self.end = Some(last.cursor());
            let meant = page.iter().filter(|letter| self.is_meant(letter)).count();
            self.left = self.left.saturating_add(u64::try_from(meant).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// An id names one message, as its key does: a dead letter, or else what is parked under it.
    async fn look_among_parked(&mut self) -> Result<(), CliError> {
        let by_id = DeadLetterFilter { id: self.filter.id.clone(), ..DeadLetterFilter::default() };
        let (Some(id), None, 0, true) = (&by_id.id, self.group, self.left, self.filter == by_id) else {
            return Ok(());
        };
        let state = self.store.inbox_row(self.name, id).await?.map(|row| row.state);
        if state != Some(InboxState::Parked) {
            return Ok(());
        }
        if let Some(row) = parked::with_id(self.store, self.name, id).await? {
            (self.named, self.left) = (Some([row.message.key].into()), 1);
        }
        Ok(())
    }

    fn is_meant(&self, letter: &DeadLetterSummary) -> bool {
        self.group.is_none_or(|group| Alike::of(letter).name() == group)
    }

    /// The next ones, at most so many; none at the end.
    ///
    /// # Errors
    /// What the store answered.
    pub(super) async fn next(&mut self, at_most: u64) -> Result<Vec<Meant>, CliError> {
        let at_most = usize::try_from(at_most.min(self.left)).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        while found.len() < at_most {
            if let Some(named) = &mut self.named {
                let Some(key) = named.pop_front() else { break };
                found.push(self.find(key).await?);
            } else if let Some(letter) = self.page.pop_front() {
                if self.is_meant(&letter) {
                    found.push(Meant::Letter(Box::new(letter)));
                }
            } else if self.at_end {
                break;
            } else {
                self.turn_page().await?;
            }
        }
        self.left -= u64::try_from(found.len()).unwrap_or(self.left).min(self.left);
        Ok(found)
    }

    async fn find(&self, key: DeadLetterKey) -> Result<Meant, CliError> {
        if let Some(row) = self.store.letter(self.name, key).await? {
            return Ok(Meant::Letter(Box::new(row.summary())));
        }
        let parked = self.store.parked_one(self.name, key).await?;
        Ok(parked.map_or(Meant::Missing(key), |row| Meant::Parked(Box::new(row))))
    }

    async fn turn_page(&mut self) -> Result<(), CliError> {
        let after = self.after.take();
        let page = self.store.letters(self.name, &self.filter, after, PAGE).await?;
        let Some(last) = page.last() else {
            self.at_end = true;
            return Ok(());
        };
        let place = |cursor: &DeadLetterCursor| {
            let origin = cursor.origin.clone();
            (cursor.failed_at, origin.topic, origin.partition, origin.offset, cursor.key)
        };
        let (last, end) = (last.cursor(), self.end.as_ref().map(place));
        self.at_end = end.is_some_and(|end| place(&last) >= end);
        self.after = Some(last);
        self.page = page.into();
        Ok(())
    }
}
