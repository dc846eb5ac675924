//! The bounded way out to the engine: nothing is read from a partition before there is room for it.

use handstamp_core::Delivery;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{OwnedPermit, Sender};

type Permit = OwnedPermit<Vec<Delivery>>;
type Waiting = Pin<Box<dyn Future<Output = Result<Permit, SendError<()>>> + Send>>;

/// Whether a batch can go out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Yes; one call of `send` will succeed.
    Free,
    /// No; the waker is called when there is.
    Full,
    /// The engine is gone.
    Closed,
}

/// The sending end of the port.
pub(super) struct Outbox {
    sender: Sender<Vec<Delivery>>,
    permit: Option<Permit>,
    waiting: Option<Waiting>,
}

impl Outbox {
    pub(super) fn new(sender: Sender<Vec<Delivery>>) -> Self {
        Self { sender, permit: None, waiting: None }
    }

    /// Takes a place for one batch, or asks to be woken when there is one.
    pub(super) fn room(&mut self, waker: &Waker) -> Room {
        if self.permit.is_some() {
            return Room::Free;
        }
        if self.waiting.is_none() {
            match self.sender.clone().try_reserve_owned() {
                Ok(permit) => {
                    self.permit = Some(permit);
                    return Room::Free;
                }
                Err(TrySendError::Closed(_)) => return Room::Closed,
                Err(TrySendError::Full(_)) => {
                    self.waiting = Some(Box::pin(self.sender.clone().reserve_owned()))
                }
            }
        }
        let Some(waiting) = &mut self.waiting else { return Room::Full };
        match waiting.as_mut().poll(&mut TaskContext::from_waker(waker)) {
            Poll::Pending => Room::Full,
            Poll::Ready(result) => {
                self.waiting = None;
                match result {
                    Ok(permit) => {
                        self.permit = Some(permit);
                        Room::Free
                    }
                    Err(_) => Room::Closed,
                }
            }
        }
    }

    /// Sends a batch into the place that `room` took.
    pub(super) fn send(&mut self, batch: Vec<Delivery>) {
        if let Some(permit) = self.permit.take() {
            permit.send(batch);
        }
    }
}
