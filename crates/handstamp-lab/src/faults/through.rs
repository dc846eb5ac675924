//! Leading a subject's connections through proxies: to Postgres by its URL, to Kafka by what the broker says.

use crate::error::{LabError, LabErrorKind, Result};
use crate::proxy::{Proxy, ProxyOptions, Totals};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;
use tokio::runtime::Runtime;

/// What went through a row's proxies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Through {
    /// Bytes to the server.
    pub bytes_up: u64,
    /// Bytes from the server.
    pub bytes_down: u64,
    /// Bytes thrown away.
    pub bytes_dropped: u64,
    /// Connections that the proxies cut.
    pub connections_cut: u64,
    /// Connections that ended before the row did, for whatever reason; those cut are among them.
    pub connections_lost: u64,
}

impl Through {
    /// What went through one proxy so far.
    pub(super) fn of(proxy: &Proxy) -> Self {
        Self { connections_lost: ended(proxy), ..Self::from(proxy.totals()) }
    }

    /// What has gone through since an earlier look.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            bytes_up: self.bytes_up.saturating_sub(earlier.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(earlier.bytes_down),
            bytes_dropped: self.bytes_dropped.saturating_sub(earlier.bytes_dropped),
            connections_cut: self.connections_cut.saturating_sub(earlier.connections_cut),
            connections_lost: self.connections_lost.saturating_sub(earlier.connections_lost),
        }
    }

    /// Both, added.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            bytes_up: self.bytes_up + other.bytes_up,
            bytes_down: self.bytes_down + other.bytes_down,
            bytes_dropped: self.bytes_dropped + other.bytes_dropped,
            connections_cut: self.connections_cut + other.connections_cut,
            connections_lost: self.connections_lost + other.connections_lost,
        }
    }
}

impl From<Totals> for Through {
    fn from(totals: Totals) -> Self {
        Self {
            bytes_up: totals.up,
            bytes_down: totals.down,
            bytes_dropped: totals.dropped,
            connections_cut: totals.cut,
            connections_lost: totals.cut,
        }
    }
}

fn ended(proxy: &Proxy) -> u64 {
    proxy.totals().accepted.saturating_sub(proxy.running() as u64)
}

/// Starts a proxy.
pub(super) fn start(runtime: &Runtime, options: ProxyOptions) -> Result<Proxy> {
    let started = runtime.block_on(Proxy::start(options));
    started.map_err(|error| LabError::new(LabErrorKind::Other, "the proxy cannot be started").because(error))
}

fn bad_url() -> LabError {
    LabError::usage("the database URL must be postgres://user@host:port/database")
}

/// A Postgres URL taken apart.
#[derive(Debug, Clone)]
pub(super) struct PostgresUrl {
    scheme: String,
    user: String,
    /// The server.
    pub(super) place: SocketAddr,
    database: String,
}

impl PostgresUrl {
    /// # Errors
    /// `Usage` for a URL without user, place and database, or with a host that is not known.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").ok_or_else(bad_url)?;
        let (authority, path) = rest.split_once('/').ok_or_else(bad_url)?;
        let (user, place) = authority.rsplit_once('@').ok_or_else(bad_url)?;
        let place = if place.contains(':') { place.to_owned() } else { format!("{place}:5432") };
        let found = place.to_socket_addrs().ok().and_then(|mut found| found.next());
        let place =
            found.ok_or_else(|| LabError::usage(format!("the database's address {place} is not known")))?;
        let database = path.split('?').next().unwrap_or_default().to_owned();
        Ok(Self { scheme: scheme.to_owned(), user: user.to_owned(), place, database })
    }

    /// The same database by other addresses, without TLS, so that a tap can read what passes.
    pub(super) fn by(&self, places: &[SocketAddr]) -> String {
        let places: Vec<String> = places.iter().map(ToString::to_string).collect();
        let target = if places.len() > 1 { "&target_session_attrs=read-write" } else { "" };
        format!(
            "{}://{}@{}/{}?sslmode=disable{target}",
            self.scheme,
            self.user,
            places.join(","),
            self.database
        )
    }

    /// The same as another user.
    pub(super) fn as_user(&self, user: &str) -> Self {
        Self { user: user.to_owned(), ..self.clone() }
    }
}

/// Proxies before the brokers of a cluster, where their PROXIED listeners send clients to.
#[derive(Debug)]
pub(crate) struct BrokerProxies {
    /// One for each broker, in the order given.
    pub(crate) proxies: Vec<Proxy>,
    /// What clients that shall go through them connect to.
    pub(crate) bootstrap: String,
}

/// Longest wait for the brokers to say where clients go.
const METADATA_MAX: Duration = Duration::from_secs(20);

