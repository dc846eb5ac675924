//! A whole server of a test's own, through `scripts/services`: for tests that stop it, or that count
//! every byte it writes.

use crate::harness::{Server, connect};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_postgres::Client;

/// Runs until dropped.
pub(crate) struct PrivateServer {
    name: String,
    pub(crate) url: String,
}

impl PrivateServer {
    pub(crate) async fn up(server: Server) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let kind = match server {
            Server::V15 => "postgres15",
            Server::V18 => "postgres",
        };
        let name = format!("{kind}@test{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        services(&["up", &name]);
        let mut private = Self { url: String::new(), name };
        let lines = services(&["env", &private.name]);
        let url = lines.lines().find_map(|line| {
            let (_, rest) = line.split_once("HANDSTAMP_TEST_POSTGRES")?;
            rest.split_once('=')
                .map(|(_, value)| value.trim_matches('\'').to_owned())
                .filter(|v| v.starts_with("postgres://"))
        });
        private.url = url.expect("the private server's URL");
        private
    }

    pub(crate) async fn admin(&self) -> Client {
        connect(&self.url).await
    }

    /// As a crash: no checkpoint, nothing flushed.
    pub(crate) fn crash_and_start(&self) {
        services(&["stop", "--immediate", &self.name]);
        services(&["start", &self.name]);
    }
}

impl Drop for PrivateServer {
    fn drop(&mut self) {
        services(&["down", &self.name]);
    }
}

fn services(words: &[&str]) -> String {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    let output = Command::new(script).args(words).output().expect("scripts/services runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "services {words:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
