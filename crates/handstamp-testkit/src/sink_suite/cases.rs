//! The cases. Each breaks for one reason.

use super::{SinkHarness, record};
use crate::check::{ensure, same};
use crate::{CaseResult, Payload};
use bytes::Bytes;
use handstamp_core::{Record, Sink, SinkError};

fn records<H: SinkHarness>(harness: &H, payloads: &[Payload]) -> Vec<Record> {
    let destination = harness.destination();
    payloads.iter().map(|payload| record(&destination, payload)).collect()
}

fn numbered(numbers: std::ops::Range<u32>) -> Vec<Payload> {
    numbers.map(|number| Payload::value(format!("{{\"id\":{number}}}"))).collect()
}

/// One answer for each record, all of them Ok.
fn all_ok(answers: Vec<Result<(), SinkError>>, count: usize) -> CaseResult {
    same("answers", &answers.len(), &count)?;
    for answer in answers {
        answer?;
    }
    Ok(())
}

/// For what is the same in any order.
fn sorted(mut payloads: Vec<Payload>) -> Vec<Payload> {
    payloads.sort_by_key(|payload| (payload.value.clone(), payload.key.clone()));
    payloads
}

pub(super) async fn what_is_answered_ok_is_there_once<H: SinkHarness>(harness: &H) -> CaseResult {
    let large = Payload::value(vec![b'x'; 200_000]);
    let payloads = [Payload::value("one"), large, Payload::value("two")];
    let answers = harness.sink().await.publish(&records(harness, &payloads)).await;
    all_ok(answers, payloads.len())?;
    let back = harness.read_back(&harness.destination()).await;
    // Only sizes are shown: nobody reads 200,000 bytes.
    let sizes = |payloads: Vec<Payload>| -> Vec<usize> {
        sorted(payloads).iter().map(|payload| payload.value.as_ref().map_or(0, Bytes::len)).collect()
    };
    same("sizes read back", &sizes(back), &sizes(payloads.to_vec()))
}

pub(super) async fn every_byte_arrives<H: SinkHarness>(harness: &H) -> CaseResult {
    let mut payloads: Vec<Payload> =
        [&b"{\"id\":1}"[..], b"not json", b"\xff\x00\xfe", b" "].into_iter().map(Payload::value).collect();
    if harness.whole_records() {
        payloads.push(Payload::default().with_key(&b"\x00\xff"[..]));
        payloads.push(Payload::value(&b""[..]).with_key(&b""[..]));
        payloads.push(
            Payload::value(&b"a\r\nb"[..])
                .with_header("a", Some(Bytes::from_static(b"1")))
                .with_header("a", None)
                .with_header("b", Some(Bytes::new()))
                .with_header("c", Some(Bytes::from_static(b"\xff\x00"))),
        );
    }
    let answers = harness.sink().await.publish(&records(harness, &payloads)).await;
    all_ok(answers, payloads.len())?;
    same("read back", &sorted(harness.read_back(&harness.destination()).await), &sorted(payloads))
}

pub(super) async fn an_unfit_record_leaves_its_neighbours_alone<H: SinkHarness>(harness: &H) -> CaseResult {
    let fit = [Payload::value("one"), Payload::value("two")];
    let payloads = [fit[0].clone(), harness.unfit(), fit[1].clone()];
    let answers = harness.sink().await.publish(&records(harness, &payloads)).await;
    let kept: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    same("kept", &kept, &vec![true, false, true])?;
    let transient = answers.iter().any(|answer| answer.as_ref().is_err_and(|error| error.transient));
    ensure(!transient, || "an unfit record is called transient".into())?;
    same("read back", &sorted(harness.read_back(&harness.destination()).await), &sorted(fit.to_vec()))
}

pub(super) async fn nothing_is_published_for_nothing<H: SinkHarness>(harness: &H) -> CaseResult {
    ensure(harness.sink().await.publish(&[]).await.is_empty(), || "answers without records".into())?;
    same("read back", &harness.read_back(&harness.destination()).await.len(), &0)
}

pub(super) async fn publishing_again_appends<H: SinkHarness>(harness: &H) -> CaseResult {
    let both = [Payload::value("one"), Payload::value("two")];
    for payload in &both {
        // Opened anew, as the next process does.
        let answers = harness.sink().await.publish(&records(harness, std::slice::from_ref(payload))).await;
        all_ok(answers, 1)?;
    }
    same("read back", &harness.read_back(&harness.destination()).await, &both.to_vec())
}

pub(super) async fn five_thousand_records_come_in_order<H: SinkHarness>(harness: &H) -> CaseResult {
    let payloads = numbered(0..5_000);
    let answers = harness.sink().await.publish(&records(harness, &payloads)).await;
    all_ok(answers, payloads.len())?;
    let back = harness.read_back(&harness.destination()).await;
    same("records read back", &back.len(), &payloads.len())?;
    let astray = back.iter().zip(&payloads).position(|(seen, sent)| seen != sent);
    same("the first record out of its place", &astray, &None)
}

pub(super) async fn each_destination_gets_its_own<H: SinkHarness>(harness: &H) -> CaseResult {
    let Some(other) = harness.other_destination().await else { return Ok(()) };
    let destinations = [harness.destination(), other];
    let payloads = numbered(0..4);
    let mixed: Vec<Record> =
        payloads.iter().zip(destinations.iter().cycle()).map(|(sent, to)| record(to, sent)).collect();
    all_ok(harness.sink().await.publish(&mixed).await, mixed.len())?;
    for (destination, own) in destinations.iter().zip([[0, 2], [1, 3]]) {
        let expected: Vec<Payload> = own.map(|at| payloads[at].clone()).to_vec();
        same(destination, &harness.read_back(destination).await, &expected)?;
    }
    Ok(())
}

pub(super) async fn publishers_side_by_side_lose_nothing<H: SinkHarness>(harness: &H) -> CaseResult {
    let batches = [0..50, 50..100, 100..150, 150..200].map(numbered);
    let sinks = [harness.sink().await, harness.sink().await];
    let [a, b, c, d] = batches.each_ref().map(|batch| records(harness, batch));
    let (a, b, c, d) =
        tokio::join!(sinks[0].publish(&a), sinks[1].publish(&b), sinks[0].publish(&c), sinks[1].publish(&d));
    for answers in [a, b, c, d] {
        all_ok(answers, 50)?;
    }
    let back = sorted(harness.read_back(&harness.destination()).await);
    same("read back", &back, &sorted(batches.concat()))
}

pub(super) async fn what_is_out_of_reach_may_work_later<H: SinkHarness>(harness: &H) -> CaseResult {
    let payloads = [Payload::value("one"), Payload::value("two")];
    let answers = harness.sink_out_of_reach().await.publish(&records(harness, &payloads)).await;
    let later: Vec<bool> =
        answers.iter().map(|answer| answer.as_ref().is_err_and(|error| error.transient)).collect();
    same("may work later", &later, &vec![true, true])
}
