//! The file source and the file sink keep the rules of every source and sink.
#![cfg(feature = "file")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests: a panic is the failure report"
)]

use handstamp_core::{ConsumerName, Source};
use handstamp_sources::file::{FileOptions, FileSink, FileSource};
use handstamp_testkit::Payload;
use handstamp_testkit::sink_suite::SinkHarness;
use handstamp_testkit::source_suite::{SourceFeatures, SourceHarness};
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

struct FileHarness {
    folder: TempDir,
}

impl FileHarness {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("credits.jsonl")
    }
}

impl SourceHarness for FileHarness {
    fn features(&self) -> SourceFeatures {
        SourceFeatures {
            lanes: 1,
            whole_records: false,
            rebalances: false,
            patience: Duration::from_secs(20),
            quiet: Duration::from_millis(300),
        }
    }

    async fn publish(&self, _lane: u32, payloads: Vec<Payload>) {
        let mut file = fs::File::options().create(true).append(true).open(self.path()).unwrap();
        for payload in payloads {
            file.write_all(&payload.value.unwrap()).unwrap();
            file.write_all(b"\n").unwrap();
        }
    }

    async fn source(&self) -> Box<dyn Source> {
        let consumer = ConsumerName::new("wallet").unwrap();
        let state = self.folder.path().join("state");
        Box::new(FileSource::new(FileOptions::new(self.path(), consumer).with_state_dir(state)))
    }

    async fn settled(&self) -> usize {
        let Ok(entries) = fs::read_dir(self.folder.path().join("state")) else { return 0 };
        let paths = entries.map(|entry| entry.unwrap().path());
        let Some(sidecar) = paths.into_iter().find(|path| path.extension().is_some_and(|e| e == "position"))
        else {
            return 0;
        };
        let saved: serde_json::Value = serde_json::from_slice(&fs::read(sidecar).unwrap()).unwrap();
        let offset = usize::try_from(saved["offset"].as_u64().unwrap()).unwrap();
        fs::read(self.path()).unwrap()[..offset].iter().filter(|byte| **byte == b'\n').count()
    }
}

impl SinkHarness for FileHarness {
    type Sink = FileSink;

    async fn sink(&self) -> FileSink {
        FileSink::new(self.path())
    }

    /// Its folder is not there.
    async fn sink_out_of_reach(&self) -> FileSink {
        FileSink::new(self.folder.path().join("unmounted/credits.jsonl"))
    }

    fn whole_records(&self) -> bool {
        false
    }

    fn unfit(&self) -> Payload {
        Payload::value("two\nlines")
    }

    fn destination(&self) -> String {
        self.path().display().to_string()
    }

    /// A file takes everything, whatever the topic.
    async fn other_destination(&self) -> Option<String> {
        None
    }

    async fn read_back(&self, _: &str) -> Vec<Payload> {
        let bytes = fs::read(self.path()).unwrap_or_default();
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        lines.map(|line| Payload::value(line.strip_suffix(b"\n").unwrap().to_vec())).collect()
    }
}

mod source {
    handstamp_testkit::source_suite!(super::FileHarness::new());
}

mod sink {
    handstamp_testkit::sink_suite!(super::FileHarness::new());
}
