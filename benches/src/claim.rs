//! The claim of a batch alone: ours against the bare statement, for fresh ids and for duplicates.

use crate::bare_postgres::CLAIM;
use crate::harness::{Bar, Figure, Options, Program, Res, Sample, Side};
use crate::ours;
use crate::postgres::{self, Database};
use crate::programs::unique;
use handstamp::{Claim, ClaimRequest, Fingerprint, MessageId, Store};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio_postgres::Client;
use uuid::Uuid;

const IDS: u64 = 1_000;
/// Claims before the clock counts: plans and caches are warm then.
const WARM: u64 = 5;
const NAME: &str = "wallet";

/// What answers the claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The engine's way: BEGIN, settings and claim in one flight.
    Begin,
    /// The same by hand: BEGIN and the statement in one flight.
    BareBegin,
    /// The same by hand, and what was known is read, so that the answer says as much as ours.
    BareReading,
    /// `claim_many` in an open transaction.
    Many,
    /// The statement by hand in an open transaction.
    BareMany,
}

/// The program.
pub(crate) fn program(options: &Options) -> Program {
    let rounds = options.count(50, 5);
    let mut sides = vec![];
    for (label, how) in [
        ("begin", How::Begin),
        ("bare begin", How::BareBegin),
        ("claim_many", How::Many),
        ("bare", How::BareMany),
    ] {
        for (ids, fresh) in [("fresh", true), ("duplicates", false)] {
            let label = format!("{label}, {ids}");
            sides.push(Side::new(&label, move || run(how, fresh, rounds)));
        }
    }
    sides.push(Side::new("bare begin and read, duplicates", move || run(How::BareReading, false, rounds)));
    let figure = |label: &str, of: &str, against: &str| Figure {
        label: format!("claim of 1,000 ids, {label}: time of ours / bare"),
        value: "ms_per_claim".into(),
        of: of.into(),
        against: Some(against.into()),
        bar: if against.contains("read") { Bar::None } else { Bar::AtMost(1.2) },
    };
    Program {
        name: "claim",
        title: "The claim of a batch of 1,000 ids",
        about: "The bare statement is `INSERT … SELECT … FROM unnest … ON CONFLICT DO NOTHING RETURNING id` on the \
                same table. Ours also checks the consumer and the transaction's mark, and answers state, first \
                time seen and reuse of each known id. Only the claim is timed, not the commit. The server plans the \
                statement of `claim_many` at each call, since the connection is the caller's; the others are prepared.",
        settings: vec![("ids a claim", IDS.to_string()), ("claims a run", rounds.to_string())],
        sides,
        figures: vec![
            figure("fresh, engine", "begin, fresh", "bare begin, fresh"),
            figure("duplicates, engine", "begin, duplicates", "bare begin, duplicates"),
            figure(
                "duplicates, engine, a bare claim that also reads what is known",
                "begin, duplicates",
                "bare begin and read, duplicates",
            ),
            figure("fresh, claim_many", "claim_many, fresh", "bare, fresh"),
            figure("duplicates, claim_many", "claim_many, duplicates", "bare, duplicates"),
            figure(
                "duplicates, claim_many, a bare claim that also reads what is known",
                "claim_many, duplicates",
                "bare begin and read, duplicates",
            ),
        ],
    }
}

/// Claims of ids that are all known, by the engine's way or by hand.
pub(crate) fn duplicates(ours: bool, rounds: u64) -> Res<Sample> {
    run(if ours { How::Begin } else { How::BareBegin }, false, rounds)
}

struct Ids {
    requests: Vec<ClaimRequest>,
    stored: Vec<Vec<u8>>,
    digests: Vec<i64>,
}

impl Ids {
    fn fresh() -> Res<Self> {
        let mut ids = Self { requests: vec![], stored: vec![], digests: vec![] };
        for digest in 0..i64::try_from(IDS)? {
            let id = Uuid::now_v7();
            let message_id = MessageId::try_from(id.to_string().as_str())?;
            ids.requests.push(ClaimRequest { id: message_id, digest: Some(digest) });
            ids.stored.push(id.as_bytes().to_vec());
            ids.digests.push(digest);
        }
        Ok(ids)
    }
}

