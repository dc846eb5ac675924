//! What is left out, what is added, and that nothing else changes, byte by byte.

use super::*;
use proptest::prelude::*;
use tokio::io::DuplexStream;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    out.extend_from_slice(body);
    out
}

fn frames(kinds: &str) -> Vec<u8> {
    kinds.bytes().flat_map(|kind| frame(kind, if kind == b'Z' { b"T" } else { b"body" })).collect()
}

fn error(severity: &str) -> Vec<u8> {
    frame(b'E', format!("S{severity}\0V{severity}\0C22012\0Mno\0\0").as_bytes())
}

fn startup() -> Vec<u8> {
    vec![0, 0, 0, 8, 0, 3, 0, 0]
}

/// The kinds of messages, `e` for an answer to a skipped statement.
fn kinds(mut bytes: &[u8]) -> String {
    let mut out = String::new();
    while !bytes.is_empty() {
        let length = length_of(&bytes[1..5]);
        let skipped = bytes[0] == b'E' && bytes[5..length + 1] == *ABORTED;
        out.push(if skipped { 'e' } else { char::from(bytes[0]) });
        bytes = &bytes[length + 1..];
    }
    out
}

/// A stream that has logged in, and the server's end of it.
async fn logged_in() -> (Coalesced<DuplexStream>, Coalesce, DuplexStream) {
    let (near, mut far) = tokio::io::duplex(1 << 20);
    let coalesce = Coalesce::default();
    let mut stream = Coalesced::new(near, coalesce.clone());
    stream.write_all(&startup()).await.unwrap();
    stream.flush().await.unwrap();
    let mut seen = [0; 8];
    far.read_exact(&mut seen).await.unwrap();
    assert_eq!(seen.as_slice(), startup());
    far.write_all(&frames("RSKZ")).await.unwrap();
    assert_eq!(read(&mut stream, frames("RSKZ").len()).await, "RSKZ");
    (stream, coalesce, far)
}

async fn read(stream: &mut (impl AsyncRead + Unpin), length: usize) -> String {
    let mut bytes = vec![0; length];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut bytes)).await.expect("an answer").unwrap();
    kinds(&bytes)
}

/// Everything that the other side has to say before it is closed.
async fn read_all(mut stream: impl AsyncRead + Unpin) -> String {
    let mut bytes = vec![];
    tokio::time::timeout(LIMIT, stream.read_to_end(&mut bytes)).await.expect("an end").unwrap();
    kinds(&bytes)
}

/// Writes each of `writes` at once, answers, and returns what either side saw.
async fn exchange(writes: &[&str], coalesced: bool, answers: &[u8]) -> (String, String) {
    let (mut stream, coalesce, mut far) = logged_in().await;
    let flight = coalesced.then(|| coalesce.start());
    for write in writes {
        let written = stream.write(&frames(write)).await.unwrap();
        assert_eq!(written, frames(write).len());
        stream.flush().await.unwrap();
    }
    drop(flight);
    let (sent, received) = tokio::join!(
        async {
            let mut bytes = vec![0; 1 << 16];
            let length = far.read(&mut bytes).await.unwrap();
            far.write_all(answers).await.unwrap();
            drop(far);
            kinds(&bytes[..length])
        },
        read_all(&mut stream)
    );
    (sent, received)
}

#[tokio::test]
async fn a_flight_of_ours_keeps_its_last_sync_only() {
    let (sent, received) = exchange(&["BESBESBES"], true, &frames("2C2DC2CZ")).await;
    assert_eq!(sent, "BEBEBES");
    assert_eq!(received, "2CZ2DCZ2CZ");
}

#[tokio::test]
async fn without_a_flight_of_ours_nothing_changes() {
    let (sent, received) = exchange(&["BESBES"], false, &frames("2CZ2CZ")).await;
    assert_eq!((sent.as_str(), received.as_str()), ("BESBES", "2CZ2CZ"));
}

#[tokio::test]
async fn every_write_ends_in_a_sync() {
    let (sent, received) = exchange(&["BESBES", "BES"], true, &frames("2C2CZ2CZ")).await;
    assert_eq!((sent.as_str(), received.as_str()), ("BEBESBES", "2CZ2CZ2CZ"));
}

#[tokio::test]
async fn only_syncs_behind_an_execute_and_before_another_sync_are_left_out() {
    // A statement being prepared, one being closed, and a simple query behind.
    let (sent, _) = exchange(&["PDSBESQBESCSBES"], true, &[]).await;
    assert_eq!(sent, "PDSBESQBECSBES");
}

#[tokio::test]
async fn what_the_server_skips_is_answered_as_in_an_aborted_transaction() {
    let answers = [frames("2C"), error("ERROR"), frames("Z2CZ")].concat();
    let (sent, received) = exchange(&["BESBESBESBES", "BES"], true, &answers).await;
    assert_eq!(sent, "BEBEBEBESBES");
    assert_eq!(received, "2CZEZeZeZ2CZ");
}

