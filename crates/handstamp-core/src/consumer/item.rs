//! A delivery on its way through the engine.

use crate::clock;
use crate::delivery::{Delivery, DeliveryTag, Lane, RecordFault};
use crate::identity::{Found, IdentityRule};
use crate::message::{Message, Record, Timestamp, Truncation, first_i64};
use crate::message_id::MessageId;
use crate::parked::{FailedAttempt, HISTORY_MAX};
use crate::store::{ClaimRequest, DeadLetter, FailureClass, Reason};
use crate::version::Versioned;
use std::time::Duration;

/// What is known of the delivery's content.
#[derive(Debug)]
pub(crate) enum Body {
    /// Its id is known.
    Message(Message),
    /// It has no usable id.
    Bare(Box<Bare>),
}

/// A record without a usable id, and the digest it has beside one that it may be given later.
#[derive(Debug)]
pub(crate) struct Bare {
    record: Record,
    digest: i64,
}

/// Why a message failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) class: FailureClass,
    pub(crate) code: Option<String>,
    pub(crate) reason: Reason,
}

impl Failure {
    /// As an entry of the history.
    pub(crate) fn now(self, node: &str) -> FailedAttempt {
        let Self { class, code, reason } = self;
        FailedAttempt { at: clock::now(), node: node.to_owned(), class, code, reason }
    }
}

/// What becomes of a message that no handler runs for (any more).
#[derive(Debug)]
pub(crate) enum End {
    Dead(Failure),
    /// Not before the wait.
    Parked(Failure, Duration),
}

/// What went wrong with a message.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    /// Set when no handler runs for it (any more) before it is settled.
    pub(crate) end: Option<End>,
    /// Its failed attempts in this process, oldest first.
    pub(crate) history: Vec<FailedAttempt>,
}

impl Trouble {
    /// Adds a failed attempt. Of more than are kept, the first ones stay, and the last.
    pub(crate) fn note(&mut self, failed: FailedAttempt) {
        self.history.truncate(HISTORY_MAX - 1);
        self.history.push(failed);
    }
}

/// What a commit that had no answer would have made of a message: a duplicate may be our own work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Unknown {
    #[default]
    Nothing,
    Applied,
    Dead,
    Parked,
    Stale,
}

/// One delivery, from the queue to its outcome. What is rare lies elsewhere: items are moved.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) lane: Lane,
    pub(crate) tag: DeliveryTag,
    pub(crate) body: Body,
    pub(crate) trouble: Option<Box<Trouble>>,
    pub(crate) truncation: Option<Box<Truncation>>,
    /// Failed attempts so far.
    pub(crate) attempts: u32,
    /// Runs alone, after this wait.
    pub(crate) alone: Option<Duration>,
    /// May have killed a process: runs alone.
    pub(crate) suspected: bool,
    /// Its version, where there is a guard.
    pub(crate) version: Option<Box<Versioned>>,
    pub(crate) unknown: Unknown,
    pub(crate) received_at: Timestamp,
}

impl Item {
    /// Finds id and digest, or the reason why this is a dead letter.
    pub(crate) fn new(
        delivery: Delivery,
        rule: &IdentityRule,
        message_max_bytes: usize,
        received_at: Timestamp,
    ) -> Self {
        let Delivery { lane, tag, mut record, fault, ahead } = delivery;
        let size = record.size_bytes();
        let fault = fault.map(|f| (FailureClass::Unreadable, f)).or_else(|| {
            (size > message_max_bytes)
                .then(|| (FailureClass::TooLarge, too_large(&record, size, message_max_bytes)))
        });
        let is_prefix = |(class, fault): &(FailureClass, RecordFault)| {
            *class != FailureClass::TooLarge && fault.truncation.is_some()
        };
        let is_whole = !fault.as_ref().is_some_and(is_prefix);
        let Found { mut id, mut digest, mut shape } = rule.find(&record, ahead, is_whole);
        let mut dead = None;
        let mut truncation = None;
        if let Some((class, RecordFault { reason, truncation: cut })) = fault {
            let class = if cut.is_some() { FailureClass::TooLarge } else { class };
            dead = Some(Failure { class, code: None, reason: Reason::new(&reason) });
            truncation = cut.map(Box::new);
            if let Some(cut) = &truncation {
                // Of the whole value, of which a prefix is kept.
                digest.get_or_insert(first_i64(&cut.blake3));
                id = id.map(|id| id.detached());
                shape = None;
            }
            if truncation.is_some()
                && let Some(value) = &mut record.value
            {
                // A copy, so that the prefix does not keep the whole body in memory.
                *value = bytes::Bytes::copy_from_slice(&value[..value.len().min(message_max_bytes)]);
            }
        }
        let body = match id {
            Ok(id) => Body::Message(Message::with_shape(id, record, digest, shape)),
            Err(fault) => {
                let reason = Reason::new(&fault.reason);
                let failure = Failure { class: FailureClass::Identity, code: None, reason };
                dead.get_or_insert(failure);
                let digest = digest.unwrap_or_else(|| record.digest());
                Body::Bare(Box::new(Bare { record, digest }))
            }
        };
        let trouble =
            dead.map(|failure| Box::new(Trouble { end: Some(End::Dead(failure)), history: vec![] }));
        let unknown = Unknown::Nothing;
        let (attempts, alone, suspected, version) = (0, None, false, None);
        Self {
            lane,
            tag,
            body,
            trouble,
            truncation,
            attempts,
            alone,
            suspected,
            version,
            unknown,
            received_at,
        }
    }

