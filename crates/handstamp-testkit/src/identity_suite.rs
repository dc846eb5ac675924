//! What a consumer makes of ids, of bodies that come again, and of messages that nobody wants, on every store. A driver
//! that runs the [start suite](mod@crate::start_suite) gives one more macro call:
//!
//! ```text
//! handstamp_testkit::identity_suite!(MyHarness::new().await);          // several threads, real time
//! handstamp_testkit::identity_suite!(paused: MyHarness::new());        // in memory, paused clock
//! ```

use crate::check::same;
use crate::fakes::LogBroker;
use crate::store_suite::StoreHarness;
use crate::{CaseFailure, CaseResult, Payload};
use bytes::Bytes;
use handstamp_core::json::Pointer;
use handstamp_core::{
    BatchError, BatchHandler, Consumer, ConsumerName, ConsumerOptions, Counts, FailureClass, HandlerError,
    Identity, IdentityRule, InboxState, Message, MessageId, Route, StartStore, Store,
};

/// One empty database, new for each case, of a store that a consumer can run on.
pub trait IdentityHarness: StoreHarness<Store: StartStore> {}

impl<H: StoreHarness<Store: StartStore>> IdentityHarness for H {}

#[doc(hidden)]
#[macro_export]
macro_rules! __identity_cases {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            events_are_known_by_source_and_id
            an_event_in_another_mode_is_never_applied_twice
            an_event_without_a_source_is_a_dead_letter
            long_ids_are_told_apart_by_their_hashes
            a_long_id_is_a_dead_letter_where_it_is_refused
            a_resend_with_another_body_is_a_duplicate
            a_reused_id_is_found_by_the_chosen_fields
            a_body_without_the_fields_counts_whole
            a_resend_of_a_dead_letter_is_known
            what_is_passed_over_leaves_nothing_behind
            what_nobody_can_handle_is_a_dead_letter_without_a_run
        }
    };
}

/// One test for each rule.
#[macro_export]
macro_rules! identity_suite {
    (paused: $harness:expr) => {
        $crate::__identity_cases!(__suite_tests [identity_suite, $harness, tokio::test(start_paused = true)]);
    };
    ($harness:expr) => {
        $crate::__identity_cases!(
            __suite_tests [identity_suite, $harness, tokio::test(flavor = "multi_thread", worker_threads = 2)]
        );
    };
}

/// Every case's name.
pub const CASES: &[&str] = crate::__identity_cases!(__suite_names []);

/// Runs one case.
///
/// # Errors
/// What rule is broken and what was seen.
pub async fn run<H: IdentityHarness>(case: &str, harness: &H) -> CaseResult {
    crate::__identity_cases!(__suite_dispatch [case, harness])
}

/// Wants what has no field `skip`, cannot handle what has one `bad`, and counts its runs in nothing but the counts.
struct Choosy;

impl<Tx: Send + 'static> BatchHandler<Tx> for Choosy {
    fn route(&self, message: &Message) -> Route {
        let has = |name: &str| {
            message
                .document()
                .is_ok_and(|document| matches!(document.at(&Pointer::member(name)), Ok(Some(_))))
        };
        if has("bad") {
            return Route::Reject(HandlerError::reject("it is bad").with_class(FailureClass::Unmatched));
        }
        if has("skip") { Route::PassOver } else { Route::Run }
    }

    async fn handle_batch(&self, _: &mut Tx, _: &[Message]) -> Result<(), BatchError> {
        Ok(())
    }
}

/// Runs a consumer over these, in their order, in one batch or one by one.
async fn consume<H: IdentityHarness>(
    harness: &H,
    rule: impl Into<IdentityRule>,
    batch_max: usize,
    payloads: Vec<Payload>,
) -> Result<Counts, CaseFailure>
where
    <H::Store as Store>::Tx: Send,
{
    let messages_max = Some(payloads.len() as u64);
    let broker = LogBroker::new("t", 1);
    for payload in payloads {
        broker.publish(0, payload).ok_or_else(|| CaseFailure("the broker took nothing".into()))?;
    }
    let options = ConsumerOptions { batch_max, messages_max, ..ConsumerOptions::default() };
    let consumer = Consumer::builder(name()?)
        .source(broker.source("g"), rule)
        .store(harness.open().await)
        .batch_handler(Choosy)
        .options(options);
    let report = Box::pin(consumer.run_local(std::future::pending())).await?;
    let counts = report.counts;
    same("counted", &counts.settled(), &counts.received)?;
    Ok(counts)
}

fn name() -> Result<ConsumerName, CaseFailure> {
    Ok(ConsumerName::new("wallet")?)
}

fn pointers(texts: &[&str]) -> Result<Vec<Pointer>, CaseFailure> {
    texts.iter().map(|text| Pointer::parse(text).map_err(CaseFailure::from)).collect()
}

fn by_header() -> Identity {
    Identity::Header("id".into())
}

fn with_id(id: &str, body: &str) -> Payload {
    Payload::value(body.to_owned()).with_header("id", Some(Bytes::copy_from_slice(id.as_bytes())))
}

