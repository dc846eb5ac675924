//! The cases. Each breaks for one reason.

use super::probe::{NARROW, Probe, WIDE};
use super::{SourceFeatures, SourceHarness};
use crate::check::{ensure, same};
use crate::{CaseFailure, CaseResult, Payload};
use bytes::Bytes;
use handstamp_core::delivery::Settled;
use handstamp_core::source::{PortLimits, SettleKind};
use handstamp_core::{Command, Delivery, Disposition, Lane};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const RELEASE: Disposition = Disposition::Release { delay: Duration::ZERO };

fn numbered(count: usize) -> Vec<Payload> {
    (0..count).map(|n| Payload::value(format!("{{\"id\":\"m{n}\"}}"))).collect()
}

fn payloads(deliveries: &[Delivery]) -> Vec<Payload> {
    deliveries.iter().map(|delivery| Payload::of(&delivery.record)).collect()
}

/// Publishes to lane 0 and takes it all.
async fn published(
    harness: &impl SourceHarness,
    count: usize,
) -> Result<(Probe, Vec<Delivery>), CaseFailure> {
    harness.publish(0, numbered(count)).await;
    let mut probe = Probe::start(harness, WIDE).await?;
    let taken = probe.take(count).await?;
    Ok((probe, taken))
}

/// A new source meets all of these, in any order, whatever else it meets.
async fn come_again(harness: &impl SourceHarness, expected: &[Payload]) -> CaseResult {
    let mut probe = Probe::start(harness, WIDE).await?;
    let mut missing = expected.to_vec();
    while !missing.is_empty() {
        let next =
            probe.take(1).await.map_err(|_| CaseFailure(format!("these never came again: {missing:?}")))?;
        missing.retain(|payload| *payload != Payload::of(&next[0].record));
    }
    probe.close().await;
    Ok(())
}

