//! Copies of dead letters at a sink, where they are wanted: answered before the delivery is settled.
//!
//! Authoritative: the dead letter in the store. A copy is made at least once, and says nothing about what becomes of
//! the dead letter afterwards.
//!
//! ```text
//! delivered: COMMIT, dead letters durable ─► read back where known ─► published ─► settled
//!               └ died here: delivered again ─► Duplicate(dead) ───────┘ └ away: again after a wait, nothing charged;
//!                                                                         left meanwhile: given back
//! parked:    dead, written ─► published ─► COMMIT
//!                               └ away: rolled back, taken again after a wait
//! ```
//!
//! A delivery comes again, so its copy may follow the commit. Nobody comes back to a parked message that is dead, so
//! its copy goes in front; where that commit fails, the copy is of a message that is tried once more.

use super::batch::{Shared, random};
use super::item::{Item, shown};
use super::keep::{Plan, dead_letter};
use super::outage::Outage;
use crate::delivery::{Disposition, Lane};
use crate::message::{Header, Headers, Origin, Record};
use crate::parked::Dedup;
use crate::retry::Backoff;
use crate::sink::{Sink, SinkError};
use crate::start::StartStore;
use crate::store::{DeadLetter, InboxState};
use crate::telemetry::Counts;
use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long an answer is waited for; the transaction of a parked message is open meanwhile.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The same once nothing more is to begin.
const GRACE: Duration = Duration::from_secs(2);

/// A [`Sink`] behind a pointer.
pub(crate) trait DynSink: Send + Sync + 'static {
    fn publish<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Vec<Result<(), SinkError>>>;
}

impl<T: Sink> DynSink for T {
    fn publish<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Vec<Result<(), SinkError>>> {
        Sink::publish(self, records).boxed()
    }
}

/// Where copies go.
#[derive(Clone)]
pub(crate) struct CopyTo {
    pub(crate) sink: Arc<dyn DynSink>,
    pub(crate) topic: Arc<str>,
}

/// The copies of a running consumer.
#[derive(Default)]
pub(crate) struct Copies {
    to: Option<CopyTo>,
    /// Nothing can be copied.
    away: Outage,
}

/// A delivery whose copy is due, and its dead letter once that is known.
struct Due {
    at: usize,
    letter: Option<DeadLetter>,
}

/// What came of a try.
enum Tried {
    /// Of each: whether it is answered for good.
    Answered(Vec<bool>),
    /// Nothing more is to begin, and it was not answered in time.
    Left,
}

impl Copies {
    pub(super) fn new(to: Option<CopyTo>) -> Self {
        Self { to, ..Self::default() }
    }

    /// Whether copies are made.
    pub(super) fn are_made(&self) -> bool {
        self.to.is_some()
    }

    /// Whose copies are to be answered before they are settled: what is dead now, and what was before.
    pub(super) fn due(&self, plans: &[Plan]) -> Vec<usize> {
        if self.to.is_none() {
            return vec![];
        }
        plans.iter().enumerate().filter_map(|(at, plan)| is_dead(*plan).then_some(at)).collect()
    }

    fn say_away(&self, error: &dyn std::fmt::Display, example: &str) {
        let Some(waiting) = self.away.say(Duration::ZERO) else { return };
        let waiting_s = waiting.as_secs();
        tracing::warn!(
            target: "handstamp",
            %error,
            waiting_s,
            "a dead letter cannot be copied now; it is kept in the store, and its delivery waits: {example}"
        );
    }

    fn recovered(&self) {
        if let Some(waited) = self.away.over() {
            let waited_s = waited.as_secs_f64();
            tracing::info!(target: "handstamp", waited_s, "dead letters are copied again");
        }
    }
}

fn is_dead(plan: Plan) -> bool {
    matches!(
        plan,
        Plan::Record | Plan::RecordReused | Plan::OtherKind | Plan::Skip { state: InboxState::Dead, .. }
    )
}

impl<S: StartStore> Shared<S> {
    /// The chunk is durable and these of it are dead: copies each, then settles it. What is not copied when the lane
    /// is left is given back; its outcome is counted and durable, and it comes again as a duplicate.
    pub(super) async fn copy_then_settle(&self, lane: Lane, chunk: &[Item], plans: &[Plan], due: &[usize]) {
        let letter = |at: usize| match plans[at] {
            Plan::Skip { .. } => None,
            plan => Some(dead_letter(&chunk[at], plan)),
        };
        let mut left: Vec<Due> = due.iter().map(|&at| Due { at, letter: letter(at) }).collect();
        let mut tries = 0;
        while !left.is_empty() {
            if tries > 0 && !self.wait_to_copy(lane, tries - 1).await {
                break;
            }
            tries = tries.saturating_add(1);
            let mut done = self.read_letters(chunk, &mut left).await;
            let letters: Vec<&DeadLetter> = left.iter().filter_map(|due| due.letter.as_ref()).collect();
            let Tried::Answered(answered) = self.publish_copies(lane, &letters).await else { break };
            let mut answered = answered.into_iter();
            left.retain(|due| {
                let stays = due.letter.is_none() || answered.next() != Some(true);
                if !stays {
                    done.push(due.at);
                }
                stays
            });
            self.settle(done.iter().map(|&at| &chunk[at]), Disposition::Ack);
        }
        if left.is_empty() {
            return;
        }
        tracing::warn!(
            target: "handstamp",
            count = left.len(),
            "stopped before every dead letter was copied: these deliveries come again, the first is {}",
            chunk[left[0].at].shown()
        );
        let released = Disposition::Release { delay: Duration::ZERO };
        self.settle(left.iter().map(|due| &chunk[due.at]), released);
    }

