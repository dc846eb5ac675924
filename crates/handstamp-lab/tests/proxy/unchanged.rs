//! Without a fault every byte passes unchanged.

use super::{both, in_time};
use handstamp_lab::proxy::{Proxy, ProxyOptions, WayRules};
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the sizes of the pieces, what goes in comes out, in both directions at a time, under rules
    /// that delay but do not destroy as well.
    #[test]
    fn bytes_pass_unchanged_in_both_directions(
        up in proptest::collection::vec(1_usize..20_000, 0..20),
        down in proptest::collection::vec(1_usize..20_000, 0..20),
        late in any::<bool>(),
    ) {
        in_time(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let proxy = Proxy::start(ProxyOptions::before(listener.local_addr().unwrap())).await.unwrap();
            if late {
                let jitter = Duration::from_millis(2);
                proxy.set(both(WayRules { latency: Duration::from_millis(1), jitter, ..WayRules::default() }));
            }
            let client = TcpStream::connect(proxy.address()).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let (up_sent, down_sent) = tokio::join!(one_side(client, &up, 7), one_side(server, &down, 99));
            let (sum_up, sum_down) = (up.iter().sum::<usize>(), down.iter().sum::<usize>());
            assert!(up_sent == stream_of(sum_down, 99) && down_sent == stream_of(sum_up, 7));
            let totals = proxy.stop().await;
            assert_eq!((totals.up, totals.down, totals.dropped), (sum_up as u64, sum_down as u64, 0));
        });
    }
}

fn stream_of(count: usize, salt: u8) -> Vec<u8> {
    (0..count).map(|at| u8::try_from(at % 253).unwrap() ^ salt).collect()
}

/// Sends its pieces and reads to the end; answers what it read.
async fn one_side(stream: TcpStream, pieces: &[usize], salt: u8) -> Vec<u8> {
    let (mut from, mut to) = stream.into_split();
    let all = stream_of(pieces.iter().sum(), salt);
    let sending = async {
        let mut at = 0;
        for piece in pieces {
            to.write_all(&all[at..at + piece]).await.unwrap();
            at += piece;
        }
        to.shutdown().await.unwrap();
    };
    let mut read = Vec::new();
    let (sent, end) = tokio::join!(sending, from.read_to_end(&mut read));
    let () = sent;
    end.unwrap();
    read
}
