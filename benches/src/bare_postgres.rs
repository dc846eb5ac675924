//! The hand-written transaction: claim and effects through tokio-postgres, as a careful engineer writes
//! it without a framework. Statements and session settings are the ones Handstamp uses.

use crate::harness::Res;
use crate::postgres;
use crate::wrap::Marks;
use serde::Deserialize;
use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Statement};
use uuid::Uuid;

/// The claim: insert what is new, answer what was inserted. Ids come sorted.
pub(crate) const CLAIM: &str = "
INSERT INTO handstamp.inbox (digest, seen_at, consumer, state, id)
SELECT c.digest, (date_part('epoch', now()) - 1577836800)::int4, 1, 'a', c.id
FROM unnest($1::bytea[], $2::int8[]) AS c (id, digest)
ON CONFLICT DO NOTHING RETURNING id";

/// The same for one id.
pub(crate) const CLAIM_ONE: &str = "
INSERT INTO handstamp.inbox (digest, seen_at, consumer, state, id)
VALUES ($2, (date_part('epoch', now()) - 1577836800)::int4, 1, 'a', $1)
ON CONFLICT DO NOTHING RETURNING id";

/// Said once a session; Handstamp says the same in every transaction.
const SETTINGS: &str = "SET synchronous_commit = on; SET lock_timeout = '5s'; SET statement_timeout = '30s';
SET idle_in_transaction_session_timeout = '60s'";

/// A message as the loop keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Deserialize)]
struct Body {
    account_id: i64,
    amount: i64,
}

/// One connection of the loop with what it prepared.
pub(crate) struct Lane {
    client: Client,
    claim: Statement,
    claim_one: Statement,
    update: Statement,
    insert: Statement,
    inbox: bool,
    sets: Option<crate::set::Statements>,
}

impl Lane {
    /// Connects and prepares.
    pub(crate) async fn open(url: &str, inbox: bool, set: bool) -> Res<Self> {
        let client = postgres::connect(url).await?;
        client.batch_execute(SETTINGS).await?;
        let sets = if set { Some(crate::set::Statements::prepare(&client).await?) } else { None };
        Ok(Self {
            claim: client.prepare(CLAIM).await?,
            claim_one: client.prepare(CLAIM_ONE).await?,
            update: client.prepare(postgres::UPDATE).await?,
            insert: client.prepare(postgres::INSERT).await?,
            client,
            inbox,
            sets,
        })
    }