    /// Reads back what was dead before, all at once. Answers those that are dead no more, which need no copy.
    async fn read_letters(&self, chunk: &[Item], left: &mut Vec<Due>) -> Vec<usize> {
        let wanted = |due: &Due| {
            let id = chunk[due.at].id().filter(|_| due.letter.is_none())?;
            Some((due.at, DeadLetter::dedup_of_id(id)))
        };
        let (places, keys): (Vec<usize>, Vec<Dedup>) = left.iter().filter_map(wanted).unzip();
        if keys.is_empty() {
            return vec![];
        }
        let kept = match self.store.kept_letters(&self.consumer, &keys).await {
            Ok(kept) => kept,
            Err(error) => {
                self.copies.say_away(&error, &chunk[places[0]].shown());
                return vec![];
            }
        };
        let mut kept: HashMap<usize, Option<DeadLetter>> = places.into_iter().zip(kept).collect();
        let mut gone = vec![];
        left.retain_mut(|due| match kept.remove(&due.at) {
            Some(None) => {
                gone.push(due.at);
                false
            }
            Some(letter) => {
                due.letter = letter;
                true
            }
            None => true,
        });
        gone
    }

    /// Waits without a start record: whoever dies meanwhile dies of something else. False: the lane is left.
    async fn wait_to_copy(&self, lane: Lane, tries: u32) -> bool {
        let rested = async {
            self.end_start(lane).await;
            self.rest(lane, Backoff::INFRASTRUCTURE.wait(tries, random())).await;
        };
        tokio::select! {
            biased;
            () = self.left(lane) => false,
            () = rested => true,
        }
    }

    /// Publishes copies of parked messages that are dead. False: not all were answered, and that was said.
    pub(super) async fn copy_parked(&self, lane: Lane, letters: &[DeadLetter]) -> bool {
        if self.copies.to.is_none() || letters.is_empty() {
            return true;
        }
        let letters: Vec<&DeadLetter> = letters.iter().collect();
        match self.publish_copies(lane, &letters).await {
            Tried::Answered(answered) => answered.iter().all(|answered| *answered),
            Tried::Left => false,
        }
    }

    /// Publishes, for so long; `None`: the lane is left meanwhile. Who does not answer has no answers.
    async fn ask(&self, lane: Lane, to: &CopyTo, records: &[Record]) -> Option<Vec<Result<(), SinkError>>> {
        let in_time = async {
            self.left(lane).await;
            sleep(GRACE).await;
        };
        tokio::select! {
            biased;
            answers = timeout(ANSWER_WITHIN, to.sink.publish(records)) => Some(answers.unwrap_or_default()),
            () = self.cancelled(lane) => None,
            () = in_time => None,
        }
    }

    /// Publishes once. What the sink refuses for good is said, counted and not tried again: the dead letter is kept.
    async fn publish_copies(&self, lane: Lane, letters: &[&DeadLetter]) -> Tried {
        let Some(to) = self.copies.to.as_ref().filter(|_| !letters.is_empty()) else {
            return Tried::Answered(vec![true; letters.len()]);
        };
        // What it reads where its copies go would come back for ever.
        let returns = |letter: &DeadLetter| letter.record.origin.topic == to.topic;
        let copies = letters.iter().filter(|letter| !returns(letter));
        let records: Vec<Record> =
            copies.map(|letter| copy_of(letter, self.consumer.name.as_str(), &to.topic)).collect();
        let Some(answers) = self.ask(lane, to, &records).await else { return Tried::Left };
        let mut answers = answers.into_iter();
        let mut counts = Counts::default();
        let mut waits = false;
        let mut answered = Vec::with_capacity(letters.len());
        for letter in letters {
            let unanswered = || Err(SinkError::new(true, "it was not answered in time"));
            let answer = match returns(letter) {
                true => {
                    Err(SinkError::new(false, "it was read from where copies go: a copy would come back"))
                }
                false => answers.next().unwrap_or_else(unanswered),
            };
            let done = match answer {
                Ok(()) => {
                    counts.dead_letter_copies += 1;
                    true
                }
                Err(error) if error.transient => {
                    if !waits {
                        self.copies.say_away(&error, &shown(letter.id.as_ref(), &letter.record));
                    }
                    waits = true;
                    false
                }
                Err(error) => {
                    counts.dead_letter_copies_failed += 1;
                    tracing::warn!(
                        target: "handstamp",
                        %error,
                        topic = &*to.topic,
                        "not copied, the dead letter itself is kept: {}",
                        shown(letter.id.as_ref(), &letter.record)
                    );
                    true
                }
            };
            answered.push(done);
        }
        if !waits {
            self.copies.recovered();
        }
        self.live.add(&counts);
        Tried::Answered(answered)
    }
}

