//! Each fault of the proxy, on plain echo servers: seen by the peers, and exact.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is the failure report")]

mod unchanged;

use handstamp_lab::proxy::{
    Accept, CutAfter, Ended, Ending, Flow, MakeTap, Proxy, ProxyOptions, Rules, Script, Step, Verdict, Way,
    WayRules,
};
use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(20);

/// What a server read of a connection, and how it ended for it.
type Heard = (Vec<u8>, Result<(), ErrorKind>);

fn in_time<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { timeout(LONG, what).await.expect("took too long") })
}

/// Sends back what it reads and tells what it heard.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tell = tell.clone();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.into_split();
                let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
                let mut broken = Ok(());
                let ended = loop {
                    match from.read(&mut buffer).await {
                        Ok(0) => break broken,
                        Ok(read) => {
                            all.extend_from_slice(&buffer[..read]);
                            // A reset is told once, and here to the write; what has arrived is still read.
                            if broken.is_ok() {
                                broken = to.write_all(&buffer[..read]).await.map_err(|error| error.kind());
                            }
                        }
                        Err(error) => break Err(error.kind()),
                    }
                };
                drop(tell.send((all, ended)));
            });
        }
    });
    (address, heard)
}

async fn proxied() -> (Proxy, mpsc::UnboundedReceiver<Heard>) {
    let (address, heard) = echo().await;
    (Proxy::start(ProxyOptions::before(address)).await.unwrap(), heard)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

/// Reads to the end, and says how it ended.
async fn rest(stream: &mut TcpStream) -> Heard {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return (all, Ok(())),
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(error) => return (all, Err(error.kind())),
        }
    }
}

/// Connects, sends and reads to the end. A reset may come before the connection is even seen to stand.
async fn try_all(address: SocketAddr, send: usize) -> Heard {
    match TcpStream::connect(address).await {
        Ok(stream) => {
            let (mut from, mut to) = stream.into_split();
            let all = bytes(send);
            // It may be cut while it still sends.
            let sending = async { to.write_all(&all).await.map_err(|error| error.kind()) };
            let reading = async {
                let (mut all, mut buffer) = (Vec::new(), vec![0; 4096]);
                loop {
                    match from.read(&mut buffer).await {
                        Ok(0) => return (all, Ok(())),
                        Ok(read) => all.extend_from_slice(&buffer[..read]),
                        Err(error) => return (all, Err(error.kind())),
                    }
                }
            };
            // A reset is told once, to whichever of both asks first.
            match tokio::join!(sending, reading) {
                (Err(ErrorKind::ConnectionReset), (all, _)) => (all, Err(ErrorKind::ConnectionReset)),
                (_, heard) => heard,
            }
        }
        Err(error) => (vec![], Err(error.kind())),
    }
}

/// Says something and hears it again.
async fn ask(stream: &mut TcpStream, count: usize) {
    stream.write_all(&bytes(count)).await.unwrap();
    let mut answer = vec![0; count];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, bytes(count));
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn both(way: WayRules) -> Rules {
    Rules::NONE.with(Way::Up, way).with(Way::Down, way)
}

#[test]
fn without_a_fault_everything_passes_and_is_counted() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 100_000).await;
        stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut stream).await, (vec![], Ok(())));
        assert_eq!(heard.recv().await.unwrap(), (bytes(100_000), Ok(())));
        until(|| proxy.running() == 0).await;
        let [only] = proxy.connections()[..] else { panic!("{:?}", proxy.connections()) };
        assert_eq!((only.up, only.down, only.ended), (100_000, 100_000, Some(Ended::Closed)));
        let totals = proxy.stop().await;
        assert_eq!((totals.accepted, totals.cut, totals.up, totals.down), (1, 0, 100_000, 100_000));
    });
}

