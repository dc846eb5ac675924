//! A TCP proxy between a store and a real server that understands where the client's messages begin, so
//! that a fault comes at an exact point: a message replaced, a connection cut, answers held back.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to a message of the client.
pub(crate) enum Step {
    Pass,
    /// Another statement is prepared instead.
    Prepare(&'static str),
    /// The connection is cut before the server gets the message.
    CutBefore,
    /// The server gets the message; its answer never arrives.
    CutAfter,
    /// Answers stay here from now on, this message's first.
    HoldAnswers,
    /// Held answers go on.
    FreeAnswers,
}

/// What happens to the server's answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    Pass,
    Hold,
    /// Read and thrown away: a connection closed with answers unread would be reset, and the server might
    /// then not read what it was sent.
    Discard,
}

type Script = Box<dyn FnMut(&Sent<'_>) -> Step + Send>;

/// A message of the client.
pub(crate) struct Sent<'a> {
    pub(crate) kind: u8,
    /// The text of the statement that a Parse prepares or a Bind runs.
    pub(crate) sql: &'a str,
}

/// Listens on a port of its own and forwards to the server.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    script: Arc<Mutex<Script>>,
}

impl Proxy {
    pub(crate) async fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let script: Arc<Mutex<Script>> = Arc::new(Mutex::new(Box::new(|_| Step::Pass)));
        let proxy = Self { port: listener.local_addr().unwrap().port(), script: script.clone() };
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let script = script.clone();
                tokio::spawn(async move {
                    let upstream = TcpStream::connect(server).await.unwrap();
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = upstream.into_split();
                    let (hold, held) = watch::channel(Answers::Pass);
                    tokio::select! {
                        _ = client_to_server(from_client, to_server, script, hold) => {}
                        _ = server_to_client(from_server, to_client, held) => {}
                    }
                });
            }
        });
        proxy
    }

    /// From now on every message of every connection is asked of `step`.
    pub(crate) fn script(&self, step: impl FnMut(&Sent<'_>) -> Step + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(step);
    }
}

async fn client_to_server(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    script: Arc<Mutex<Script>>,
    hold: watch::Sender<Answers>,
) -> std::io::Result<()> {
    // The start-up message has no type.
    let length = from.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    from.read_exact(&mut body).await?;
    to.write_u32(length).await?;
    to.write_all(&body).await?;
    // The text of each prepared statement by its name.
    let mut prepared: HashMap<Vec<u8>, String> = HashMap::new();
    loop {
        let kind = from.read_u8().await?;
        let mut body = vec![0; from.read_u32().await? as usize - 4];
        from.read_exact(&mut body).await?;
        let mut fields = body.split(|&byte| byte == 0);
        let (first, second) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let sql = match kind {
            b'P' => {
                let sql = String::from_utf8_lossy(second).into_owned();
                prepared.insert(first.to_vec(), sql.clone());
                sql
            }
            b'B' => prepared.get(second).cloned().unwrap_or_default(),
            _ => String::new(),
        };
        let step = (script.lock().unwrap())(&Sent { kind, sql: &sql });
        match step {
            Step::CutBefore => return Ok(()),
            Step::HoldAnswers => _ = hold.send(Answers::Hold),
            Step::FreeAnswers => _ = hold.send(Answers::Pass),
            Step::Prepare(sql) => {
                let name = body.split(|&byte| byte == 0).next().unwrap_or_default();
                body = [name, b"\0", sql.as_bytes(), b"\0\0\0"].concat();
            }
            Step::CutAfter => _ = hold.send(Answers::Discard),
            Step::Pass => {}
        }
        let mut message = vec![kind];
        message.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        message.extend_from_slice(&body);
        to.write_all(&message).await?;
        if matches!(step, Step::CutAfter) {
            // The server reads what it was sent before it notices that nobody listens.
            to.shutdown().await?;
            // The other direction ends when the server has closed.
            std::future::pending::<()>().await;
        }
    }
}

async fn server_to_client(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut held: watch::Receiver<Answers>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let answers = match held.wait_for(|held| *held != Answers::Hold).await {
            Ok(answers) => *answers,
            Err(_) => return Ok(()),
        };
        if answers == Answers::Pass {
            to.write_all(&buffer[..read]).await?;
        }
    }
}
