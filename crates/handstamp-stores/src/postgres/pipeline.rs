//! Sends many statements before the first is answered.
//!
//! The driver sends a request at the first poll of its future, so: poll each once, in order; then wait
//! for each, in order. Every answer is read, also behind a failed one.

use std::future::poll_fn;
use std::task::Poll;

/// The outputs of futures that were started in the order given.
pub(crate) async fn in_order<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut early = Vec::with_capacity(futures.len());
    poll_fn(|context| {
        for future in &mut futures {
            early.push(match future.as_mut().poll(context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            });
        }
        Poll::Ready(())
    })
    .await;
    let mut outputs = Vec::with_capacity(futures.len());
    for (future, early) in futures.into_iter().zip(early) {
        outputs.push(match early {
            Some(output) => output,
            None => future.await,
        });
    }
    outputs
}
