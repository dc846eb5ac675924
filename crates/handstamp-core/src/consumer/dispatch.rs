//! Runs the user's handler: one time limit, panics caught, both kinds of handler behind one trait.

use crate::crash_point::CrashPoint;
use crate::handler::{BatchHandler, Handler, HandlerError, Route};
use crate::message::Message;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};
use tokio::time::timeout;

/// How long handlers of one message after another may keep the thread for themselves.
const TURN: Duration = Duration::from_millis(10);

/// Why a run of the handler failed.
#[derive(Debug)]
pub(crate) enum Cause {
    Error(HandlerError),
    Panic(String),
    Timeout(Duration),
}

/// A failed run; `culprit` is an index into the messages where it is known.
#[derive(Debug)]
pub(crate) struct RunFailure {
    pub(crate) culprit: Option<usize>,
    pub(crate) cause: Cause,
}

/// Both kinds of handler, boxed once a batch.
pub(crate) trait DynHandler<Tx>: Send + Sync + 'static {
    /// What becomes of a message before its claim.
    fn route(&self, message: &Message) -> Route;

    fn run<'a>(
        &'a self,
        tx: &'a mut Tx,
        messages: &'a [Message],
        limit: Duration,
    ) -> LocalBoxFuture<'a, Result<(), RunFailure>>;
}

pub(crate) struct OneByOne<H>(pub(crate) H);

impl<Tx: Send + 'static, H: Handler<Tx>> DynHandler<Tx> for OneByOne<H> {
    fn route(&self, _: &Message) -> Route {
        Route::Run
    }

    fn run<'a>(
        &'a self,
        tx: &'a mut Tx,
        messages: &'a [Message],
        limit: Duration,
    ) -> LocalBoxFuture<'a, Result<(), RunFailure>> {
        async move {
            let mut turn_began = Instant::now();
            for (at, message) in messages.iter().enumerate() {
                // A handler may never wait (SQLite's do not); a lane may be taken away meanwhile.
                if turn_began.elapsed() >= TURN {
                    tokio::task::yield_now().await;
                    turn_began = Instant::now();
                }
                if at > 0 {
                    CrashPoint::BetweenEffects.reached();
                }
                // Made inside the guarded future: a handler may panic before its first await.
                let handled = AssertUnwindSafe(async { self.0.handle(tx, message).await }).catch_unwind();
                let cause = match timeout(limit, handled).await {
                    Ok(Ok(Ok(()))) => continue,
                    Ok(Ok(Err(error))) => Cause::Error(error),
                    Ok(Err(panic)) => Cause::Panic(panic_text(&*panic)),
                    Err(_) => Cause::Timeout(limit),
                };
                return Err(RunFailure { culprit: Some(at), cause });
            }
            Ok(())
        }
        .boxed_local()
    }
}

pub(crate) struct Batched<H>(pub(crate) H);

impl<Tx: Send + 'static, H: BatchHandler<Tx>> DynHandler<Tx> for Batched<H> {
    fn route(&self, message: &Message) -> Route {
        self.0.route(message)
    }

    fn run<'a>(
        &'a self,
        tx: &'a mut Tx,
        messages: &'a [Message],
        limit: Duration,
    ) -> LocalBoxFuture<'a, Result<(), RunFailure>> {
        async move {
            let handled = AssertUnwindSafe(async { self.0.handle_batch(tx, messages).await }).catch_unwind();
            let (culprit, cause) = match timeout(limit, handled).await {
                Ok(Ok(Ok(()))) => return Ok(()),
                Ok(Ok(Err(batch))) => {
                    (batch.culprit.filter(|at| *at < messages.len()), Cause::Error(batch.error))
                }
                Ok(Err(panic)) => (None, Cause::Panic(panic_text(&*panic))),
                Err(_) => (None, Cause::Timeout(limit)),
            };
            Err(RunFailure { culprit, cause })
        }
        .boxed_local()
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}
