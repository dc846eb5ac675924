//! An id is bytes: two ids are one only when their bytes are the same.

use super::{StoreHarness, claim, claims_are, id, register};
use crate::{CaseFailure, CaseResult};
use handstamp_core::{ClaimRequest, MessageId};
use std::collections::BTreeSet;

/// Every id is First once and, asked again alone and together, a Duplicate.
async fn are_exact<H: StoreHarness>(harness: &H, ids: Vec<MessageId>) -> CaseResult {
    let store = harness.open().await;
    let consumer = register(&store, "wallet").await?;
    let requests: Vec<ClaimRequest> =
        ids.into_iter().map(|id| ClaimRequest { id, digest: Some(7) }).collect();
    for chunk in requests.chunks(100) {
        claims_are(&claim(&store, &consumer, chunk).await?, &"F".repeat(chunk.len()))
            .map_err(|failure| CaseFailure(format!("{failure} for {:?}", shown(chunk))))?;
    }
    for chunk in requests.chunks(100) {
        claims_are(&claim(&store, &consumer, chunk).await?, &"D".repeat(chunk.len()))
            .map_err(|failure| CaseFailure(format!("{failure} for {:?}", shown(chunk))))?;
    }
    Ok(())
}

fn shown(chunk: &[ClaimRequest]) -> Vec<String> {
    chunk.iter().map(|request| request.id.to_string().chars().take(40).collect()).collect()
}

pub(crate) async fn ids_are_exact<H: StoreHarness>(harness: &H) -> CaseResult {
    let uuid = "0193f5a0-7c3e-7b1a-8000-0123456789ab";
    let upper = uuid.to_uppercase();
    let braces = format!("{{{uuid}}}");
    let raw = id(uuid)?.to_stored();
    let mut raw_and_nul = raw.clone();
    raw_and_nul.push(0);
    let long = vec![b'L'; MessageId::MAX_BYTES];
    let mut other_long = long.clone();
    other_long[MessageId::MAX_BYTES - 1] = b'M';
    let texts: [&[u8]; 36] = [
        b"a",
        b"A",
        b"a ",
        b" a",
        b"a\t",
        b"a\n",
        b"a\r\n",
        b"a\0",
        b"a\0b",
        b"\0",
        b"1e3",
        b"1E3",
        b"1000",
        b"1000.0",
        b"007",
        b"7",
        b"07",
        b"null",
        b"true",
        b"x'00'",
        b"9007199254740993",
        b"9007199254740992",
        b"\xff",
        b"\xff\xfe",
        b"\xc3\xa9",
        b"e\xcc\x81",
        b"'",
        b"\\",
        b"%",
        b"_",
        b"123456789012345",
        b"1234567890123456",
        b"1234567890123456\0",
        b"12345678901234567",
        b"\x00\x00",
        b"\"a\"",
    ];
    let mut ids: Vec<MessageId> = texts.into_iter().map(id).collect::<Result<_, _>>()?;
    for bytes in
        [uuid.as_bytes(), upper.as_bytes(), braces.as_bytes(), &raw, &raw_and_nul, &long, &other_long]
    {
        ids.push(id(bytes)?);
    }
    are_exact(harness, ids).await
}

pub(crate) async fn random_ids_are_exact<H: StoreHarness>(harness: &H) -> CaseResult {
    let mut random = Random(0x5DEE_CE66_D1CE_4E5B);
    let mut ids = BTreeSet::new();
    while ids.len() < 1_000 {
        let kind = random.below(4);
        let length = 1 + usize::try_from(random.below(if kind == 0 { 1_024 } else { 20 })).unwrap_or(0);
        let alphabet: &[u8] = match kind {
            0 | 1 => b"",
            2 => b"\0aA ",
            _ => b"0123456789abcdef-",
        };
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                let at = usize::try_from(random.below(256)).unwrap_or(0);
                let any = u8::try_from(at).unwrap_or(0);
                if alphabet.is_empty() { any } else { alphabet[at % alphabet.len()] }
            })
            .collect();
        ids.extend(MessageId::new(bytes).ok());
    }
    are_exact(harness, ids.into_iter().collect()).await
}

/// A small generator (xorshift): the same ids in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
