//! The messages of every program, and what must be found when each was applied once.

use uuid::Uuid;

/// What to publish.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) count: u64,
    pub(crate) accounts: u64,
    /// Length of the JSON body; shorter ones are padded. 0: as short as it is.
    pub(crate) body_bytes: usize,
    /// The key is the id instead of the account, so that partitions share accounts.
    pub(crate) keys_unrelated: bool,
}

impl Plan {
    /// Credits to so many accounts, keyed by account.
    pub(crate) fn new(count: u64, accounts: u64) -> Self {
        Self { count, accounts, body_bytes: 0, keys_unrelated: false }
    }
}

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Credit {
    pub(crate) key: String,
    pub(crate) id: Uuid,
    pub(crate) body: String,
}

/// What was published: enough to know by SQL whether each message was applied once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) count: u64,
    pub(crate) amount: i64,
    /// Sum of the low 48 bits of all ids.
    pub(crate) id_sum: i128,
}

/// Makes a plan's messages, one by one, and sums them up.
pub(crate) struct Credits {
    plan: Plan,
    seed: u64,
    sent: Sent,
}

impl Credits {
    /// The messages of a plan. Accounts and amounts are the same in every run; ids never are.
    pub(crate) fn new(plan: &Plan) -> Self {
        Self { plan: plan.clone(), seed: 1, sent: Sent::default() }
    }

    /// What was made so far.
    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }
}

impl Iterator for Credits {
    type Item = Credit;

    fn next(&mut self) -> Option<Credit> {
        if self.sent.count == self.plan.count {
            return None;
        }
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = self.seed >> 33;
        let account = random % self.plan.accounts;
        let amount = 1 + i64::try_from(random % 97).unwrap_or(0);
        let id = Uuid::now_v7();
        self.sent.count += 1;
        self.sent.amount += amount;
        self.sent.id_sum += i128::try_from(id.as_u128() & 0xffff_ffff_ffff).unwrap_or(0);
        let mut body = format!(r#"{{"account_id":{account},"amount":{amount}"#);
        let padding = self.plan.body_bytes.saturating_sub(body.len() + 12);
        if padding > 0 {
            body.push_str(r#","note":""#);
            body.extend(std::iter::repeat_n('x', padding));
            body.push('"');
        }
        body.push('}');
        let key = if self.plan.keys_unrelated { id.to_string() } else { account.to_string() };
        Some(Credit { key, id, body })
    }
}