#[tokio::test]
async fn an_error_of_the_last_statement_is_answered_by_the_server() {
    let answers = [frames("2C"), error("ERROR"), frames("Z")].concat();
    let (_, received) = exchange(&["BESBES"], true, &answers).await;
    assert_eq!(received, "2CZEZ");
}

#[tokio::test]
async fn a_fatal_error_is_followed_by_nothing() {
    let answers = [frames("2C"), error("FATAL")].concat();
    let (_, received) = exchange(&["BESBESBES"], true, &answers).await;
    assert_eq!(received, "2CZE");
}

#[tokio::test]
async fn a_copy_takes_the_sync_that_came_with_its_statement() {
    let (mut stream, coalesce, mut far) = logged_in().await;
    stream.write_all(&frames("BES")).await.unwrap();
    far.write_all(&frames("2G")).await.unwrap();
    assert_eq!(read(&mut stream, frames("2G").len()).await, "2G");
    stream.write_all(&frames("dcS")).await.unwrap();
    far.write_all(&frames("CZ")).await.unwrap();
    assert_eq!(read(&mut stream, frames("CZ").len()).await, "CZ");
    let _flight = coalesce.start();
    stream.write_all(&frames("BESBES")).await.unwrap();
    far.write_all(&frames("2C2CZ")).await.unwrap();
    assert_eq!(read(&mut stream, frames("2CZ2CZ").len()).await, "2CZ2CZ");
}

/// A stream on which statements were prepared, each under its name.
async fn prepared(statements: &[(&str, &str)]) -> (Coalesced<DuplexStream>, Coalesce, DuplexStream) {
    let (mut stream, coalesce, mut far) = logged_in().await;
    for (name, sql) in statements {
        let prepare = [frame(b'P', format!("{name}\0{sql}\0\0\0").as_bytes()), frames("S")].concat();
        stream.write_all(&prepare).await.unwrap();
        far.write_all(&frames("1Z")).await.unwrap();
        assert_eq!(read(&mut stream, frames("1Z").len()).await, "1Z");
        let mut seen = vec![0; prepare.len()];
        far.read_exact(&mut seen).await.unwrap();
        assert_eq!(seen, prepare);
    }
    (stream, coalesce, far)
}

/// Runs prepared statements in one write; what the server is sent.
async fn run(stream: &mut Coalesced<DuplexStream>, far: &mut DuplexStream, names: &[&str]) -> String {
    let run = |name: &&str| [frame(b'B', format!("\0{name}\0\0\0").as_bytes()), frames("ES")].concat();
    let flight = names.iter().flat_map(run).collect::<Vec<u8>>();
    assert_eq!(stream.write(&flight).await.unwrap(), flight.len());
    stream.flush().await.unwrap();
    let mut sent = vec![0; 1 << 12];
    let length = far.read(&mut sent).await.unwrap();
    kinds(&sent[..length])
}

#[tokio::test]
async fn the_sync_behind_a_commit_stays() {
    let (mut stream, coalesce, mut far) = prepared(&[("s7", "COMMIT")]).await;
    let _flight = coalesce.start();
    // Guard and COMMIT, then BEGIN and the claim.
    let sent = run(&mut stream, &mut far, &["s6", "s7", "s5", "s4"]).await;
    assert_eq!(sent, "BEBESBEBES");
    // A commit that fails is skipped up to its own Sync: what follows runs.
    far.write_all(&[error("ERROR"), frames("Z2C2CZ")].concat()).await.unwrap();
    drop(far);
    assert_eq!(read_all(&mut stream).await, "EZeZ2CZ2CZ");
}

fn start_record() -> String {
    format!("{ITS_OWN}INSERT INTO starts")
}

#[tokio::test]
async fn the_sync_behind_a_start_record_stays() {
    let (mut stream, coalesce, mut far) = prepared(&[("s7", "COMMIT"), ("s8", &start_record())]).await;
    let flight = coalesce.start();
    // In front of BEGIN and the claim; the claim fails, the start record does not.
    assert_eq!(run(&mut stream, &mut far, &["s8", "s5", "s4"]).await, "BESBEBES");
    far.write_all(&[frames("2CZ2C"), error("ERROR"), frames("Z")].concat()).await.unwrap();
    assert_eq!(
        read(&mut stream, [frames("2CZ2CZ"), error("ERROR"), frames("Z")].concat().len()).await,
        "2CZ2CZEZ"
    );
    // Behind guard and COMMIT. A start record that fails is answered by the server, and the claim runs.
    assert_eq!(run(&mut stream, &mut far, &["s6", "s7", "s8", "s5", "s4"]).await, "BEBESBESBEBES");
    far.write_all(&[frames("2C2CZ"), error("ERROR"), frames("Z2C2CZ")].concat()).await.unwrap();
    let answers = [frames("2CZ2CZ"), error("ERROR"), frames("Z2CZ2CZ")].concat();
    assert_eq!(read(&mut stream, answers.len()).await, "2CZ2CZEZ2CZ2CZ");
    // A guard that fails takes COMMIT along, nothing behind their Sync.
    assert_eq!(run(&mut stream, &mut far, &["s6", "s7", "s8", "s5", "s4"]).await, "BEBESBESBEBES");
    far.write_all(&[error("ERROR"), frames("Z2CZ2C2CZ")].concat()).await.unwrap();
    drop((far, flight));
    assert_eq!(read_all(&mut stream).await, "EZeZ2CZ2CZ2CZ");
}

