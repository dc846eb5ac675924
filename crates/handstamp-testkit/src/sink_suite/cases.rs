//! The cases. Each breaks for one reason.

use super::{SinkHarness, record};
use crate::check::{ensure, same};
use crate::{CaseResult, Payload};
use bytes::Bytes;
use handstamp_core::Sink;

fn payloads(whole_records: bool) -> Vec<Payload> {
    let mut payloads: Vec<Payload> =
        [&b"{\"id\":1}"[..], b"not json", b"\xff\x00", b" "].into_iter().map(Payload::value).collect();
    if whole_records {
        payloads.push(Payload::default().with_key(&b"\x00\xff"[..]));
        payloads.push(
            Payload::value(&b"a\r\nb"[..])
                .with_header("a", Some(Bytes::from_static(b"1")))
                .with_header("a", None)
                .with_header("b", Some(Bytes::new())),
        );
    }
    payloads
}

pub(super) async fn what_is_answered_ok_is_there<H: SinkHarness>(harness: &H) -> CaseResult {
    let payloads = payloads(harness.whole_records());
    let records: Vec<_> = payloads.iter().map(|payload| record(harness, payload)).collect();
    let answers = harness.sink().await.publish(&records).await;
    same("answers", &answers.len(), &records.len())?;
    for answer in answers {
        answer?;
    }
    same("read back", &harness.read_back().await, &payloads)
}

pub(super) async fn an_unfit_record_leaves_its_neighbours_alone<H: SinkHarness>(harness: &H) -> CaseResult {
    let fit = [Payload::value("one"), Payload::value("two")];
    let records = [&fit[0], &harness.unfit(), &fit[1]].map(|payload| record(harness, payload));
    let answers = harness.sink().await.publish(&records).await;
    let kept: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    same("kept", &kept, &vec![true, false, true])?;
    let transient = answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.transient));
    ensure(!transient, || "an unfit record is called transient".into())?;
    same("read back", &harness.read_back().await, &fit.to_vec())
}

pub(super) async fn nothing_is_published_for_nothing<H: SinkHarness>(harness: &H) -> CaseResult {
    ensure(harness.sink().await.publish(&[]).await.is_empty(), || "answers without records".into())?;
    same("read back", &harness.read_back().await.len(), &0)
}

pub(super) async fn publishing_again_appends<H: SinkHarness>(harness: &H) -> CaseResult {
    let both = [Payload::value("one"), Payload::value("two")];
    for payload in &both {
        for answer in harness.sink().await.publish(&[record(harness, payload)]).await {
            answer?;
        }
    }
    same("read back", &harness.read_back().await, &both.to_vec())
}