#[test]
fn a_cut_up_passes_exactly_so_many_bytes() {
    in_time(async {
        for ending in [Ending::Close, Ending::Reset] {
            for count in [0_usize, 1, 2, 1000, 16_384, 16_385, 40_000] {
                let (proxy, mut heard) = proxied().await;
                let cut = CutAfter::exactly(count as u64, ending);
                proxy
                    .set(Rules::NONE.with(Way::Up, WayRules { cut_after: Some(cut), ..WayRules::default() }));
                let (_, seen) = try_all(proxy.address(), 50_000).await;
                let (all, server_saw) = heard.recv().await.unwrap();
                assert!(all == bytes(count), "{ending:?}: {} instead of {count} bytes", all.len());
                if ending == Ending::Reset {
                    assert_eq!(seen, Err(ErrorKind::ConnectionReset), "{count}");
                    assert_eq!(server_saw, Err(ErrorKind::ConnectionReset), "{count}");
                } else {
                    assert_eq!(server_saw, Ok(()), "{count}");
                }
                let [only] = proxy.connections()[..] else { panic!("{:?}", proxy.connections()) };
                assert_eq!((only.up, only.ended), (count as u64, Some(Ended::Cut(ending))));
                assert_eq!(proxy.totals().cut, 1);
            }
        }
    });
}

#[test]
fn a_cut_down_passes_exactly_so_many_bytes() {
    in_time(async {
        for ending in [Ending::Close, Ending::Reset] {
            for count in [0_usize, 1, 999, 16_384, 30_001] {
                let (proxy, _heard) = proxied().await;
                let cut = CutAfter::exactly(count as u64, ending);
                proxy.set(
                    Rules::NONE.with(Way::Down, WayRules { cut_after: Some(cut), ..WayRules::default() }),
                );
                let (all, seen) = try_all(proxy.address(), 50_000).await;
                assert!(all == bytes(count), "{ending:?}: {} instead of {count} bytes", all.len());
                if ending == Ending::Reset {
                    assert_eq!(seen, Err(ErrorKind::ConnectionReset), "{count}");
                }
                let [only] = proxy.connections()[..] else { panic!("{:?}", proxy.connections()) };
                assert_eq!((only.down, only.ended), (count as u64, Some(Ended::Cut(ending))));
            }
        }
    });
}

#[test]
fn each_connection_draws_its_own_cut_and_the_seed_decides_it() {
    in_time(async {
        let draw = async |seed| {
            let (address, mut heard) = echo().await;
            let options = ProxyOptions { seed, ..ProxyOptions::before(address) };
            let proxy = Proxy::start(options).await.unwrap();
            let cut = CutAfter { from: 10, to: 500, ending: Ending::Close };
            proxy.set(Rules::NONE.with(Way::Up, WayRules { cut_after: Some(cut), ..WayRules::default() }));
            let mut lengths = Vec::new();
            for _ in 0..12 {
                let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
                drop(stream.write_all(&bytes(600)).await);
                lengths.push(heard.recv().await.unwrap().0.len());
            }
            lengths
        };
        let lengths = draw(5).await;
        assert_eq!(lengths, draw(5).await);
        assert_ne!(lengths, draw(6).await);
        assert!(lengths.iter().all(|length| (10..=500).contains(length)), "{lengths:?}");
    });
}

#[test]
fn a_tap_cuts_inside_a_message_and_sees_every_byte_once() {
    in_time(async {
        let (address, mut heard) = echo().await;
        let (tell, mut seen) = mpsc::unbounded_channel();
        let taps: MakeTap = Box::new(move |number, port| {
            assert_ne!(port, 0);
            let tell = tell.clone();
            let mut before: Vec<u8> = Vec::new();
            Box::new(move |way, piece: &[u8]| {
                if way == Way::Down {
                    return Verdict::Pass;
                }
                let from = before.len();
                before.extend_from_slice(piece);
                let _ = tell.send((number, piece.len()));
                match before.windows(3).position(|three| three == b"CUT") {
                    Some(at) => Verdict::Cut { after: at + 1 - from, ending: Ending::Reset },
                    None => Verdict::Pass,
                }
            })
        });
        let proxy =
            Proxy::start(ProxyOptions { taps: Some(taps), ..ProxyOptions::before(address) }).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 100).await;
        stream.write_all(b"abcCUTdef").await.unwrap();
        assert_eq!(rest(&mut stream).await.1, Err(ErrorKind::ConnectionReset));
        let (all, _) = heard.recv().await.unwrap();
        assert_eq!(all, [&bytes(100)[..], b"abcC"].concat());
        drop(proxy);
        let mut pieces = 0;
        while let Some((0, piece)) = seen.recv().await {
            pieces += piece;
        }
        assert_eq!(pieces, 109);
    });
}

