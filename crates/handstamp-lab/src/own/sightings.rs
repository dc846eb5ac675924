//! When effects of ids were seen (pure but for the telling): as exact as the lab's looks are close, because a
//! user's query tells no times.

use super::home::Effects;
use super::messages::Workload;
use super::outcome::{Doubled, NAMED_MAX};
use crate::history::{Event, History};
use std::collections::BTreeMap;

/// Most effects of one id whose times are kept.
const OF_ONE_MAX: u64 = 8;

/// Times since the run began, in milliseconds, by id.
#[derive(Debug, Default)]
pub(super) struct Sightings {
    seen: BTreeMap<String, Vec<u64>>,
}

impl Sightings {
    /// Notes what is there now and was not before.
    pub(super) fn note(&mut self, effects: &Effects, now_ms: u64) {
        for (id, times) in effects {
            let wanted = usize::try_from((*times).min(OF_ONE_MAX)).unwrap_or(0);
            match self.seen.get_mut(id) {
                Some(seen) => seen.resize(seen.len().max(wanted), now_ms),
                None => _ = self.seen.insert(id.clone(), vec![now_ms; wanted]),
            }
        }
    }

    /// Every effect beyond the first, in order.
    fn repeated(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.seen.values().flat_map(|seen| seen.iter().skip(1)).copied().collect();
        times.sort_unstable();
        times
    }

    /// When the nearest message before a missing one, under its key, had its effect.
    fn before(&self, work: &Workload, id: &str) -> Option<u64> {
        let at = work.records.iter().position(|record| record.id == id)?;
        let key = &work.records[at].key;
        let earlier = work.records[..at].iter().rev().filter(|record| record.key == *key);
        earlier.filter_map(|record| self.seen.get(&record.id)?.first().copied()).next()
    }

    /// Tells the history when effects repeated others, and how the first doubled and missing ids came about.
    pub(super) fn tell(&self, history: &History, work: &Workload, effects: &Effects) {
        history.note(Event::Repeated { times_ms: self.repeated() });
        let records = work.records.iter().map(|record| record.id.as_str());
        for id in Doubled::of(effects, records).named() {
            let seen_ms = self.seen.get(id).cloned().unwrap_or_default();
            history.note(Event::Traced { id: id.to_owned(), sent: sent(work, id), seen_ms, before_ms: None });
        }
        for id in work.good.iter().filter(|id| !effects.contains_key(*id)).take(NAMED_MAX) {
            let (sent, before_ms) = (sent(work, id), self.before(work, id));
            history.note(Event::Traced { id: id.clone(), sent, seen_ms: Vec::new(), before_ms });
        }
    }
}

/// Records that carry an id.
fn sent(work: &Workload, id: &str) -> u64 {
    u64::try_from(work.records.iter().filter(|record| record.id == id).count()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::messages::{tests::messages, workload};
    use super::super::settings::Messages;
    use super::*;
    use crate::history;

    #[test]
    fn the_doubled_ones_whose_way_is_told_are_those_that_are_named() {
        let twice = Messages { duplicates: 0.5, ..messages() };
        let work = workload(1, &twice);
        let all: Effects = work.good.iter().map(|id| (id.clone(), 2)).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        let history = History::create(&path).unwrap();
        Sightings::default().tell(&history, &work, &all);
        history.finish().unwrap();
        let told: Vec<u64> = history::read(&path)
            .unwrap()
            .into_iter()
            .filter_map(|entry| if let Event::Traced { sent, .. } = entry.event { Some(sent) } else { None })
            .collect();
        assert_eq!(told, [1; 10], "enough were sent once");
    }

    fn effects(pairs: &[(&str, u64)]) -> Effects {
        pairs.iter().map(|(id, times)| ((*id).to_owned(), *times)).collect()
    }

    #[test]
    fn each_effect_has_the_time_at_which_it_was_first_seen() {
        let mut sightings = Sightings::default();
        sightings.note(&effects(&[("a", 1)]), 100);
        sightings.note(&effects(&[("a", 1), ("b", 2)]), 200);
        sightings.note(&effects(&[("a", 3), ("b", 2)]), 300);
        // A count that failed half way, or a database that was restored, takes nothing back.
        sightings.note(&effects(&[("a", 1)]), 400);
        assert_eq!(sightings.seen["a"], [100, 300, 300]);
        assert_eq!(sightings.repeated(), [200, 300, 300]);
        sightings.note(&effects(&[("a", 1_000_000)]), 500);
        assert_eq!(sightings.seen["a"].len(), 8);
    }

    #[test]
    fn a_missing_one_is_told_with_the_time_of_the_one_before_it_under_its_key() {
        let once = Messages { duplicates: 0.0, reordered: 0.0, ..messages() };
        let work = workload(1, &once);
        let missing = work.records.iter().rev().find(|record| work.good.contains(&record.id)).unwrap();
        let forerunner = work
            .records
            .iter()
            .rev()
            .find(|record| {
                record.key == missing.key && record.id != missing.id && work.good.contains(&record.id)
            })
            .unwrap();
        let mut all: Effects = work.good.iter().map(|id| (id.clone(), 1)).collect();
        all.remove(&missing.id);
        let mut sightings = Sightings::default();
        sightings.note(&effects(&[(&forerunner.id, 1)]), 70);
        sightings.note(&all, 90);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history.jsonl");
        let history = History::create(&path).unwrap();
        sightings.tell(&history, &work, &all);
        history.finish().unwrap();
        let told: Vec<Event> = history::read(&path).unwrap().into_iter().map(|entry| entry.event).collect();
        let traced = Event::Traced { id: missing.id.clone(), sent: 1, seen_ms: vec![], before_ms: Some(70) };
        assert_eq!(told, [Event::Repeated { times_ms: vec![] }, traced]);
    }
}
