//! All headers of a record in one run of bytes: lossless, for one column of any database.
//!
//! No headers: no bytes. Otherwise the version byte `1`, then for each header in order: the name's
//! length and bytes, then 0 for a null value or the value's length + 1 and its bytes. Lengths are
//! unsigned LEB128.

use bytes::Bytes;
use handstamp_core::{Header, Headers};

const VERSION: u8 = 1;

/// The bytes are not what [`encode`] writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stored headers are damaged at byte {at}")]
pub struct DamagedHeaders {
    /// Where reading stopped.
    pub at: usize,
}

/// All headers as bytes.
#[must_use]
pub fn encode(headers: &Headers) -> Vec<u8> {
    let mut out = Vec::new();
    for header in headers.as_slice() {
        if out.is_empty() {
            out.push(VERSION);
        }
        put_length(&mut out, header.name.len());
        out.extend_from_slice(&header.name);
        match &header.value {
            None => out.push(0),
            Some(value) => {
                put_length(&mut out, value.len().saturating_add(1));
                out.extend_from_slice(value);
            }
        }
    }
    out
}

/// The headers behind bytes that [`encode`] wrote.
///
/// # Errors
/// [`DamagedHeaders`] when the bytes were not written by `encode`.
pub fn decode(bytes: &[u8]) -> Result<Headers, DamagedHeaders> {
    let mut reader = Reader { bytes, at: 0 };
    match bytes.first() {
        None => return Ok(Headers::default()),
        Some(&VERSION) => reader.at = 1,
        Some(_) => return Err(DamagedHeaders { at: 0 }),
    }
    let mut headers = Vec::new();
    while reader.at < bytes.len() {
        let length = reader.length()?;
        let name = reader.take(length)?;
        let value = match reader.length()?.checked_sub(1) {
            None => None,
            Some(length) => Some(reader.take(length)?),
        };
        headers.push(Header::new(name, value));
    }
    Ok(Headers::new(headers))
}

fn put_length(out: &mut Vec<u8>, mut length: usize) {
    loop {
        let low = u8::try_from(length & 0x7f).unwrap_or_default();
        length >>= 7;
        if length == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn damaged(&self) -> DamagedHeaders {
        DamagedHeaders { at: self.at }
    }

    fn length(&mut self) -> Result<usize, DamagedHeaders> {
        let mut length = 0_usize;
        for shift in (0..63).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(self.damaged())?;
            self.at += 1;
            length |= usize::from(byte & 0x7f).checked_shl(shift).ok_or(self.damaged())?;
            if byte & 0x80 == 0 {
                return Ok(length);
            }
        }
        Err(self.damaged())
    }

    fn take(&mut self, length: usize) -> Result<Bytes, DamagedHeaders> {
        let end = self.at.checked_add(length).ok_or(self.damaged())?;
        let taken = self.bytes.get(self.at..end).ok_or(self.damaged())?;
        self.at = end;
        Ok(Bytes::copy_from_slice(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Headers> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
        let header = (bytes(), proptest::option::of(bytes()));
        proptest::collection::vec(header, 0..6).prop_map(|headers| {
            Headers::new(
                headers.into_iter().map(|(name, value)| Header::new(name, value.map(Bytes::from))).collect(),
            )
        })
    }

    proptest! {
        #[test]
        fn headers_come_back_as_they_were(headers in headers()) {
            prop_assert_eq!(decode(&encode(&headers)).unwrap(), headers);
        }

        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(headers) = decode(&bytes) {
                prop_assert!(headers.as_slice().len() <= bytes.len());
            }
            let _ = decode(&[&[1], bytes.as_slice()].concat());
        }
    }

    #[test]
    fn null_and_empty_values_and_order_are_kept() {
        let headers = Headers::new(vec![
            Header::new("a", None),
            Header::new("a", Some(Bytes::new())),
            Header::new("", Some(Bytes::from_static(b"\xff"))),
        ]);
        assert_eq!(decode(&encode(&headers)).unwrap(), headers);
        assert!(encode(&Headers::default()).is_empty());
    }
}