/// An event of this source with this id.
type Event = fn(&str, &str) -> Payload;

fn binary(source: &str, id: &str) -> Payload {
    let header = |payload: Payload, name: &'static str, value: &str| {
        payload.with_header(name, Some(Bytes::copy_from_slice(value.as_bytes())))
    };
    header(header(Payload::value("data"), "ce_source", source), "ce_id", id)
}

fn structured(source: &str, id: &str) -> Payload {
    Payload::value(format!(r#"{{"specversion":"1.0","source":"{source}","id":"{id}"}}"#))
        .with_header("content-type", Some(Bytes::from_static(b"application/cloudevents+json")))
}

/// Applied, duplicates, reused ids, dead letters, passed over.
fn ended(counts: &Counts) -> [u64; 5] {
    [counts.applied, counts.duplicate, counts.id_reused, counts.dead_lettered, counts.unmatched]
}

mod cases {
    use super::*;

    pub(super) async fn events_are_known_by_source_and_id<H: IdentityHarness>(harness: &H) -> CaseResult {
        let modes: [(&str, Event); 2] = [("", binary), ("s", structured)];
        for (mode, event) in modes {
            let pairs = [("a", "bc"), ("ab", "c"), ("a", "bc"), ("b", "bc")];
            let events = pairs.map(|(source, id)| event(&format!("{mode}{source}"), id));
            let counts = consume(harness, Identity::CloudEvents, 500, events.to_vec()).await?;
            same("ended", &ended(&counts), &[3, 1, 0, 0, 0])?;
        }
        let id = MessageId::try_from(r#"["a","bc"]"#)?;
        same("the inbox", &harness.inbox_state(&name()?, &id).await, &Some(InboxState::Applied))
    }

    /// Its body is another one: it is a reused id, and what was applied stays.
    pub(super) async fn an_event_in_another_mode_is_never_applied_twice<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        for batch_max in [1, 500] {
            let id = format!("e{batch_max}");
            let both = vec![binary("s", &id), structured("s", &id), binary("s", &id)];
            let counts = consume(harness, Identity::CloudEvents, batch_max, both).await?;
            same("ended", &ended(&counts), &[1, 1, 1, 0, 0])?;
        }
        Ok(())
    }

    pub(super) async fn an_event_without_a_source_is_a_dead_letter<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let without = Payload::value("data").with_header("ce_id", Some(Bytes::from_static(b"e")));
        let empty = binary("", "e");
        let counts =
            consume(harness, Identity::CloudEvents, 500, vec![without, empty, binary("s", "e")]).await?;
        same("ended", &ended(&counts), &[1, 0, 0, 2, 0])?;
        let letters = harness.dead_letters(&name()?).await;
        let told: Vec<_> = letters.iter().map(|letter| (letter.class, letter.id.is_some())).collect();
        same("dead letters", &told, &vec![(FailureClass::Identity, false); 2])?;
        let named = letters.iter().all(|letter| letter.reason.as_str().contains("ce_source"));
        same("the reasons name the header", &named, &true)
    }

    pub(super) async fn long_ids_are_told_apart_by_their_hashes<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let rule = IdentityRule::new(by_header()).hashing_long_ids();
        let long = |end: &str| format!("{}{end}", "x".repeat(MessageId::MAX_BYTES));
        let hash = MessageId::hashing_long(long("a").into_bytes())?;
        let hash_as_id = hash.as_str().unwrap_or_default().to_owned();
        let ids = [long("a"), long("b"), long("a"), hash_as_id, "short".into(), long("")];
        let counts = consume(harness, rule, 500, ids.iter().map(|id| with_id(id, "1")).collect()).await?;
        same("ended", &ended(&counts), &[5, 1, 0, 0, 0])?;
        same("the inbox", &harness.inbox_state(&name()?, &hash).await, &Some(InboxState::Applied))
    }

    pub(super) async fn a_long_id_is_a_dead_letter_where_it_is_refused<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let long = "x".repeat(MessageId::MAX_BYTES + 1);
        let counts = consume(harness, by_header(), 500, vec![with_id(&long, "1"), with_id("a", "1")]).await?;
        same("ended", &ended(&counts), &[1, 0, 0, 1, 0])?;
        let letters = harness.dead_letters(&name()?).await;
        let named = letters.iter().any(|letter| letter.reason.as_str().contains("long_ids"));
        same("the reason names the way out", &named, &true)
    }

    pub(super) async fn a_resend_with_another_body_is_a_duplicate<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let rule = IdentityRule::new(by_header()).digest_of(pointers(&["/amount", "/to"])?);
        let bodies = [
            r#"{"amount":10,"to":{"iban":"x","name":"A"},"sent":1}"#,
            r#"{"sent":2,"to":{"name":"\u0041","iban":"x"},"amount":10.0}"#,
            r#" { "to" : { "iban" : "x", "name" : "A" } , "amount" : 1e1 } "#,
        ];
        for batch_max in [1, 500] {
            let id = format!("m{batch_max}");
            let payloads = bodies.iter().map(|body| with_id(&id, body)).collect();
            let counts = consume(harness, rule.clone(), batch_max, payloads).await?;
            same("ended", &ended(&counts), &[1, 2, 0, 0, 0])?;
        }
        // Another run meets the rows of the first.
        let counts = consume(harness, rule, 500, vec![with_id("m1", bodies[1])]).await?;
        same("ended", &ended(&counts), &[0, 1, 0, 0, 0])
    }

    pub(super) async fn a_reused_id_is_found_by_the_chosen_fields<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let rule = IdentityRule::new(by_header()).digest_of(pointers(&["/amount", "/note"])?);
        let bodies = [
            r#"{"amount":10,"note":null}"#,
            r#"{"amount":11,"note":null}"#,
            r#"{"amount":"10","note":null}"#,
            r#"{"amount":10}"#,
            r#"{"note":null}"#,
            r#"{"amount":10,"note":null,"more":1}"#,
        ];
        let payloads = bodies.iter().map(|body| with_id("m", body)).collect();
        let counts = consume(harness, rule, 500, payloads).await?;
        same("ended", &ended(&counts), &[1, 1, 4, 0, 0])?;
        let letters = harness.dead_letters(&name()?).await;
        let kept: Vec<_> =
            letters.iter().map(|letter| letter.record.value.clone().unwrap_or_default()).collect();
        let mut expected: Vec<Bytes> =
            bodies[1..5].iter().map(|body| Bytes::copy_from_slice(body.as_bytes())).collect();
        let mut kept_sorted = kept;
        kept_sorted.sort_unstable();
        expected.sort_unstable();
        same("kept byte for byte", &kept_sorted, &expected)
    }

    pub(super) async fn a_body_without_the_fields_counts_whole<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let rule = IdentityRule::new(by_header()).digest_of(pointers(&["/amount"])?);
        for (id, body, other) in [
            ("none", r#"{"a":1}"#, r#"{"a":2}"#),
            ("text", "no JSON", "no JSON either"),
            ("twice", r#"{"amount":1,"amount":1}"#, r#"{"amount":1, "amount":1}"#),
        ] {
            let payloads = vec![with_id(id, body), with_id(id, body), with_id(id, other)];
            let counts = consume(harness, rule.clone(), 500, payloads).await?;
            same(id, &ended(&counts), &[1, 1, 1, 0, 0])?;
        }
        Ok(())
    }

    /// Also where only a prefix of it is kept.
    pub(super) async fn a_resend_of_a_dead_letter_is_known<H: IdentityHarness>(harness: &H) -> CaseResult {
        let rule = IdentityRule::new(by_header()).digest_of(pointers(&["/amount"])?);
        let large = |fill: &str| format!(r#"{{"amount":1,"fill":"{}"}}"#, fill.repeat(2 << 20));
        let payloads = vec![
            with_id("large", &large("a")),
            with_id("large", &large("b")),
            with_id("bad", r#"{"amount":1,"bad":1}"#),
            with_id("bad", r#"{"amount":1,"bad":2}"#),
        ];
        let counts = consume(harness, rule, 1, payloads).await?;
        same("ended", &ended(&counts), &[0, 2, 0, 2, 0])?;
        same("dead letters", &harness.dead_letters(&name()?).await.len(), &2)
    }

    pub(super) async fn what_is_passed_over_leaves_nothing_behind<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        for batch_max in [1, 500] {
            let id = format!("m{batch_max}");
            let other = format!("n{batch_max}");
            let skipped = with_id(&id, r#"{"skip":1}"#);
            let payloads = vec![skipped.clone(), with_id(&other, "{}"), skipped.clone(), skipped];
            let counts = consume(harness, by_header(), batch_max, payloads).await?;
            same("ended", &ended(&counts), &[1, 0, 0, 0, 3])?;
            let key = MessageId::try_from(id.as_str())?;
            same("the inbox", &harness.inbox_state(&name()?, &key).await, &None)?;
            // Wanted later, under the same id: nothing remembers that it was passed over.
            let counts = consume(harness, by_header(), batch_max, vec![with_id(&id, "{}")]).await?;
            same("ended", &ended(&counts), &[1, 0, 0, 0, 0])?;
        }
        same("dead letters", &harness.dead_letters(&name()?).await.len(), &0)
    }

    pub(super) async fn what_nobody_can_handle_is_a_dead_letter_without_a_run<H: IdentityHarness>(
        harness: &H,
    ) -> CaseResult {
        let bad = with_id("bad", r#"{"bad":1}"#);
        let counts =
            consume(harness, by_header(), 500, vec![bad.clone(), with_id("good", "{}"), bad]).await?;
        same("ended", &ended(&counts), &[1, 1, 0, 1, 0])?;
        same("attempts", &counts.attempts_failed, &0)?;
        let letters = harness.dead_letters(&name()?).await;
        let told: Vec<_> = letters.iter().map(|letter| (letter.class, letter.attempts)).collect();
        same("dead letters", &told, &vec![(FailureClass::Unmatched, 0)])?;
        let id = MessageId::try_from("bad")?;
        same("the inbox", &harness.inbox_state(&name()?, &id).await, &Some(InboxState::Dead))
    }
}