async fn settled_becomes(harness: &impl SourceHarness, expected: usize) -> CaseResult {
    let until = Instant::now() + harness.features().patience;
    loop {
        let settled = harness.settled().await;
        if settled == expected || Instant::now() >= until {
            return same("settled at the broker", &settled, &expected);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn whole_records() -> Vec<Payload> {
    let bytes = |b: &'static [u8]| Some(Bytes::from_static(b));
    vec![
        Payload::value("plain").with_key("k"),
        Payload::default(),
        Payload::default().with_key(""),
        Payload::value(""),
        Payload::value(&b"\x00\xff\xfe\r\n\xc3"[..]).with_key(&b"\x00\x80"[..]),
        Payload::value("headers")
            .with_header("a", bytes(b"1"))
            .with_header("b", None)
            .with_header("a", bytes(b"2"))
            .with_header("empty", bytes(b""))
            .with_header("bytes", bytes(b"\xff\x00")),
        Payload::value(vec![b'x'; 100_000]),
    ]
}

fn lines() -> Vec<Payload> {
    let lines: [&[u8]; 6] =
        [b"{\"id\":1}", b"not json", b"  \t ", b"\xff\xfe\x00\x01", "\u{feff}{}".as_bytes(), b"\"a\\nb\""];
    let mut lines: Vec<Payload> = lines.into_iter().map(Payload::value).collect();
    lines.push(Payload::value(vec![b'x'; 100_000]));
    lines
}

pub(super) async fn delivers_every_byte_intact(harness: &impl SourceHarness) -> CaseResult {
    let mut expected = if harness.features().whole_records { whole_records() } else { lines() };
    harness.publish(0, expected.clone()).await;
    let mut probe = Probe::start(harness, WIDE).await?;
    for delivery in probe.take(expected.len()).await? {
        let seen = Payload::of(&delivery.record);
        let at = expected.iter().position(|payload| *payload == seen);
        let at = at.ok_or_else(|| CaseFailure(format!("nobody published {seen:?}")))?;
        expected.remove(at);
        ensure(delivery.fault.is_none(), || format!("a whole record has a fault: {:?}", delivery.fault))?;
    }
    probe.close().await;
    Ok(())
}

pub(super) async fn assigns_a_lane_before_its_first_delivery(harness: &impl SourceHarness) -> CaseResult {
    let (probe, _) = published(harness, 10).await?;
    same("deliveries of a lane not assigned", &probe.unassigned, &0)
}

pub(super) async fn keeps_the_order_of_a_lane(harness: &impl SourceHarness) -> CaseResult {
    let (probe, taken) = published(harness, 50).await?;
    ensure(!probe.capabilities.ordered || payloads(&taken) == numbered(50), || {
        format!("the order was {:?}", payloads(&taken))
    })
}

pub(super) async fn tags_of_a_lane_grow(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(20)).await;
    let limits = PortLimits { batch_max: 4, ..WIDE };
    let mut probe = Probe::start(harness, limits).await?;
    let mut last: BTreeMap<Lane, u64> = BTreeMap::new();
    for delivery in probe.take(20).await? {
        let before = last.insert(delivery.lane, delivery.tag.0);
        ensure(before.is_none_or(|before| before < delivery.tag.0), || {
            format!("tag {} came after {before:?}", delivery.tag.0)
        })?;
    }
    Ok(())
}

pub(super) async fn batches_keep_their_limits(harness: &impl SourceHarness) -> CaseResult {
    let mut all: Vec<Payload> = (0..20).map(|n| Payload::value(format!("{n:060}"))).collect();
    all.insert(7, Payload::value(vec![b'l'; 500]));
    harness.publish(0, all.clone()).await;
    let limits = PortLimits { batch_max: 3, batch_max_bytes: 150, ..WIDE };
    let mut probe = Probe::start(harness, limits).await?;
    probe.take(all.len()).await?;
    for batch in &probe.batches {
        let bytes: usize = batch.iter().map(|delivery| delivery.record.size_bytes()).sum();
        let one_lane = batch.windows(2).all(|pair| pair[0].lane == pair[1].lane);
        let fits = (1..=3).contains(&batch.len()) && (bytes <= 150 || batch.len() == 1);
        ensure(fits && one_lane, || format!("a batch of {} with {bytes} bytes", batch.len()))?;
    }
    Ok(())
}

pub(super) async fn what_is_settled_stays_settled(harness: &impl SourceHarness) -> CaseResult {
    let (mut probe, taken) = published(harness, 10).await?;
    probe.ack(&taken);
    probe.listen_quietly().await;
    probe.close().await;
    let mut probe = Probe::start(harness, WIDE).await?;
    let again = probe.take_until_quiet().await;
    probe.close().await;
    ensure(again.is_empty(), || format!("{} settled deliveries came again", again.len()))
}

pub(super) async fn what_is_not_settled_comes_again(harness: &impl SourceHarness) -> CaseResult {
    let (probe, taken) = published(harness, 10).await?;
    probe.die().await;
    come_again(harness, &payloads(&taken)).await
}

pub(super) async fn what_is_released_comes_again(harness: &impl SourceHarness) -> CaseResult {
    let (mut probe, taken) = published(harness, 5).await?;
    probe.settle(&taken, RELEASE);
    if probe.capabilities.settle == SettleKind::Individual {
        let again = probe.take(5).await?;
        probe.ack(&again);
        probe.close().await;
        return Ok(());
    }
    probe.close().await;
    come_again(harness, &payloads(&taken)).await
}

pub(super) async fn settles_never_pass_unfinished_work(harness: &impl SourceHarness) -> CaseResult {
    let (mut probe, taken) = published(harness, 10).await?;
    for delivery in taken[1..].iter().rev() {
        probe.ack([delivery]);
    }
    probe.listen_quietly().await;
    probe.close().await;
    come_again(harness, &payloads(&taken[..1])).await
}

pub(super) async fn an_old_epoch_settles_nothing(harness: &impl SourceHarness) -> CaseResult {
    let (mut probe, taken) = published(harness, 5).await?;
    for other in [-1, 1] {
        let wrong = taken.iter().map(|delivery| {
            let epoch = delivery.lane.epoch.wrapping_add_signed(other);
            (Lane { epoch, ..delivery.lane }, delivery.tag, Disposition::Ack)
        });
        probe.command(Command::Settle(wrong.collect()));
    }
    probe.listen_quietly().await;
    same("settled at the broker", &harness.settled().await, &0)?;
    probe.close().await;
    Ok(())
}

pub(super) async fn every_settle_is_answered(harness: &impl SourceHarness) -> CaseResult {
    let (mut probe, taken) = published(harness, 5).await?;
    probe.ack(&taken);
    let answered = |probe: &Probe| probe.answers.len() >= 5;
    ensure(probe.wait_for(answered).await, || format!("{} of 5 were answered", probe.answers.len()))?;
    let done = probe.answers.iter().all(|(lane, tag, answer)| {
        *answer == Settled::Done
            && taken.iter().any(|delivery| (delivery.lane, delivery.tag) == (*lane, *tag))
    });
    ensure(done, || format!("the answers were {:?}", probe.answers))
}

pub(super) async fn a_held_lane_is_silent(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(40)).await;
    let mut probe = Probe::start(harness, NARROW).await?;
    let first = probe.take(1).await?;
    probe.command(Command::Hold(first[0].lane));
    probe.hear();
    let before = probe.take_until_quiet().await.len();
    ensure(before < 30, || format!("{before} of 39 came although the lane was held"))
}

pub(super) async fn a_released_lane_goes_on(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(40)).await;
    let mut probe = Probe::start(harness, NARROW).await?;
    let first = probe.take(1).await?;
    probe.command(Command::Hold(first[0].lane));
    let before = probe.take_until_quiet().await;
    probe.command(Command::Release(first[0].lane));
    probe.take(39 - before.len()).await?;
    Ok(())
}

