//! Stalling on a message the first time it is handled, by whichever process.
//!
//! That it was the first time is marked by a file, shared by all processes and outside every transaction: a
//! mark that rolled back with the handler's transaction would stall the next owner too.

use super::{Res, Said, Setup, Stalling, say};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait of a frozen process for the lab to let it go on.
const FROZEN_MAX: Duration = Duration::from_secs(300);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A message that is stalled on. Its end is told however it comes: a handler whose lane is taken away in the
/// middle is dropped, and would be waited for without an end.
struct Asleep(String);

impl Asleep {
    fn on(id: &str) -> Self {
        say(&Said::Stalled(id.to_owned()));
        Self(id.to_owned())
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        say(&Said::Woke(std::mem::take(&mut self.0)));
    }
}

/// The file by which the lab tells a frozen process that it was frozen long enough.
pub(crate) fn thaw_file(folder: &Path, topic: &str, id: &str) -> PathBuf {
    folder.join(format!("{topic}.{id}.thaw"))
}

/// Whether this message is to be stalled on, now and only now. `None`: no.
pub(super) fn first_time(setup: &Setup, id: &str) -> Res<Option<(Stalling, Duration)>> {
    let Some(stall) = &setup.stall else { return Ok(None) };
    if !stall.ids.iter().any(|stalled| stalled == id) {
        return Ok(None);
    }
    let mark = setup.folder.join(format!("{}.{id}.stalled", setup.topic));
    match OpenOptions::new().write(true).create_new(true).open(mark) {
        Ok(_) => Ok(Some((stall.how, Duration::from_millis(stall.ms)))),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Stalls the calling thread on a message, the first time. The hand-written loops poll on the same thread.
pub(super) fn pass(setup: &Setup, id: &str) -> Res<()> {
    let Some((how, time)) = first_time(setup, id)? else { return Ok(()) };
    let _asleep = Asleep::on(id);
    match how {
        Stalling::Handler | Stalling::NotPolling => std::thread::sleep(time),
        Stalling::Frozen => {
            let file = thaw_file(&setup.folder, &setup.topic, id);
            for _ in 0..FROZEN_MAX.as_millis() / LOOK_EVERY.as_millis() {
                if file.exists() {
                    break;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }
    Ok(())
}

/// The same in a handler of the runtime, whose own thread goes on polling unless `stop_polling` stops it.
pub(super) async fn pass_async(setup: &Setup, id: &str, stop_polling: impl Fn(Duration)) -> Res<()> {
    let Some((how, time)) = first_time(setup, id)? else { return Ok(()) };
    let _asleep = Asleep::on(id);
    match how {
        Stalling::Handler => tokio::time::sleep(time).await,
        Stalling::NotPolling => {
            stop_polling(time);
            tokio::time::sleep(time).await;
        }
        Stalling::Frozen => {
            let file = thaw_file(&setup.folder, &setup.topic, id);
            for _ in 0..FROZEN_MAX.as_millis() / LOOK_EVERY.as_millis() {
                if file.exists() {
                    break;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
    }
    Ok(())
}
