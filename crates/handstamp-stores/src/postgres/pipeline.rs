//! Sends many statements before the first is answered.
//!
//! The driver sends a request at the first poll of its future, so: poll each once, in order; then wait
//! for each, in order. Every answer is read, also behind a failed one.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// The outputs of futures that were started in the order given.
pub(crate) async fn in_order<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<(Pin<Box<F>>, Option<F::Output>)> =
        futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in &mut futures {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *output = Some(value);
            }
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(futures.len());
    for (future, output) in futures {
        outputs.push(match output {
            Some(value) => value,
            None => future.await,
        });
    }
    outputs
}