pub(super) async fn a_full_port_does_not_block_commands(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(20)).await;
    let mut probe = Probe::start(harness, NARROW).await?;
    let first = probe.take(1).await?;
    // Nobody reads the port from here on.
    tokio::time::sleep(harness.features().quiet).await;
    probe.ack(&first);
    settled_becomes(harness, 1).await
}

pub(super) async fn close_settles_what_was_asked(harness: &impl SourceHarness) -> CaseResult {
    let (probe, taken) = published(harness, 10).await?;
    probe.ack(&taken);
    probe.close().await;
    same("settled at the broker", &harness.settled().await, &10)
}

pub(super) async fn close_ends_the_deliveries(harness: &impl SourceHarness) -> CaseResult {
    let (probe, _) = published(harness, 10).await?;
    ensure(probe.close().await, || "the deliveries were not closed".into())
}

pub(super) async fn nothing_is_settled_when_the_engine_is_gone(harness: &impl SourceHarness) -> CaseResult {
    let (probe, _) = published(harness, 10).await?;
    probe.die().await;
    tokio::time::sleep(harness.features().quiet).await;
    same("settled at the broker", &harness.settled().await, &0)
}

pub(super) async fn a_revoke_waits_for_drained(harness: &impl SourceHarness) -> CaseResult {
    let SourceFeatures { rebalances, lanes, .. } = harness.features();
    if !rebalances {
        return Ok(());
    }
    for lane in 0..lanes {
        harness.publish(lane, numbered(5)).await;
    }
    let mut first = Probe::start(harness, WIDE).await?;
    let mut taken = vec![];
    for _ in 0..lanes {
        taken.extend(first.take(5).await?);
    }
    let mut second = Probe::start(harness, WIDE).await?;
    ensure(first.wait_for(|probe| !probe.revoking.is_empty()).await, || "no lane was asked back".into())?;
    second.listen_quietly().await;
    let early: Vec<Lane> = second.assigned.clone();
    let revoked = first.revoking.clone();
    first.ack(taken.iter().filter(|delivery| revoked.contains(&delivery.lane)));
    first.command(Command::Drained(revoked.clone()));
    ensure(second.wait_for(|probe| !probe.assigned.is_empty()).await, || {
        "the other source got no lane".into()
    })?;
    ensure(early.is_empty(), || format!("{early:?} were given away before Drained"))?;
    let again = second.take_until_quiet().await;
    ensure(again.is_empty(), || format!("{} deliveries settled before Drained came again", again.len()))
}

pub(super) async fn an_extended_lease_is_kept(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(3)).await;
    let mut probe = Probe::start(harness, WIDE).await?;
    let taken = probe.take(3).await?;
    let Some(lease) = probe.capabilities.lease else { return Ok(()) };
    for _ in 0..5 {
        tokio::time::sleep(lease / 2).await;
        probe.command(Command::Extend(taken.iter().map(|delivery| (delivery.lane, delivery.tag)).collect()));
    }
    let again = probe.take_until_quiet().await;
    ensure(again.is_empty(), || format!("{} came again although extended", again.len()))?;
    probe.ack(&taken);
    settled_becomes(harness, 3).await
}

pub(super) async fn an_ended_lease_comes_again(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(3)).await;
    let mut probe = Probe::start(harness, WIDE).await?;
    let taken = probe.take(3).await?;
    if probe.capabilities.lease.is_none() {
        return Ok(());
    }
    let again = probe.take(3).await?;
    probe.ack(&taken);
    probe.listen_quietly().await;
    same("settled by those whose lease was over", &harness.settled().await, &0)?;
    probe.ack(&again);
    settled_becomes(harness, 3).await
}

pub(super) async fn caught_up_comes_after_everything_else(harness: &impl SourceHarness) -> CaseResult {
    harness.publish(0, numbered(20)).await;
    let mut probe = Probe::start(harness, NARROW).await?;
    let lane = probe.take(20).await?[0].lane;
    let caught_up = |probe: &Probe| probe.caught_up.iter().any(|(of, _)| *of == lane);
    ensure(probe.wait_for(caught_up).await, || "the source never caught up".into())?;
    let came = probe.caught_up.iter().find(|(of, _)| *of == lane).map_or(0, |(_, came)| *came);
    same("deliveries before it had caught up", &came, &20)
}