    /// Applies a batch in one transaction; after a deadlock or serialization failure again.
    pub(crate) async fn apply(&self, batch: &[Taken], marks: &Marks) -> Res<()> {
        loop {
            let error = match self.transaction(batch, marks).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.client.batch_execute("ROLLBACK").await?;
            let code = error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::code);
            if code != Some(&SqlState::T_R_DEADLOCK_DETECTED) && code != Some(&SqlState::LOCK_NOT_AVAILABLE) {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn transaction(&self, batch: &[Taken], marks: &Marks) -> Res<()> {
        let ids: Vec<Uuid> =
            batch.iter().map(|taken| Uuid::try_parse(&taken.id)).collect::<Result<_, _>>()?;
        let mut begin: Pin<Box<dyn Future<Output = Result<(), tokio_postgres::Error>> + '_>> =
            Box::pin(self.client.batch_execute("BEGIN"));
        let begun = poll_once(&mut begin).await;
        let fresh = if self.inbox { Some(self.claim(batch, &ids).await?) } else { None };
        marks.claimed();
        if let Some(sets) = &self.sets {
            let is_fresh = |id: &Uuid| fresh.as_ref().is_none_or(|fresh| fresh.contains(id));
            sets.apply(&self.client, batch.iter().zip(ids).filter(|(_, id)| is_fresh(id))).await?;
            if let Some(begun) = begun {
                begun?;
            } else {
                begin.await?;
            }
            marks.committing();
            self.client.batch_execute("COMMIT").await?;
            return Ok(());
        }
        let mut rows = vec![];
        for (taken, id) in batch.iter().zip(ids) {
            if fresh.as_ref().is_none_or(|fresh| fresh.contains(&id)) {
                let body: Body = serde_json::from_slice(&taken.body)?;
                rows.push((UuidParameter(id), body.account_id, body.amount));
            }
        }
        let mut effects = vec![];
        for (id, account, amount) in &rows {
            let update: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [amount, account];
            let insert: [&(dyn tokio_postgres::types::ToSql + Sync); 3] = [id, account, amount];
            effects.push(Box::pin(async move { self.client.execute(&self.update, &update).await }) as Effect<'_>);
            effects.push(Box::pin(async move { self.client.execute(&self.insert, &insert).await }));
        }
        let done = run_all(&mut effects).await?;
        match begun {
            Some(begun) => begun?,
            None => begin.await?,
        }
        if let Some(wrong) = done.iter().position(|touched| *touched != 1) {
            return Err(format!("an effect of message {} touched {} rows", wrong / 2, done[wrong]).into());
        }
        marks.committing();
        self.client.batch_execute("COMMIT").await?;
        Ok(())
    }

    async fn claim(&self, batch: &[Taken], ids: &[Uuid]) -> Res<HashSet<Uuid>> {
        let digest = |taken: &Taken| {
            let hash = blake3::hash(&taken.body);
            let [a, b, c, d, e, f, g, h, ..] = *hash.as_bytes();
            i64::from_be_bytes([a, b, c, d, e, f, g, h])
        };
        let rows = if let ([id], [taken]) = (ids, batch) {
            self.client.query(&self.claim_one, &[&id.as_bytes().as_slice(), &digest(taken)]).await?
        } else {
            let mut sorted: Vec<(&[u8], i64)> =
                ids.iter().zip(batch).map(|(id, taken)| (id.as_bytes().as_slice(), digest(taken))).collect();
            sorted.sort_unstable();
            let (ids, digests): (Vec<&[u8]>, Vec<i64>) = sorted.into_iter().unzip();
            self.client.query(&self.claim, &[&ids, &digests]).await?
        };
        let mut fresh = HashSet::with_capacity(rows.len());
        for row in &rows {
            fresh.insert(Uuid::from_slice(row.try_get(0)?)?);
        }
        Ok(fresh)
    }
}

type Effect<'a> = Pin<Box<dyn Future<Output = Result<u64, tokio_postgres::Error>> + 'a>>;

/// The driver's own support for UUIDs is an optional feature; this is all of it that is needed.
#[derive(Debug)]
pub(crate) struct UuidParameter(Uuid);

impl UuidParameter {
    pub(crate) fn new(id: Uuid) -> Self {
        Self(id)
    }
}

impl tokio_postgres::types::ToSql for UuidParameter {
    fn to_sql(
        &self,
        _: &tokio_postgres::types::Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(tokio_postgres::types::IsNull::No)
    }

    fn accepts(ty: &tokio_postgres::types::Type) -> bool {
        *ty == tokio_postgres::types::Type::UUID
    }

    tokio_postgres::types::to_sql_checked!();
}

/// Polls a future once, so that what it sends goes out.
async fn poll_once<T: Unpin + Future>(future: &mut T) -> Option<T::Output> {
    poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *future).poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// Sends all, then takes each answer in order.
async fn run_all(effects: &mut [Effect<'_>]) -> Res<Vec<u64>> {
    let mut done = Vec::with_capacity(effects.len());
    for effect in effects.iter_mut() {
        done.push(poll_once(effect).await);
    }
    let mut touched = Vec::with_capacity(effects.len());
    for (effect, done) in effects.iter_mut().zip(done) {
        touched.push(match done {
            Some(done) => done?,
            None => effect.await?,
        });
    }
    Ok(touched)
}
