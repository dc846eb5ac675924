//! The ways between the copies and their servers: straight, or through proxies of the lab where they are to be
//! cut. Counting, publishing and asking for offsets never go through a proxy.

use super::home::Home;
use super::outcome::Through;
use super::settings::Settings;
use crate::error::Result;
use crate::history::Wire;

/// What the copies connect to.
pub(super) struct Ways {
    /// Kafka's bootstrap servers.
    pub(super) brokers: String,
    /// The run's database, without the parameters that the user adds.
    pub(super) database_url: String,
    proxies: proxied::Proxies,
}

impl Ways {
    /// Starts the proxies that the faults need.
    ///
    /// # Errors
    /// `Usage` with the reason when no proxy can stand there.
    pub(super) fn open(settings: &Settings, bootstrap: &str, home: &Home) -> Result<Self> {
        let mut ways = Self {
            brokers: bootstrap.to_owned(),
            database_url: home.url(),
            proxies: proxied::Proxies::start(settings, home)?,
        };
        let (brokers, database) = ways.proxies.addresses(home)?;
        ways.brokers = brokers.unwrap_or(ways.brokers);
        ways.database_url = database.unwrap_or(ways.database_url);
        Ok(ways)
    }

    /// Connections that run on a way with proxies.
    pub(super) fn running(&self, wire: Wire) -> usize {
        self.proxies.running(wire)
    }

    /// Resets every connection of a way; how many there were.
    pub(super) fn cut(&self, wire: Wire) -> u64 {
        self.proxies.cut(wire)
    }

    /// What went through so far, for each way that has proxies.
    pub(super) fn through(&self) -> Vec<Through> {
        self.proxies.through()
    }
}

#[cfg(feature = "postgres")]
mod proxied {
    use super::super::home::{Home, Url};
    use super::super::outcome::Through;
    use super::super::settings::Settings;
    use crate::error::{LabError, LabErrorKind, Result};
    use crate::faults::through::BrokerProxies;
    use crate::history::Wire;
    use crate::proxy::{Ending, Proxy, ProxyOptions, Totals};
    use std::time::{Duration, Instant};
    use tokio::runtime::Runtime;

    /// Longest wait for the end of the lab's own question.
    const ASKED_MAX: Duration = Duration::from_secs(5);

    pub(super) struct Proxies {
        database: Option<Proxy>,
        brokers: Option<BrokerProxies>,
        /// What went through to the brokers when the lab asked them where they send clients to.
        asked: Totals,
        /// Drives them; `None` without a proxy.
        runtime: Option<Runtime>,
    }

    fn failed(what: &str, error: std::io::Error) -> LabError {
        LabError::new(LabErrorKind::Other, format!("no proxy: {what}")).because(error)
    }

    impl Proxies {
        pub(super) fn start(settings: &Settings, home: &Home) -> Result<Self> {
            let faults = &settings.faults;
            let mut proxies = Self { database: None, brokers: None, asked: Totals::default(), runtime: None };
            if faults.cuts == 0 && faults.broker_cuts == 0 {
                return Ok(proxies);
            }
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .map_err(|error| failed("no runtime", error))?;
            if faults.cuts > 0 {
                let address = Url::parse(&home.url())?.address()?;
                let options = ProxyOptions { seed: settings.seed, ..ProxyOptions::before(address) };
                let proxy = runtime.block_on(Proxy::start(options));
                proxies.database = Some(proxy.map_err(|error| failed("no port", error))?);
            }
            if faults.broker_cuts > 0 {
                let pairs = settings.broker.proxied.as_deref().unwrap_or_default();
                let started =
                    BrokerProxies::start_as(&runtime, pairs, settings.seed, &settings.broker.options)?;
                let refused = |why| LabError::usage(format!("faults.broker_cuts are refused: {why}"));
                proxies.brokers = Some(started.map_err(refused)?);
                // The lab's own question is not the program's.
                let until = Instant::now() + ASKED_MAX;
                while proxies.running(Wire::Broker) > 0 && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                proxies.asked = proxies.totals(Wire::Broker);
            }
            proxies.runtime = Some(runtime);
            Ok(proxies)
        }

        /// What leads to the brokers and to the database through them.
        pub(super) fn addresses(&self, home: &Home) -> Result<(Option<String>, Option<String>)> {
            let database = match &self.database {
                None => None,
                Some(proxy) => Some(Url::parse(&home.url())?.by(proxy.address())),
            };
            Ok((self.brokers.as_ref().map(|brokers| brokers.bootstrap.clone()), database))
        }

        fn on(&self, wire: Wire) -> &[Proxy] {
            match wire {
                Wire::Database => self.database.as_slice(),
                Wire::Broker => self.brokers.as_ref().map_or(&[], |brokers| &brokers.proxies),
            }
        }

        pub(super) fn running(&self, wire: Wire) -> usize {
            self.on(wire).iter().map(Proxy::running).sum()
        }

        pub(super) fn cut(&self, wire: Wire) -> u64 {
            let cut: usize = self.on(wire).iter().map(|proxy| proxy.cut(Ending::Reset)).sum();
            u64::try_from(cut).unwrap_or(u64::MAX)
        }

        fn totals(&self, wire: Wire) -> Totals {
            self.on(wire).iter().map(Proxy::totals).fold(Totals::default(), Totals::plus)
        }

        pub(super) fn through(&self) -> Vec<Through> {
            let of = |wire| {
                let all = self.totals(wire);
                let asked = if wire == Wire::Broker { self.asked } else { Totals::default() };
                Through {
                    wire,
                    up: all.up.saturating_sub(asked.up),
                    down: all.down.saturating_sub(asked.down),
                    connections: all.accepted.saturating_sub(asked.accepted),
                    cut: all.cut.saturating_sub(asked.cut),
                }
            };
            let there = [Wire::Database, Wire::Broker].into_iter().filter(|wire| !self.on(*wire).is_empty());
            there.map(of).collect()
        }
    }

    impl Drop for Proxies {
        fn drop(&mut self) {
            let Some(runtime) = &self.runtime else { return };
            let brokers = self.brokers.take().into_iter().flat_map(|brokers| brokers.proxies);
            for proxy in self.database.take().into_iter().chain(brokers) {
                runtime.block_on(proxy.stop());
            }
        }
    }
}

#[cfg(not(feature = "postgres"))]
mod proxied {
    use super::super::home::Home;
    use super::super::outcome::Through;
    use super::super::settings::Settings;
    use crate::error::{LabError, Result};
    use crate::history::Wire;

    pub(super) struct Proxies;

    impl Proxies {
        pub(super) fn start(settings: &Settings, _: &Home) -> Result<Self> {
            if settings.faults.cuts > 0 || settings.faults.broker_cuts > 0 {
                return Err(LabError::usage(
                    "faults: this program was built without Postgres and its proxies",
                ));
            }
            Ok(Self)
        }

        pub(super) fn addresses(&self, _: &Home) -> Result<(Option<String>, Option<String>)> {
            Ok((None, None))
        }

        pub(super) fn running(&self, _: Wire) -> usize {
            0
        }

        pub(super) fn cut(&self, _: Wire) -> u64 {
            0
        }

        pub(super) fn through(&self) -> Vec<Through> {
            Vec::new()
        }
    }
}
