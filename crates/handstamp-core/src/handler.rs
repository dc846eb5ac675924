//! The seam to the user's code: one message or a batch, inside the open transaction.
//!
//! Futures need not be `Send`: the engine drives them on one thread. A handler can run more than once
//! for a message (its earlier runs were rolled back), so effects outside the database do not belong
//! here. Blocking work belongs in `tokio::task::spawn_blocking`.

use crate::message::Message;
use crate::store::FailureClass;
use std::fmt;
use std::time::Duration;

/// Any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What a handler asks for when it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decision {
    /// Try again, not before `after`. With a wait of more than one second the message is parked, so that
    /// those behind it go on.
    Retry {
        /// Shortest wait; `None` lets the policy choose.
        after: Option<Duration>,
    },
    /// Trying again cannot help: dead letter.
    Reject,
}

/// A handler's failure. `?` on any error makes one that asks for a retry.
///
/// This is deliberately no `std::error::Error`, so that `?` takes any error.
pub struct HandlerError {
    /// What to do.
    pub decision: Decision,
    /// The class of the dead letter, should it come to that; `None` lets the engine choose.
    pub class: Option<FailureClass>,
    /// What happened.
    pub source: BoxError,
}

impl HandlerError {
    /// Trying again cannot help.
    pub fn reject(error: impl Into<BoxError>) -> Self {
        Self { decision: Decision::Reject, class: None, source: error.into() }
    }

    /// Try again, not before the wait.
    pub fn retry_after(after: Duration, error: impl Into<BoxError>) -> Self {
        Self { decision: Decision::Retry { after: Some(after) }, class: None, source: error.into() }
    }

    /// The same with the class of the dead letter named.
    #[must_use]
    pub fn with_class(mut self, class: FailureClass) -> Self {
        self.class = Some(class);
        self
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.decision, self.source)
    }
}

impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self { decision: Decision::Retry { after: None }, class: None, source: error.into() }
    }
}

/// Handles one message inside the transaction.
pub trait Handler<Tx>: Send + Sync + 'static {
    /// Writes the message's effect through `tx`. Ok: commit it with the claim.
    fn handle(&self, tx: &mut Tx, message: &Message) -> impl Future<Output = Result<(), HandlerError>>;
}

impl<Tx, F> Handler<Tx> for F
where
    F: AsyncFn(&mut Tx, &Message) -> Result<(), HandlerError> + Send + Sync + 'static,
{
    fn handle(&self, tx: &mut Tx, message: &Message) -> impl Future<Output = Result<(), HandlerError>> {
        self(tx, message)
    }
}

/// A batch's failure, with the culprit where it is known.
#[derive(Debug)]
pub struct BatchError {
    /// Index of the message that failed; `None` makes the engine look for it by bisection.
    pub culprit: Option<usize>,
    /// What happened.
    pub error: HandlerError,
}

impl<E: Into<BoxError>> From<E> for BatchError {
    fn from(error: E) -> Self {
        Self { culprit: None, error: error.into().into() }
    }
}

/// What becomes of a message before anything of it is begun.
#[derive(Debug)]
pub enum Route {
    /// The handler runs for it.
    Run,
    /// Nothing of it is wanted: it is counted as unmatched and settled. No row remembers it, so that it is asked
    /// about anew when it is delivered again.
    PassOver,
    /// It cannot be handled: a dead letter, without a run.
    Reject(HandlerError),
}

/// Handles many messages inside the transaction. Messages are distinct and in the lane's order.
pub trait BatchHandler<Tx>: Send + Sync + 'static {
    /// Says of a message alone, before its claim, what becomes of it. The same message must always get the same
    /// answer: nothing but the message may decide it.
    fn route(&self, message: &Message) -> Route {
        let _ = message;
        Route::Run
    }

    /// Writes the effects of the whole batch through `tx`. Ok: commit them with the claims. With an
    /// error nothing of the batch is kept; the culprit is decided alone and the others run again.
    fn handle_batch(&self, tx: &mut Tx, batch: &[Message]) -> impl Future<Output = Result<(), BatchError>>;
}
