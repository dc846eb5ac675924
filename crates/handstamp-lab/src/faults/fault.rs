//! The servers of a run, and what an outage does to them.

use super::group::{Around, Group};
use super::record::Seen;
use super::servers::Server;
use super::settings::RowKey;
use super::through::{self, BrokerProxies, PostgresUrl, Through};
use super::watch::Watch;
use crate::broker::Broker;
use crate::error::{LabError, LabErrorKind, Result};
use crate::history::Event;
use crate::ledger::{Place, probe};
use crate::proxy::{Proxy, ProxyOptions};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// The role of the subjects: no superuser, so that the last connections are not kept free for it.
const ROLE: &str = "lab_member";
/// So many looks in a row must find no place left and no member connected.
const QUIET_LOOKS: u32 = 8;
/// More than any server of ours accepts.
const CONNECTIONS_TRIED_MAX: usize = 1000;
/// Longest wait for a promoted standby to take writes.
const PROMOTED_MAX: Duration = Duration::from_secs(30);

/// Longest wait for transactions that had begun when the database took no more writes, and looks in a row that
/// must find none.
const WRITERS_MAX: Duration = Duration::from_secs(30);
const WRITERS_LOOKS: u32 = 10;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The broker is stopped and started again.
    BrokerRestarted,
    /// The broker's processes are stopped by SIGSTOP and go on later.
    BrokerFrozen,
    /// The database is ended as by a crash and started again.
    DatabaseRestarted,
    /// The database's processes are stopped by SIGSTOP and go on later.
    DatabaseFrozen,
    /// The database takes no writes.
    DatabaseReadOnly,
    /// Every connection the database has is taken.
    OutOfConnections,
    /// The primary is killed, and its synchronous standby is promoted.
    PrimaryLost,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::BrokerRestarted,
        Self::BrokerFrozen,
        Self::DatabaseRestarted,
        Self::DatabaseFrozen,
        Self::DatabaseReadOnly,
        Self::OutOfConnections,
        Self::PrimaryLost,
    ];

    /// For people.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::BrokerRestarted => "broker restarted",
            Self::BrokerFrozen => "broker frozen (SIGSTOP)",
            Self::DatabaseRestarted => "database crashed and restarted",
            Self::DatabaseFrozen => "database frozen (SIGSTOP)",
            Self::DatabaseReadOnly => "database read-only",
            Self::OutOfConnections => "database out of connections",
            Self::PrimaryLost => "primary lost, standby promoted",
        }
    }

    /// Whether it needs a primary with a standby.
    pub(super) fn needs_pair(self) -> bool {
        self == Self::PrimaryLost
    }

    /// Whether the server's answers stop; otherwise its answers are refusals.
    pub(super) fn silences(self) -> bool {
        !matches!(self, Self::DatabaseReadOnly | Self::OutOfConnections)
    }

    fn is_of_broker(self) -> bool {
        matches!(self, Self::BrokerRestarted | Self::BrokerFrozen)
    }
}

/// A broker and a database, each behind proxies.
pub(super) struct Scene<'a> {
    around: &'a Around<'a>,
    runtime: &'a Runtime,
    // Proxies end before the servers behind them do.
    brokers: BrokerProxies,
    databases: Vec<Proxy>,
    broker: Broker,
    kafka: Server,
    postgres: Server,
    /// The superuser's URL of each database.
    admins: Vec<String>,
    /// The database that takes writes.
    primary: usize,
    /// Connections that are kept so that nobody else has them.
    taken: Vec<Client>,
}

