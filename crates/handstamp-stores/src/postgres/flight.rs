//! A sliding window of statements that were sent and not yet answered.
//!
//! The driver sends a request at the first poll of its future, so `send` polls once and keeps the rest.
//! The window is bounded in statements and in bytes; past its bound the oldest answer is awaited before
//! the next statement goes out, so that the server never idles for a whole round trip.

use super::binding::TextParameter;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use tokio_postgres::{Client, Error, Statement};

/// Statements sent before the first of them is answered.
const STATEMENTS_MAX: usize = 1000;
/// Bytes of parameters sent before the first of them is answered.
const BYTES_MAX: usize = 4 << 20;

type Answer<'a> = Pin<Box<dyn Future<Output = Result<u64, Error>> + 'a>>;

/// Where a statement comes from: its message's place in the batch and its effect's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) message: usize,
    pub(crate) effect: usize,
}

struct Sent<'a> {
    place: Place,
    bytes: usize,
    answer: Result<Result<u64, Error>, Answer<'a>>,
}

/// Statements under way, oldest first.
#[derive(Default)]
pub(crate) struct Flight<'a> {
    sent: VecDeque<Sent<'a>>,
    bytes: usize,
}

impl<'a> Flight<'a> {
    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= STATEMENTS_MAX || self.bytes >= BYTES_MAX
    }

    /// Sends a statement.
    pub(crate) async fn send(
        &mut self,
        client: &'a Client,
        statement: &'a Statement,
        place: Place,
        parameters: Vec<TextParameter>,
    ) {
        let bytes = parameters.iter().map(TextParameter::len).sum::<usize>();
        let mut answer: Answer<'a> = Box::pin(async move { client.execute_raw(statement, parameters).await });
        let early = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Poll::Ready(None),
        });
        let early = early.await;
        self.bytes += bytes;
        self.sent.push_back(Sent { place, bytes, answer: early.ok_or(answer) });
    }

    /// Waits for the oldest answer: the number of rows it touched.
    pub(crate) async fn land(&mut self) -> Option<(Place, Result<u64, Error>)> {
        let sent = self.sent.pop_front()?;
        self.bytes -= sent.bytes;
        let answer = match sent.answer {
            Ok(answer) => answer,
            Err(pending) => pending.await,
        };
        Some((sent.place, answer))
    }
}