    /// What becomes of it without a handler.
    pub(crate) fn end(&self) -> Option<&End> {
        self.trouble.as_ref().and_then(|trouble| trouble.end.as_ref())
    }

    /// Its failed attempts in this process.
    pub(crate) fn history(&self) -> &[FailedAttempt] {
        self.trouble.as_ref().map_or(&[], |trouble| &trouble.history)
    }

    pub(crate) fn message(&self) -> Option<&Message> {
        match &self.body {
            Body::Message(message) => Some(message),
            Body::Bare(_) => None,
        }
    }

    pub(crate) fn id(&self) -> Option<&MessageId> {
        self.message().map(Message::id)
    }

    pub(crate) fn record(&self) -> &Record {
        match &self.body {
            Body::Message(message) => message.record(),
            Body::Bare(bare) => &bare.record,
        }
    }

    /// Where it lies in its lane.
    pub(crate) fn position(&self) -> i64 {
        self.record().origin.offset
    }

    /// Whether it is a chunk of its own.
    pub(crate) fn runs_alone(&self) -> bool {
        self.suspected || self.alone.is_some()
    }

    /// The digest of the whole value or of its chosen fields, also when only a prefix is kept.
    pub(crate) fn digest(&self) -> i64 {
        match &self.body {
            Body::Message(message) => message.digest(),
            Body::Bare(bare) => bare.digest,
        }
    }

    pub(crate) fn claim(&self) -> Option<ClaimRequest> {
        self.id().map(|id| ClaimRequest { id: id.clone(), digest: Some(self.digest()) })
    }

    pub(crate) fn dead_letter(&self, failure: &Failure) -> DeadLetter {
        DeadLetter {
            id: self.id().cloned(),
            digest: self.digest(),
            record: self.record().clone(),
            truncation: self.truncation.as_deref().cloned(),
            class: failure.class,
            code: failure.code.clone(),
            reason: failure.reason.clone(),
            attempts: self.attempts,
            received_at: self.received_at,
            failed_at: clock::now(),
        }
    }

    /// How a log line names it.
    pub(crate) fn shown(&self) -> String {
        shown(self.id(), self.record())
    }
}

/// How a log line names a message: its id, where it has one, and where it came from.
pub(super) fn shown(id: Option<&MessageId>, record: &Record) -> String {
    match id {
        Some(id) => format!("{id} ({})", record.origin),
        None => record.origin.to_string(),
    }
}

fn too_large(record: &Record, size: usize, limit: usize) -> RecordFault {
    let value = record.value.as_deref().unwrap_or(&[]);
    RecordFault {
        reason: format!("the record has {size} bytes; max_message_bytes is {limit}"),
        truncation: Some(Truncation {
            full_bytes: value.len() as u64,
            blake3: *blake3::hash(value).as_bytes(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::ReadAhead;
    use crate::identity::Identity;
    use crate::json::Pointer;
    use crate::message::{Headers, Origin};
    use bytes::Bytes;

    #[test]
    fn what_is_kept_of_a_record_above_the_limit_does_not_keep_its_memory() {
        let body = Bytes::from(format!(r#"{{"id":"a","fill":"{}"}}"#, "x".repeat(1000)));
        let delivery = |value: Bytes| Delivery {
            lane: Lane { id: 0, epoch: 1 },
            tag: DeliveryTag(0),
            record: Record {
                key: None,
                value: Some(value),
                headers: Headers::default(),
                origin: Origin { topic: "t".into(), partition: 0, offset: 0, line: None },
                timestamp: None,
            },
            fault: None,
            ahead: ReadAhead::default(),
        };
        let identity = IdentityRule::new(Identity::Field(Pointer::member("id")));
        let item = Item::new(delivery(body.clone()), &identity, 100, Timestamp(0));
        assert!(body.is_unique(), "the prefix or the id holds the whole body");
        assert_eq!(item.id().unwrap().as_bytes(), b"a");
        assert_eq!(item.record().value.as_ref().unwrap().len(), 100);
        let whole = Item::new(delivery(body.clone()), &identity, 10_000, Timestamp(0));
        assert_eq!(whole.message().unwrap().document().unwrap().root().raw().as_bytes(), body);
    }

    #[test]
    fn of_many_failed_attempts_the_first_ones_stay_and_the_last() {
        let mut trouble = Trouble::default();
        for number in 0..500 {
            let reason = Reason::new(&number.to_string());
            trouble.note(Failure { class: FailureClass::Failed, code: None, reason }.now("node"));
        }
        let told: Vec<&str> = trouble.history.iter().map(|failed| failed.reason.as_str()).collect();
        assert_eq!((told.len(), told[0], told[98], told[99]), (HISTORY_MAX, "0", "98", "499"));
    }
}