#[test]
fn a_dropped_answer_never_comes_and_the_question_has_arrived() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        proxy.set(Rules::NONE.with(Way::Down, WayRules { flow: Flow::Discard, ..WayRules::default() }));
        stream.write_all(&bytes(5_000)).await.unwrap();
        until(|| proxy.totals().dropped == 5_000).await;
        // The other direction is untouched, and so is what comes after the rule is gone.
        proxy.set(Rules::NONE);
        ask(&mut stream, 20).await;
        stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut stream).await, (vec![], Ok(())));
        assert_eq!(heard.recv().await.unwrap().0.len(), 5_030);
        let totals = proxy.stop().await;
        assert_eq!((totals.up, totals.down, totals.dropped, totals.cut), (5_030, 30, 5_000, 0));
    });
}

#[test]
fn a_connection_whose_answers_are_dropped_ends_when_both_sides_have() {
    in_time(async {
        let (proxy, _heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        proxy.set(Rules::NONE.with(Way::Down, WayRules { flow: Flow::Discard, ..WayRules::default() }));
        stream.write_all(b"x").await.unwrap();
        drop(stream);
        until(|| proxy.running() == 0).await;
        assert_eq!(proxy.connections()[0].ended, Some(Ended::Closed));
    });
}

#[test]
fn a_client_that_left_unheard_is_missed_after_a_while() {
    in_time(async {
        let (address, mut heard) = echo().await;
        let missed_after = Some(Duration::from_millis(50));
        let proxy =
            Proxy::start(ProxyOptions { missed_after, ..ProxyOptions::before(address) }).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        proxy.set(Rules::NONE.with(Way::Up, WayRules { flow: Flow::Discard, ..WayRules::default() }));
        stream.write_all(&bytes(5)).await.unwrap();
        until(|| proxy.totals().dropped == 5).await;
        drop(stream);
        // The server never hears of the end that the client made, only of the one the network makes.
        assert_eq!(heard.recv().await.unwrap(), (bytes(10), Err(ErrorKind::ConnectionReset)));
        assert_eq!(proxy.connections()[0].ended, Some(Ended::Broken));
    });
}

#[test]
fn what_is_stalled_stays_bounded_and_goes_on_unchanged() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        proxy.set(Rules::NONE.with(Way::Up, WayRules { flow: Flow::Stall, ..WayRules::default() }));
        // Far more than fits into the buffers between: the sender is held up.
        let all = bytes(64 << 20);
        let (mut from, mut to) = stream.into_split();
        let reading = tokio::spawn(async move {
            let (mut read, mut buffer) = (0, vec![0; 65_536]);
            loop {
                match from.read(&mut buffer).await.unwrap() {
                    0 => return read,
                    more => read += more,
                }
            }
        });
        let mut sent = 0;
        while let Ok(written) = timeout(Duration::from_millis(300), to.write(&all[sent..])).await {
            sent += written.unwrap();
        }
        assert!(sent < all.len(), "64 MiB went into a stalled connection");
        assert_eq!(proxy.totals().up, 10, "nothing went on");
        proxy.set(Rules::NONE);
        to.write_all(&all[sent..]).await.unwrap();
        to.shutdown().await.unwrap();
        assert_eq!(reading.await.unwrap(), all.len());
        assert!(heard.recv().await.unwrap().0[10..] == all, "bytes were changed");
    });
}

#[test]
fn a_half_open_connection_is_accepted_and_never_answered() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        proxy.set(Rules::partition());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(&bytes(10)).await.unwrap();
        let mut one = [0];
        assert!(timeout(Duration::from_millis(200), stream.read(&mut one)).await.is_err(), "it was answered");
        assert_eq!((proxy.totals().up, proxy.running()), (0, 1));
        assert!(heard.try_recv().is_err());
        // Healed, it goes on where it stood.
        proxy.set(Rules::NONE);
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[..], bytes(10));
    });
}