impl<'a> Scene<'a> {
    /// Starts servers and proxies; the inner error is why the broker cannot be proxied.
    pub(super) fn open(
        around: &'a Around<'a>,
        runtime: &'a Runtime,
        kafka: &str,
        postgres: &str,
    ) -> Result<std::result::Result<Self, String>> {
        let (pair, three) = (postgres == "postgres-pair", kafka == "kafka3");
        let variable = if three { "HANDSTAMP_TEST_KAFKA3" } else { "HANDSTAMP_TEST_KAFKA" };
        let kafka = Server::start_new(around.services, kafka)?;
        let Some(pairs) = kafka.variable(&format!("{variable}_PROXIED"))? else {
            return Ok(Err("the broker has no second listener that leads through a proxy".to_owned()));
        };
        let brokers = match BrokerProxies::start(runtime, &pairs, around.seed)? {
            Ok(brokers) => brokers,
            Err(reason) => return Ok(Err(reason)),
        };
        let broker = Broker::kafka(&kafka.address(variable)?)?;
        let postgres = Server::start_new(around.services, postgres)?;
        let admins = if pair {
            vec![
                postgres.address("HANDSTAMP_TEST_POSTGRES_PRIMARY")?,
                postgres.address("HANDSTAMP_TEST_POSTGRES_STANDBY")?,
            ]
        } else {
            vec![postgres.address("HANDSTAMP_TEST_POSTGRES")?]
        };
        let mut databases = Vec::new();
        for admin in &admins {
            let options =
                ProxyOptions { seed: around.seed, ..ProxyOptions::before(PostgresUrl::parse(admin)?.place) };
            databases.push(through::start(runtime, options)?);
        }
        let mut watch = Watch::new(runtime, around.cancel, &admins[0], "public");
        watch.run(&format!("CREATE ROLE {ROLE} LOGIN"))?;
        let (primary, taken) = (0, Vec::new());
        Ok(Ok(Self { around, runtime, brokers, databases, broker, kafka, postgres, admins, primary, taken }))
    }

    /// What servers these are, with their versions as far as they tell them.
    pub(super) fn describe(&self) -> Result<String> {
        let database = probe(&Place::Postgres(self.admins[self.primary].clone()))?;
        Ok(format!("{}; {database}", self.broker.describe()))
    }

