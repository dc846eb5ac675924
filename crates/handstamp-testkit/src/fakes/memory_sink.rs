//! A sink in memory: named destinations that grow.

use super::SinkBreak;
use crate::Payload;
use handstamp_core::{Header, Record, Sink, SinkError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A larger value is refused, as a broker does.
const VALUE_MAX_BYTES: usize = 1 << 20;
/// What a broken sink takes for large.
const LARGE_BYTES: usize = 64 << 10;

type Destinations = BTreeMap<String, Vec<Payload>>;

/// A sink whose clones share their destinations.
#[derive(Debug, Clone, Default)]
pub struct MemorySink {
    destinations: Arc<Mutex<Destinations>>,
    away: bool,
    broken: Option<SinkBreak>,
}

impl MemorySink {
    /// With no destination yet; each begins with its first record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with a fault.
    #[must_use]
    pub fn broken(broken: Option<SinkBreak>) -> Self {
        Self { broken, ..Self::default() }
    }

    /// The same destinations out of reach.
    #[must_use]
    pub fn away(&self) -> Self {
        Self { away: true, ..self.clone() }
    }

    /// What a destination holds, in order.
    #[must_use]
    pub fn read(&self, destination: &str) -> Vec<Payload> {
        self.lock().get(destination).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Destinations> {
        self.destinations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, broken: SinkBreak) -> bool {
        self.broken == Some(broken)
    }

    /// What is kept of a record under which name, and its answer.
    fn take(&self, number: usize, record: &Record) -> (Vec<(String, Payload)>, Result<(), SinkError>) {
        if self.away {
            if self.is(SinkBreak::AnswersOkWhileAway) {
                return (vec![], Ok(()));
            }
            let transient = !self.is(SinkBreak::CallsAwayLasting);
            return (vec![], Err(SinkError::new(transient, "the destination is away")));
        }
        let size = record.value.as_ref().map_or(0, |value| value.len());
        let topic = if self.is(SinkBreak::IgnoresDestinations) { "topic" } else { &*record.origin.topic };
        let kept = (topic.to_owned(), self.damage(Payload::of(record)));
        if size > VALUE_MAX_BYTES {
            return match self.broken {
                Some(SinkBreak::KeepsUnfit) => (vec![kept], Ok(())),
                Some(SinkBreak::DropsUnfit) => (vec![], Ok(())),
                broken => {
                    let transient = broken == Some(SinkBreak::CallsUnfitTransient);
                    (vec![], Err(SinkError::new(transient, "the value is larger than 1 MiB")))
                }
            };
        }
        match self.broken {
            Some(SinkBreak::LosesLarge) if size > LARGE_BYTES => (vec![], Ok(())),
            Some(SinkBreak::DoublesLarge) if size > LARGE_BYTES => (vec![kept.clone(), kept], Ok(())),
            Some(SinkBreak::CountsToAThousand) if number >= 1_000 => (vec![], Ok(())),
            _ => (vec![kept], Ok(())),
        }
    }

    fn damage(&self, mut payload: Payload) -> Payload {
        let cut = |bytes: bytes::Bytes| {
            bytes.iter().position(|byte| *byte == 0).map_or(bytes.clone(), |at| bytes.slice(..at))
        };
        match self.broken {
            Some(SinkBreak::DropsKeys) => payload.key = None,
            Some(SinkBreak::DropsHeaders) => payload.headers.clear(),
            Some(SinkBreak::EmptiesNullValues) => drop(payload.value.get_or_insert_default()),
            Some(SinkBreak::NullsEmptyValues) => payload.value = payload.value.filter(|v| !v.is_empty()),
            Some(SinkBreak::CutsAtNul) => payload.value = payload.value.map(cut),
            Some(SinkBreak::FoldsRepeatedHeaders) => {
                let mut seen: Vec<Header> = vec![];
                for header in payload.headers {
                    seen.retain(|earlier| earlier.name != header.name);
                    seen.push(header);
                }
                payload.headers = seen;
            }
            _ => {}
        }
        payload
    }

    /// Writes what was taken; a sink that races itself reads first and writes back later.
    async fn write(&self, kept: Vec<(String, Payload)>) {
        if self.is(SinkBreak::RacesItself) {
            let mut all = self.lock().clone();
            tokio::task::yield_now().await;
            append(&mut all, kept);
            *self.lock() = all;
        } else {
            let mut all = self.lock();
            if self.is(SinkBreak::Overwrites) {
                all.clear();
            }
            append(&mut all, kept);
        }
    }
}

fn append(all: &mut Destinations, kept: Vec<(String, Payload)>) {
    for (destination, payload) in kept {
        all.entry(destination).or_default().push(payload);
    }
}

impl Sink for MemorySink {
    async fn publish(&self, records: &[Record]) -> Vec<Result<(), SinkError>> {
        let (mut kept, mut answers) = (vec![], vec![]);
        for (number, record) in records.iter().enumerate() {
            let refused = answers.iter().any(Result::is_err);
            let (keep, answer) = self.take(number, record);
            if refused && self.is(SinkBreak::StopsAtUnfit) {
                answers.push(Err(SinkError::new(true, "something before it failed")));
                continue;
            }
            kept.extend(keep);
            answers.push(answer);
        }
        let refused = answers.iter().any(Result::is_err);
        match self.broken {
            Some(SinkBreak::FailsTheCall) if refused && !self.away => {
                let failed = |_| Err(SinkError::new(false, "something in the call failed"));
                return answers.into_iter().map(failed).collect();
            }
            Some(SinkBreak::AnswersOnlyOk) if !self.away => answers.retain(Result::is_ok),
            Some(SinkBreak::AnswersInOtherOrder) => answers.sort_by_key(Result::is_err),
            Some(SinkBreak::AnswersForNothing) if records.is_empty() => answers.push(Ok(())),
            Some(SinkBreak::Reverses) => kept.reverse(),
            _ => {}
        }
        self.write(kept).await;
        answers
    }
}