#[tokio::test]
async fn without_a_flight_of_ours_a_start_record_is_as_any_statement() {
    let (mut stream, _, mut far) = prepared(&[("s7", "COMMIT"), ("s8", &start_record())]).await;
    assert_eq!(run(&mut stream, &mut far, &["s8", "s5", "s4"]).await, "BESBESBES");
    far.write_all(&frames("2CZ2CZ2CZ")).await.unwrap();
    drop(far);
    assert_eq!(read_all(&mut stream).await, "2CZ2CZ2CZ");
}

#[tokio::test]
async fn notices_and_settings_pass_in_the_middle() {
    let (_, received) = exchange(&["BESBES"], true, &frames("2NCS2ACZ")).await;
    assert_eq!(received, "2NCZS2ACZ");
}

#[test]
fn the_severity_is_read_from_its_own_field() {
    assert!(is_fatal(b"SFATAL\0VFATAL\0C57P01\0"));
    assert!(is_fatal(b"SPANIK\0VPANIC\0C57P01\0"));
    assert!(!is_fatal(b"SFATAL\0VERROR\0C57P01\0"));
    assert!(!is_fatal(b"SERROR\0C22012\0MVFATAL\0"));
}

/// One statement of a flight: the rows of its answer, or its failure.
fn statements() -> impl Strategy<Value = Vec<Option<usize>>> {
    prop::collection::vec(prop_oneof![8 => (0..3_usize).prop_map(Some), 1 => Just(None)], 1..40)
}

/// A server that answers statements as the protocol says.
fn serve(mut sent: &[u8], outcomes: &[Option<usize>]) -> Vec<u8> {
    let (mut out, mut outcomes, mut skipping) = (vec![], outcomes.iter(), false);
    while !sent.is_empty() {
        let length = length_of(&sent[1..5]);
        match sent[0] {
            b'S' => {
                skipping = false;
                out.extend(frames("Z"));
            }
            b'E' => {
                let outcome = outcomes.next().unwrap();
                match outcome {
                    _ if skipping => {}
                    Some(rows) => {
                        out.extend(frames("2"));
                        (0..*rows).for_each(|_| out.extend(frames("D")));
                        out.extend(frames("C"));
                    }
                    None => {
                        out.extend(error("ERROR"));
                        skipping = true;
                    }
                }
            }
            _ => {}
        }
        sent = &sent[length + 1..];
    }
    out
}

/// What the driver must see: one answer a statement, none behind a failure but 25P02, within one write.
fn expected(writes: &[Vec<Option<usize>>]) -> String {
    let mut out = String::new();
    for write in writes {
        let mut failed = false;
        for outcome in write {
            match outcome {
                _ if failed => out.push('e'),
                Some(rows) => {
                    out.push('2');
                    out.extend(std::iter::repeat_n('D', *rows));
                    out.push('C');
                }
                None => {
                    out.push('E');
                    failed = true;
                }
            }
            out.push('Z');
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// However the bytes are cut on either way, the driver sees one answer for each statement.
    #[test]
    fn every_statement_has_its_answer_however_the_bytes_are_cut(
        writes in prop::collection::vec(statements(), 1..6),
        out_cut in 1..60_usize,
        in_cut in 1..60_usize,
    ) {
        let (mut outgoing, mut incoming) = (Outgoing::default(), Incoming::default());
        outgoing.take(&startup(), false, &mut incoming.awaited);
        incoming.take(&frames("RZ"));
        incoming.ready.clear();
        outgoing.ready.clear();
        let mut seen = String::new();
        for write in &writes {
            let bytes = frames(&"BES".repeat(write.len()));
            // The driver's writes end at the end of a message; a shorter first write must not matter.
            let cut = out_cut.min(bytes.len());
            outgoing.take(&bytes[..cut], false, &mut incoming.awaited);
            outgoing.take(&bytes[cut..], false, &mut incoming.awaited);
            prop_assert_eq!(kinds(&outgoing.ready), "BES".repeat(write.len()));
            incoming.awaited.clear();
            outgoing.ready.clear();
            outgoing.take(&bytes, true, &mut incoming.awaited);
            prop_assert_eq!(kinds(&outgoing.ready), format!("{}S", "BE".repeat(write.len())));
            for piece in serve(&outgoing.ready, write).chunks(in_cut) {
                incoming.take(piece);
            }
            outgoing.ready.clear();
            seen.push_str(&kinds(&incoming.ready));
            incoming.ready.clear();
            prop_assert!(incoming.awaited.is_empty());
        }
        prop_assert_eq!(seen, expected(&writes));
    }
}
