//! `--until-idle` on a topic that grows meanwhile.

use crate::kafka_postgres::{psql, variable};
use crate::server_refusals::Wallet;
use std::process::Command;

/// Asks the broker for more partitions, as its protocol has it: CreatePartitions, version 0.
const ADD_PARTITIONS: &str = "\
import socket, struct, sys
address, topic, count = sys.argv[1].rsplit(':', 1), sys.argv[2].encode(), int(sys.argv[3])
text = lambda value: struct.pack('>h', len(value)) + value
request = struct.pack('>hhi', 37, 0, 1) + text(b'test')
request += struct.pack('>i', 1) + text(topic) + struct.pack('>ii', count, -1)  # one topic, no assignment
request += struct.pack('>i?', 10_000, False)
with socket.create_connection((address[0], int(address[1])), timeout=20) as broker:
    broker.sendall(struct.pack('>i', len(request)) + request)
    answer = broker.makefile('rb')
    answer = answer.read(struct.unpack('>i', answer.read(4))[0])
code = struct.unpack_from('>h', answer, 4 + 4 + 4 + 2 + len(topic))[0]  # id, throttling, one result, its name
sys.exit(0 if code == 0 else f'the broker answers {code}')
";

/// What lies in partitions that are added while a run waits for more is received too.
#[test]
fn partitions_that_are_added_before_the_end_are_read() {
    let wallet = Wallet::new();
    wallet.place.write("kafka.toml", &wallet.kafka(&[]));
    let publish = |count: &str, more: &[&str]| {
        let args = ["publish", "kafka.toml", "--sample", "credits", "--count", count];
        wallet.place.quiet(&[&args[..], more].concat()).exits(0)
    };
    publish("20", &["--create-topic", "--partitions", "1"]);
    let running = wallet.place.start("trace", &["run", "kafka.toml", "--until-idle", "8s", "--json"]);
    let count = || psql(&wallet.database, "SELECT count(*) FROM ledger").parse::<u64>().unwrap();
    assert!(crate::common::wait_for(|| count() == 20));
    let added = Command::new("python3")
        .args(["-c", ADD_PARTITIONS, &variable("HANDSTAMP_TEST_KAFKA"), &wallet.database, "4"])
        .output()
        .unwrap();
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    publish("200", &[]);
    let done = running.finish().exits(0);
    // A slow broker may hand what it was not told in time over again while the group takes up the new ones.
    let [received, applied, duplicate, released] =
        done.counts(["received", "applied", "duplicate", "released"]);
    assert_eq!((applied, received), (220, 220 + duplicate + released), "{}", done.stdout);
    assert_eq!(done.json()["lag"].as_object().unwrap().len(), 4, "{}", done.stdout);
}