impl BrokerProxies {
    /// Starts them; the inner error is why these brokers cannot be proxied.
    ///
    /// # Errors
    /// `Usage` when the pairs are no pairs.
    pub(super) fn start(
        runtime: &Runtime,
        pairs: &str,
        seed: u64,
    ) -> Result<std::result::Result<Self, String>> {
        Self::start_as(runtime, pairs, seed, &[])
    }

    /// The same before brokers that ask for more of a client: its options, as librdkafka names them.
    ///
    /// # Errors
    /// `Usage` when the pairs are no pairs.
    pub(crate) fn start_as(
        runtime: &Runtime,
        pairs: &str,
        seed: u64,
        options: &[(String, String)],
    ) -> Result<std::result::Result<Self, String>> {
        let mut proxies = Vec::new();
        let mut told = Vec::new();
        for pair in pairs.split(',') {
            let both = pair.split_once('=').and_then(|(listener, told)| {
                Some((listener.trim().parse::<SocketAddr>().ok()?, told.trim().parse::<SocketAddr>().ok()?))
            });
            let (listener, told_there) = both.ok_or_else(|| {
                LabError::usage(format!(
                    "{pair:?}: write LISTENER=TOLD, two addresses as 127.0.0.1:9094=127.0.0.1:9095"
                ))
            })?;
            if listener == told_there {
                return Ok(Err(bypassed(&told_there.to_string())));
            }
            let options = ProxyOptions { listen: told_there, seed, ..ProxyOptions::before(listener) };
            match runtime.block_on(Proxy::start(options)) {
                Ok(proxy) => proxies.push(proxy),
                Err(error) => {
                    return Ok(Err(format!("the broker tells its clients {told_there}, but {error}")));
                }
            }
            told.push(told_there.to_string());
        }
        let bootstrap = told.join(",");
        let proxied = Self { proxies, bootstrap };
        Ok(proxied.check(&told, options).map(|()| proxied))
    }

    /// Asks the brokers where they send clients to.
    fn check(&self, told: &[String], options: &[(String, String)]) -> std::result::Result<(), String> {
        use rdkafka::consumer::{BaseConsumer, Consumer as _};
        let mut config = rdkafka::ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap).set("log_level", "3");
        for (name, value) in options {
            config.set(name, value);
        }
        let client: BaseConsumer = config.create().map_err(|error| error.to_string())?;
        let metadata = client
            .fetch_metadata(Some("handstamp_lab_no_such_topic"), METADATA_MAX)
            .map_err(|error| format!("nothing answers behind {}: {error}", self.bootstrap))?;
        for broker in metadata.brokers() {
            let place = format!("{}:{}", broker.host(), broker.port());
            if !told.contains(&place) {
                return Err(bypassed(&place));
            }
        }
        Ok(())
    }

    /// What went through all of them.
    pub(super) fn through(&self) -> Through {
        self.proxies.iter().map(Through::of).fold(Through::default(), Through::plus)
    }
}

fn bypassed(place: &str) -> String {
    format!(
        "the broker sends its clients to {place}, around the proxy: give it a second listener that advertises a port on which only the proxy listens"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_leads_through_proxies_and_keeps_user_and_database() {
        let url =
            PostgresUrl::parse("postgres://a:b%40c@127.0.0.1:5433/db?application_name=x").expect("a URL");
        assert_eq!(url.place, "127.0.0.1:5433".parse().expect("an address"));
        let one = "127.0.0.1:1".parse().expect("an address");
        let two = "127.0.0.1:2".parse().expect("an address");
        assert_eq!(url.by(&[one]), "postgres://a:b%40c@127.0.0.1:1/db?sslmode=disable");
        assert_eq!(
            url.as_user("lab").by(&[one, two]),
            "postgres://lab@127.0.0.1:1,127.0.0.1:2/db?sslmode=disable&target_session_attrs=read-write"
        );
        for bad in
            ["", "postgres://", "postgres://h:1/db", "host=h", "postgres://u@no.such.host.invalid:1/db"]
        {
            assert!(PostgresUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_broker_that_would_be_bypassed_is_refused_with_its_reason() {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("one");
        let same = BrokerProxies::start(&runtime, "127.0.0.1:9=127.0.0.1:9", 1).expect("pairs");
        assert!(same.expect_err("refused").contains("around the proxy"));
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let taken = format!("127.0.0.1:9={}", held.local_addr().expect("bound"));
        let taken = BrokerProxies::start(&runtime, &taken, 1).expect("pairs");
        assert!(taken.expect_err("refused").contains("listening on"));
        assert!(BrokerProxies::start(&runtime, "127.0.0.1:9", 1).is_err());
    }
}