/// Headers that say what became of a message. A copy has each at most once, however often it was copied before.
const OWN: [&str; 11] = [
    "handstamp-class",
    "handstamp-code",
    "handstamp-reason",
    "handstamp-consumer",
    "handstamp-id",
    "handstamp-topic",
    "handstamp-partition",
    "handstamp-offset",
    "handstamp-timestamp",
    "handstamp-attempts",
    "handstamp-full-bytes",
];

/// Key, value and headers as they came, and why it was given up. The broker stamps the time: how long a topic keeps its
/// records is counted from it.
fn copy_of(letter: &DeadLetter, consumer: &str, topic: &Arc<str>) -> Record {
    let record = &letter.record;
    let text = |text: &str| Some(Bytes::copy_from_slice(text.as_bytes()));
    let own: [Option<Bytes>; OWN.len()] = [
        text(letter.class.as_str()),
        letter.code.as_deref().and_then(text),
        text(letter.reason.as_str()),
        text(consumer),
        letter.id.as_ref().map(|id| Bytes::copy_from_slice(id.as_bytes())),
        text(&record.origin.topic),
        text(&record.origin.partition.to_string()),
        text(&record.origin.offset.to_string()),
        record.timestamp.and_then(|at| text(&at.to_string())),
        text(&letter.attempts.to_string()),
        letter.truncation.as_ref().and_then(|cut| text(&cut.full_bytes.to_string())),
    ];
    let is_own = |header: &Header| OWN.iter().any(|name| header.name == name.as_bytes());
    let mut headers: Vec<Header> =
        record.headers.as_slice().iter().filter(|header| !is_own(header)).cloned().collect();
    for (name, value) in OWN.into_iter().zip(own) {
        headers.extend(value.map(|value| Header::new(name, Some(value))));
    }
    Record {
        key: record.key.clone(),
        value: record.value.clone(),
        headers: Headers::new(headers),
        origin: Origin { topic: Arc::clone(topic), partition: 0, offset: 0, line: None },
        timestamp: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Timestamp, Truncation};
    use crate::message_id::MessageId;
    use crate::store::{FailureClass, Reason};

    fn letter(record: Record) -> DeadLetter {
        DeadLetter {
            id: Some(MessageId::try_from("a").unwrap()),
            digest: 7,
            record,
            truncation: Some(Truncation { full_bytes: 2_000_000, blake3: [0; 32] }),
            class: FailureClass::Sql,
            code: Some("23514".into()),
            reason: Reason::new("balance must not be negative"),
            attempts: 3,
            received_at: Timestamp(0),
            failed_at: Timestamp(0),
        }
    }

    #[test]
    fn a_copy_of_a_copy_has_the_same_headers_in_the_same_number() {
        let record = Record {
            key: Some(Bytes::from_static(b"k")),
            value: Some(Bytes::from_static(b"\xff\0")),
            headers: Headers::new(vec![
                Header::new("id", Some(Bytes::from_static(b"a"))),
                Header::new("null", None),
                Header::new("id", Some(Bytes::from_static(b"again"))),
            ]),
            origin: Origin { topic: "orders".into(), partition: 3, offset: 17, line: None },
            timestamp: Some(Timestamp(0)),
        };
        let topic: Arc<str> = "orders.dlq".into();
        let first = copy_of(&letter(record.clone()), "wallet", &topic);
        assert_eq!((&first.key, &first.value), (&record.key, &record.value));
        assert_eq!(first.headers.as_slice()[..3], *record.headers.as_slice());
        let value = |record: &Record, name: &str| -> Vec<String> {
            let all = record.headers.all(name.as_bytes()).flatten();
            all.map(|value| String::from_utf8(value.to_vec()).unwrap()).collect()
        };
        for (name, expected) in OWN.into_iter().zip([
            "sql",
            "23514",
            "balance must not be negative",
            "wallet",
            "a",
            "orders",
            "3",
            "17",
            "1970-01-01T00:00:00.000Z",
            "3",
            "2000000",
        ]) {
            assert_eq!(value(&first, name), [expected], "{name}");
        }
        let second = copy_of(&letter(first.clone()), "wallet-dlq", &"again".into());
        assert_eq!(second.headers.as_slice().len(), first.headers.as_slice().len() - 1, "it has no time");
        assert_eq!(value(&second, "handstamp-consumer"), ["wallet-dlq"]);
        assert_eq!(value(&second, "handstamp-topic"), ["orders.dlq"]);
    }
}