#[test]
fn a_partition_holds_running_connections_and_healing_lets_them_go_on() {
    in_time(async {
        let (proxy, _heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        proxy.set(Rules::partition());
        stream.write_all(&bytes(10)).await.unwrap();
        let mut one = [0];
        assert!(timeout(Duration::from_millis(200), stream.read(&mut one)).await.is_err(), "it was answered");
        proxy.set(Rules::NONE);
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).await.unwrap();
        ask(&mut stream, 10).await;
    });
}

#[test]
fn a_reset_is_seen_as_one_at_once_and_on_running_connections() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut running = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut running, 10).await;
        proxy.set(Rules { accept: Accept::Reset, ..Rules::NONE });
        assert_eq!(try_all(proxy.address(), 1).await, (vec![], Err(ErrorKind::ConnectionReset)));
        ask(&mut running, 10).await;
        assert_eq!(proxy.cut(Ending::Reset), 1);
        assert_eq!(rest(&mut running).await, (vec![], Err(ErrorKind::ConnectionReset)));
        assert_eq!(
            heard.recv().await.unwrap(),
            ([bytes(10), bytes(10)].concat(), Err(ErrorKind::ConnectionReset))
        );
        assert_eq!(proxy.totals().cut, 2);
    });
}

#[test]
fn an_ordered_cut_can_close_and_spares_later_connections() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut running = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut running, 10).await;
        proxy.cut(Ending::Close);
        assert_eq!(rest(&mut running).await, (vec![], Ok(())));
        assert_eq!(heard.recv().await.unwrap(), (bytes(10), Ok(())));
        let mut later = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut later, 10).await;
    });
}

#[test]
fn a_server_that_breaks_a_connection_breaks_it_for_the_client_too() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(ProxyOptions::before(listener.local_addr().unwrap())).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        server.set_zero_linger().unwrap();
        drop(server);
        assert_eq!(rest(&mut stream).await.1, Err(ErrorKind::ConnectionReset));
        // A server that is not there.
        drop(listener);
        assert_eq!(try_all(proxy.address(), 1).await.1, Err(ErrorKind::ConnectionReset));
        // Whoever once used the proxy's port may knock too.
        assert!(proxy.totals().unreachable >= 1 && proxy.totals().cut == 0, "{:?}", proxy.totals());
        // Led to another one, new connections get through.
        let (address, _heard) = echo().await;
        proxy.lead_to(address);
        ask(&mut TcpStream::connect(proxy.address()).await.unwrap(), 10).await;
    });
}

#[test]
fn a_half_close_is_passed_on() {
    in_time(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(ProxyOptions::before(listener.local_addr().unwrap())).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(rest(&mut server).await, (vec![], Ok(())));
        server.write_all(&bytes(100)).await.unwrap();
        server.shutdown().await.unwrap();
        assert_eq!(rest(&mut stream).await, (bytes(100), Ok(())));
    });
}

#[test]
fn latency_delays_every_byte_and_slows_no_stream() {
    in_time(async {
        let (proxy, _heard) = proxied().await;
        let late = WayRules {
            latency: Duration::from_millis(80),
            jitter: Duration::from_millis(20),
            ..WayRules::default()
        };
        proxy.set(both(late));
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let begun = Instant::now();
        ask(&mut stream, 1).await;
        // A lower bound: each of both directions took at least its latency.
        assert!(begun.elapsed() >= Duration::from_millis(160), "{:?}", begun.elapsed());
        // Many chunks are under way at a time: one after the other they would outlast this test's limit.
        let (mut from, mut to) = stream.split();
        let all = bytes(400 * 16_384);
        let mut answer = vec![0; all.len()];
        let (sent, read) = tokio::join!(to.write_all(&all), from.read_exact(&mut answer));
        sent.and(read.map(drop)).unwrap();
        assert!(answer == all);
    });
}

