//! Connections of probers and scrapers: how many at a time, how long each, how much each may send.
//!
//! One request a connection, so that an idle one cannot stay. With as many open as may be, others wait in the
//! operating system's queue for the seconds that an open one has at most.

use super::answer::{Answer, answer};
use super::view::View;
use crate::signals::Stop;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// Connections open at a time.
const CONNECTIONS_MAX: usize = 16;
/// The longest time for all of a connection: its request, and the answer read.
const CONNECTION_LIMIT: Duration = Duration::from_secs(5);
/// The longest request line with its headers, and how many of those.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
/// Where no connection can be taken (no file handle is left): not asked again at once.
const REST: Duration = Duration::from_millis(100);

/// Answers until the run ends.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    view: Arc<View>,
    stop: Stop,
    mut ended: oneshot::Receiver<()>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "nothing is answered to probes and scrapers"),
    };
    let noticed = Arc::clone(&view);
    // A stop is told at once, whatever the engine's thread is in.
    tokio::spawn(async move {
        stop.asked().await;
        noticed.live().vitals().stop();
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            // Never closed.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            _ = &mut ended => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => drop(tokio::spawn(one(stream, Arc::clone(&view), place))),
            Err(error) => {
                tracing::debug!(%error, "a connection of a prober or scraper was not taken");
                tokio::time::sleep(REST).await;
            }
        }
    }
}

/// One connection with its one request.
async fn one(stream: TcpStream, view: Arc<View>, _place: Option<OwnedSemaphorePermit>) {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answer = answer(&view, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response(answer)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_LIMIT)
        .max_buf_size(REQUEST_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Whatever went wrong with it is the other side's.
    let _ = tokio::time::timeout(CONNECTION_LIMIT, connection).await;
}

fn response(answer: Answer) -> Response<String> {
    let mut response = Response::new(answer.body);
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.media_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