    /// A backlog and a ledger for a row, which the subjects' role may use.
    pub(super) fn group(&self, key: RowKey, messages: u64) -> Result<Group<'a>> {
        let admin = &self.admins[self.primary];
        let mut group = Group::open(self.around, self.runtime, &self.broker, admin, key, messages)?;
        let schemas = format!("{0}, {0}_inbox", group.schema());
        group.watch.run(&format!(
            "GRANT USAGE ON SCHEMA {schemas} TO {ROLE}; GRANT ALL ON ALL TABLES IN SCHEMA {schemas} TO {ROLE}; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA {schemas} TO {ROLE}"
        ))?;
        Ok(group)
    }

    /// What the subjects connect to.
    pub(super) fn bootstrap(&self) -> String {
        self.brokers.bootstrap.clone()
    }

    /// What members connect to that go around the proxies.
    pub(super) fn direct(&self) -> String {
        self.broker.bootstrap().to_owned()
    }

    /// Does something to the proxy before each broker.
    pub(super) fn brokers(&self, what: impl Fn(&Proxy)) {
        self.brokers.proxies.iter().for_each(what);
    }

    /// SIGKILL to one broker.
    pub(super) fn kill_broker(&self, member: u8) -> Result<()> {
        self.kafka.kill(Some(member))
    }

    /// Starts it again.
    pub(super) fn start_broker(&self, member: u8) -> Result<()> {
        self.kafka.start(Some(member))
    }

    /// The subjects' database, through the proxies; every server of it is named.
    pub(super) fn database_url(&self) -> String {
        let places: Vec<SocketAddr> = self.databases.iter().map(Proxy::address).collect();
        // Every URL of the scene was read before.
        PostgresUrl::parse(&self.admins[0]).map(|url| url.as_user(ROLE).by(&places)).unwrap_or_default()
    }

    /// What has gone through the proxies so far, and bytes answered by the server that a row's fault is about.
    pub(super) fn passed(&self, key: RowKey) -> Event {
        let database = self.databases.iter().map(Through::of).fold(Through::default(), Through::plus);
        let broker = self.brokers.through();
        let answered = match key {
            RowKey::Outage(fault, _) if !fault.is_of_broker() => self.databases[0].totals().down,
            _ => broker.bytes_down,
        };
        Event::Fault(Seen::Passed { database, broker, answered })
    }

    /// The fault begins.
    pub(super) fn begin(&mut self, fault: Fault, group: &mut Group<'_>) -> Result<()> {
        match fault {
            Fault::BrokerRestarted => self.kafka.stop(false),
            Fault::BrokerFrozen => self.kafka.freeze(),
            Fault::DatabaseRestarted => self.postgres.stop(true),
            Fault::DatabaseFrozen => self.postgres.freeze(),
            Fault::DatabaseReadOnly => self.read_only(true),
            Fault::OutOfConnections => self.take_connections(group),
            Fault::PrimaryLost => {
                // The standby would wait for a standby of its own.
                self.ask(1)?.run("ALTER SYSTEM SET synchronous_standby_names = ''")?;
                self.ask(1)?.run("SELECT pg_reload_conf()")?;
                self.postgres.kill(Some(1))
            }
        }
    }

    /// The fault is over.
    pub(super) fn end(&mut self, fault: Fault, group: &mut Group<'_>) -> Result<()> {
        match fault {
            Fault::BrokerRestarted => self.kafka.start(None)?,
            Fault::BrokerFrozen => self.kafka.thaw()?,
            Fault::DatabaseRestarted => self.postgres.start(None)?,
            Fault::DatabaseFrozen => self.postgres.thaw()?,
            Fault::DatabaseReadOnly => self.read_only(false)?,
            Fault::OutOfConnections => {
                // Dropped on the runtime that drives them.
                let _inside = self.runtime.enter();
                self.taken.clear();
            }
            Fault::PrimaryLost => self.promote()?,
        }
        if fault.is_of_broker() { Ok(()) } else { group.reconnect(&self.admins[self.primary]) }
    }

    fn ask(&self, database: usize) -> Result<Watch<'a>> {
        let admin = self.admins.get(database).ok_or_else(|| LabError::usage("there is no standby"))?;
        Ok(Watch::new(self.runtime, self.around.cancel, admin, "public"))
    }

    fn read_only(&self, yes: bool) -> Result<()> {
        let setting = if yes {
            "SET default_transaction_read_only = on"
        } else {
            "RESET default_transaction_read_only"
        };
        let mut admin = self.ask(0)?;
        admin.run(&format!("ALTER SYSTEM {setting}"))?;
        admin.run("SELECT pg_reload_conf()")?;
        if yes { self.wait_for_writers(&mut admin) } else { Ok(()) }
    }

    /// The setting is one of transactions that begin: those that had begun may still write and commit.
    fn wait_for_writers(&self, admin: &mut Watch<'_>) -> Result<()> {
        let writers = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}' AND backend_xid IS NOT NULL"
        );
        let until = Instant::now() + WRITERS_MAX;
        let mut quiet = 0;
        while quiet < WRITERS_LOOKS {
            quiet = if admin.number(&writers)? == 0 { quiet + 1 } else { 0 };
            if Instant::now() > until {
                return Err(LabError::new(
                    LabErrorKind::Other,
                    "the database is read-only and is written to",
                ));
            }
            self.around.cancel.sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }

    fn promote(&mut self) -> Result<()> {
        let mut standby = self.ask(1)?;
        standby.run("SELECT pg_promote(false)")?;
        let until = Instant::now() + PROMOTED_MAX;
        while standby.number("SELECT pg_is_in_recovery()::int::int8")? != 0 {
            if Instant::now() > until {
                return Err(LabError::new(LabErrorKind::Other, "the standby was not promoted"));
            }
            self.around.cancel.sleep(Duration::from_millis(50))?;
        }
        self.primary = 1;
        Ok(())
    }

    /// Takes every connection there is, the subjects' own included.
    fn take_connections(&mut self, group: &mut Group<'_>) -> Result<()> {
        let url = PostgresUrl::parse(&self.admins[0])?.as_user(ROLE);
        let url = format!("{}&application_name=lab_taken", url.by(&[url.place]));
        let end_members = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{ROLE}' AND application_name <> 'lab_taken'"
        );
        let mut quiet = 0;
        for _ in 0..CONNECTIONS_TRIED_MAX {
            self.around.cancel.check()?;
            let connected = self.runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                drop(tokio::spawn(connection));
                Ok::<_, tokio_postgres::Error>(client)
            });
            match connected {
                Ok(client) => self.taken.push(client),
                Err(error) if error.code().is_some_and(|code| code.code() == "53300") => {
                    // One that is just connecting has a place and no name yet.
                    quiet = if group.watch.number(&end_members)? == 0 { quiet + 1 } else { 0 };
                    if quiet == QUIET_LOOKS {
                        return Ok(());
                    }
                    self.around.cancel.sleep(Duration::from_millis(50))?;
                }
                Err(error) => {
                    return Err(LabError::new(LabErrorKind::Other, "taking connections").because(error));
                }
            }
        }
        Err(LabError::new(LabErrorKind::Other, "the database never ran out of connections"))
    }
}