#[test]
fn a_slow_direction_keeps_its_rate_and_the_other_is_not_slowed() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let slow = WayRules { bytes_per_s: NonZeroU64::new(20_000), ..WayRules::default() };
        proxy.set(Rules::NONE.with(Way::Up, slow));
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let begun = Instant::now();
        stream.write_all(&bytes(10_000)).await.unwrap();
        stream.shutdown().await.unwrap();
        assert_eq!(heard.recv().await.unwrap().0, bytes(10_000));
        // 10,000 bytes in steps of 400: the last of 25 steps is free to go after 24 of them.
        assert!(begun.elapsed() >= Duration::from_millis(470), "{:?}", begun.elapsed());
        assert_eq!(rest(&mut stream).await.0, bytes(10_000));
    });
}

#[test]
fn rules_change_under_a_running_connection() {
    in_time(async {
        let (proxy, _heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 100).await;
        // A limit that was passed already cuts an idle connection too.
        let cut = CutAfter::exactly(50, Ending::Reset);
        proxy.set(Rules::NONE.with(Way::Down, WayRules { cut_after: Some(cut), ..WayRules::default() }));
        assert_eq!(rest(&mut stream).await, (vec![], Err(ErrorKind::ConnectionReset)));
    });
}

#[test]
fn a_script_is_played_to_its_end() {
    in_time(async {
        let (proxy, _heard) = proxied().await;
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut stream, 10).await;
        let ms = Duration::from_millis;
        proxy
            .play(&Script::new(vec![
                Step { after: ms(1), rules: Rules::partition(), cut: None },
                Step { after: ms(1), rules: Rules::partition(), cut: Some(Ending::Reset) },
                Step { after: ms(1), rules: Rules::NONE, cut: None },
            ]))
            .await;
        assert_eq!(rest(&mut stream).await.1, Err(ErrorKind::ConnectionReset));
        assert_eq!((proxy.rules(), proxy.totals().cut), (Rules::NONE, 1));
        ask(&mut TcpStream::connect(proxy.address()).await.unwrap(), 10).await;
        // After any storm the proxy is a plain one again.
        let storm = Script::storm(11, 30, ms(8));
        let asking = async {
            loop {
                if let Ok(mut stream) = TcpStream::connect(proxy.address()).await {
                    drop(stream.write_all(&bytes(30_000)).await);
                    let mut some = [0; 1000];
                    drop(timeout(ms(5), stream.read_exact(&mut some)).await);
                }
            }
        };
        tokio::select! { () = proxy.play(&storm) => {}, () = asking => {} }
        ask(&mut TcpStream::connect(proxy.address()).await.unwrap(), 10_000).await;
    });
}

#[test]
fn only_loopback_is_listened_on_and_a_taken_port_is_said() {
    in_time(async {
        let (address, _heard) = echo().await;
        let outside = ProxyOptions { listen: "0.0.0.0:0".parse().unwrap(), ..ProxyOptions::before(address) };
        assert_eq!(Proxy::start(outside).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        let taken = ProxyOptions { listen: address, ..ProxyOptions::before(address) };
        let error = Proxy::start(taken).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    });
}

#[test]
fn everything_ends_with_the_proxy() {
    in_time(async {
        let (proxy, mut heard) = proxied().await;
        let mut running = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut running, 10).await;
        proxy.set(Rules::partition());
        let mut held = TcpStream::connect(proxy.address()).await.unwrap();
        until(|| proxy.running() == 2).await;
        let address = proxy.address();
        let totals = proxy.stop().await;
        assert_eq!((totals.accepted, totals.cut), (2, 0));
        assert!(rest(&mut running).await.0.is_empty() && rest(&mut held).await.0.is_empty());
        assert_eq!(heard.recv().await.unwrap().0, bytes(10));
        assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        // Dropped instead of stopped, it ends too.
        let (proxy, _heard) = proxied().await;
        let mut running = TcpStream::connect(proxy.address()).await.unwrap();
        ask(&mut running, 10).await;
        let address = proxy.address();
        drop(proxy);
        drop(rest(&mut running).await);
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
}