fn run(how: How, fresh: bool, rounds: u64) -> Res<Sample> {
    let database = Database::create(&unique("claim"), 1)?;
    postgres::runtime()?.block_on(async {
        let mut took = Duration::ZERO;
        let mut claimer = Claimer::open(&database.url).await?;
        let mut ids = Ids::fresh()?;
        claimer.claim(how, &ids, true).await?;
        for round in 0..WARM + rounds {
            if fresh {
                ids = Ids::fresh()?;
            }
            let time = claimer.claim(how, &ids, fresh).await?;
            if round >= WARM {
                took += time;
            }
        }
        let mut sample = Sample::timed(IDS * rounds, took.as_secs_f64());
        sample.set("ms_per_claim", took.as_secs_f64() * 1e3 / crate::harness::float(rounds));
        Ok(sample)
    })
}

struct Claimer {
    store: handstamp::postgres::PostgresStore,
    key: handstamp::ConsumerKey,
    consumer: handstamp::postgres::ConsumerName,
    client: Client,
    bare: tokio_postgres::Statement,
    known: tokio_postgres::Statement,
}

impl Claimer {
    async fn open(url: &str) -> Res<Self> {
        let store = ours::postgres_store(url)?;
        let key =
            store.register(&handstamp::ConsumerName::new(NAME)?, &Fingerprint("bench".into()), false).await?;
        let client = postgres::connect(url).await?;
        let consumer = handstamp::postgres::ConsumerName::register(&client, NAME).await?;
        let bare = client.prepare(CLAIM).await?;
        let known = client.prepare(KNOWN).await?;
        Ok(Self { store, key, consumer, client, bare, known })
    }

    async fn read_known(&self, ids: &Ids) -> Res<HashMap<Vec<u8>, (i32, i64, i8)>> {
        let mut known = HashMap::with_capacity(ids.stored.len());
        for row in self.client.query(&self.known, &[&ids.stored]).await? {
            known.insert(row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        }
        if known.len() != ids.stored.len() {
            return Err(format!("{} of {} ids are known", known.len(), ids.stored.len()).into());
        }
        Ok(known)
    }

    /// Claims and commits; the time of the claim alone. Fails when the answers are not as they must be.
    async fn claim(&mut self, how: How, ids: &Ids, fresh: bool) -> Res<Duration> {
        let expected = if fresh { ids.requests.len() } else { 0 };
        let (took, new) = match how {
            How::Begin => {
                let started = Instant::now();
                let (tx, claims) = self.store.begin(&self.key, &ids.requests).await?;
                let took = started.elapsed();
                self.store.commit(tx).await?;
                (took, firsts(&claims))
            }
            How::BareBegin | How::BareReading => {
                let started = Instant::now();
                let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&ids.stored, &ids.digests];
                let (begun, rows) =
                    tokio::join!(self.client.batch_execute("BEGIN"), self.client.query(&self.bare, &values));
                begun?;
                let new = rows?.len();
                if how == How::BareReading && new < ids.stored.len() {
                    self.read_known(ids).await?;
                }
                let took = started.elapsed();
                self.client.batch_execute("COMMIT").await?;
                (took, new)
            }
            How::Many => {
                let tx = self.client.transaction().await?;
                let started = Instant::now();
                let claims = handstamp::postgres::claim_many(&tx, &self.consumer, &ids.requests).await?;
                let took = started.elapsed();
                tx.commit().await?;
                (took, firsts(&claims))
            }
            How::BareMany => {
                let tx = self.client.transaction().await?;
                let started = Instant::now();
                let new = tx.query(&self.bare, &[&ids.stored, &ids.digests]).await?.len();
                let took = started.elapsed();
                tx.commit().await?;
                (took, new)
            }
        };
        if new != expected {
            return Err(format!(
                "{how:?}: {new} of {} ids were new, expected {expected}",
                ids.requests.len()
            )
            .into());
        }
        Ok(took)
    }
}

/// What a claim by hand reads of the ids that had a row.
const KNOWN: &str = "
SELECT i.id, i.seen_at, i.digest, i.state FROM unnest($1::bytea[]) AS u (id)
JOIN handstamp.inbox AS i ON i.id = u.id AND i.consumer = 1";

fn firsts(claims: &[Claim]) -> usize {
    claims.iter().filter(|claim| **claim == Claim::First).count()
}
