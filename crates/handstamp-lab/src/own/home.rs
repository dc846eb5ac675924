//! The database of one run: a database of its own on a Postgres server, or a SQLite file of its own. Made
//! with the user's tables, asked for effects, gone at the end.
//!
//! Authoritative for the verdict: what the user's query or command answers here.

use super::settings::CountedBy;
use crate::error::{LabError, LabErrorKind, Result};
use crate::ledger::Place;
#[cfg(feature = "postgres")]
use crate::ledger::session::Session;
use crate::supervisor::Leader;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest run of a command that counts or makes tables.
const COMMAND_MAX: Duration = Duration::from_secs(60);

/// Effects of each id.
pub(super) type Effects = BTreeMap<String, u64>;

/// The run's database.
pub(super) enum Home {
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresHome>),
    Sqlite(PathBuf),
}

impl Home {
    /// Makes it, empty.
    ///
    /// # Errors
    /// `Unreachable`; `Other` when the server refuses a new database.
    pub(super) fn create(place: &Place, name: &str) -> Result<Self> {
        match place {
            #[cfg(feature = "postgres")]
            Place::Postgres(url) => Ok(Self::Postgres(Box::new(PostgresHome::create(url, name)?))),
            Place::Sqlite(folder) => Ok(Self::Sqlite(folder.join(format!("{name}.db")))),
        }
    }

    /// What DATABASE_URL says: a Postgres URL, or the path of the SQLite file.
    pub(super) fn url(&self) -> String {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(home) => home.url.clone(),
            Self::Sqlite(path) => path.display().to_string(),
        }
    }

    /// Runs the user's SQL.
    ///
    /// # Errors
    /// The database refuses it.
    pub(super) fn run(&self, sql: &str) -> Result<()> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(home) => home.session.run(sql),
            Self::Sqlite(path) => sqlite(path)?.execute_batch(sql).map_err(refused),
        }
        .map_err(|error| LabError::usage("database.setup: the SQL is refused").because(error))
    }

    /// The effects of each id, as the user counts them. `variables` are those of the program.
    ///
    /// # Errors
    /// The query or the command fails.
    pub(super) fn effects(&self, by: &CountedBy, variables: &[(String, String)]) -> Result<Effects> {
        let ids = match (by, self) {
            #[cfg(feature = "postgres")]
            (CountedBy::Query(query), Self::Postgres(home)) => home.session.first_texts(query)?,
            (CountedBy::Query(query), Self::Sqlite(path)) => first_column(path, query)?,
            (CountedBy::Command(words), _) => {
                let text = output_of("effects.command", words, variables)?;
                text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
            }
        };
        let mut effects = Effects::new();
        for id in ids {
            *effects.entry(id).or_default() += 1;
        }
        Ok(effects)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(home) => home.remove(),
            Self::Sqlite(path) => {
                for end in ["", "-wal", "-shm", "-journal"] {
                    let mut name = path.as_os_str().to_owned();
                    name.push(end);
                    // One that is not there is as good as removed.
                    let _ = std::fs::remove_file(name);
                }
            }
        }
    }
}

fn refused(error: rusqlite::Error) -> LabError {
    LabError::new(LabErrorKind::Other, "SQLite refuses").because(error)
}

fn sqlite(path: &Path) -> Result<rusqlite::Connection> {
    let connection = rusqlite::Connection::open(path).map_err(refused)?;
    connection.busy_timeout(Duration::from_secs(10)).map_err(refused)?;
    Ok(connection)
}

/// The first column of a query as text; a row without a value is left out.
fn first_column(path: &Path, query: &str) -> Result<Vec<String>> {
    use rusqlite::types::ValueRef;
    let connection = sqlite(path)?;
    let mut statement = connection.prepare(query).map_err(refused)?;
    let mut rows = statement.query([]).map_err(refused)?;
    let mut ids = Vec::new();
    while let Some(row) = rows.next().map_err(refused)? {
        match row.get_ref(0).map_err(refused)? {
            ValueRef::Null => {}
            ValueRef::Integer(number) => ids.push(number.to_string()),
            ValueRef::Real(number) => ids.push(number.to_string()),
            ValueRef::Text(text) | ValueRef::Blob(text) => {
                ids.push(String::from_utf8_lossy(text).into_owned())
            }
        }
    }
    Ok(ids)
}

/// Runs a command to its end and answers its standard output.
///
/// # Errors
/// It cannot be started, takes too long or fails.
pub(super) fn output_of(key: &str, words: &[String], variables: &[(String, String)]) -> Result<String> {
    let wrong = |what: String| LabError::usage(format!("{key}: {what}"));
    let Some((program, arguments)) = words.split_first() else { return Err(wrong("no program".into())) };
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
    let started = Leader::start(&command, |command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    });
    let mut child = started.map_err(|error| wrong(format!("{program} cannot be started")).because(error))?;
    let pipe = child.child().stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut pipe) = pipe {
            // A pipe that breaks ends the text; the exit status tells.
            let _ = pipe.read_to_end(&mut text);
        }
        text
    });
    let until = Instant::now() + COMMAND_MAX;
    let status = loop {
        match child.ended_alone() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.end();
                return Err(wrong(format!("{program} took longer than {COMMAND_MAX:?}")));
            }
        }
    };
    if !status.success() {
        return Err(wrong(format!("{program} ended with {status}")));
    }
    let text = reader.join().unwrap_or_default();
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A database of its own on a server.
#[cfg(feature = "postgres")]
pub(super) struct PostgresHome {
    session: Session,
    admin: String,
    pub(super) url: String,
    name: String,
}

#[cfg(feature = "postgres")]
impl PostgresHome {
    fn create(admin: &str, name: &str) -> Result<Self> {
        let url = Url::parse(admin)?.with_database(name);
        Session::open(admin)?.run(&format!("CREATE DATABASE {name}")).map_err(|error| {
            let what = "--database: a run makes a database of its own, for which the role needs CREATEDB";
            LabError::new(error.kind, what).because(error)
        })?;
        match Session::open(&url) {
            Ok(session) => Ok(Self { session, admin: admin.to_owned(), url, name: name.to_owned() }),
            Err(error) => {
                drop_database(admin, name);
                Err(error)
            }
        }
    }

    fn remove(&mut self) {
        drop_database(&self.admin, &self.name);
    }
}

#[cfg(feature = "postgres")]
fn drop_database(admin: &str, name: &str) {
    let sql = format!("DROP DATABASE {name} WITH (FORCE)");
    if let Err(error) = Session::open(admin).and_then(|session| session.run(&sql)) {
        tracing::warn!(database = name, %error, "the lab's database is left behind");
    }
}

/// A Postgres URL taken apart.
#[cfg(feature = "postgres")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    scheme: String,
    /// With `@` at its end; empty without a user.
    user: String,
    /// `host:port`, `host` or nothing.
    place: String,
    /// With `?` at its beginning; empty without parameters.
    parameters: String,
    database: String,
}

#[cfg(feature = "postgres")]
impl Url {
    /// # Errors
    /// `Usage` for what is no URL.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let bad = || LabError::usage("--database must be a URL: postgres://USER@HOST:PORT/DATABASE");
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(bad());
        }
        let (rest, parameters) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, place) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let own = |text: &str| text.to_owned();
        Ok(Self {
            scheme: own(scheme),
            user: own(user),
            place: own(place),
            parameters: own(parameters),
            database: own(database),
        })
    }

    /// The same server, another database.
    pub(super) fn with_database(&self, name: &str) -> String {
        Self { database: name.to_owned(), ..self.clone() }.text()
    }

    /// The same database by another address.
    pub(super) fn by(&self, place: std::net::SocketAddr) -> String {
        Self { place: place.to_string(), ..self.clone() }.text()
    }

    /// Where the server is.
    ///
    /// # Errors
    /// `Usage` when it is no single address that a proxy can stand before.
    pub(super) fn address(&self) -> Result<std::net::SocketAddr> {
        use std::net::ToSocketAddrs;
        let place =
            if self.place.contains(':') { self.place.clone() } else { format!("{}:5432", self.place) };
        let found = place.to_socket_addrs().ok().and_then(|mut found| found.next());
        found.ok_or_else(|| LabError::usage("faults.cuts: --database must name one host and port for this"))
    }

    fn text(&self) -> String {
        let Self { scheme, user, place, parameters, database } = self;
        format!("{scheme}://{user}{place}/{database}{parameters}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "postgres")]
    #[test]
    fn a_url_keeps_everything_but_what_is_changed() {
        let url =
            Url::parse("postgres://u:p@1.2.3.4:5/old?sslmode=disable&options=-c%20x%3D1").expect("a URL");
        assert_eq!(
            url.with_database("new"),
            "postgres://u:p@1.2.3.4:5/new?sslmode=disable&options=-c%20x%3D1"
        );
        let by = url.by("127.0.0.1:9".parse().expect("an address"));
        assert_eq!(by, "postgres://u:p@127.0.0.1:9/old?sslmode=disable&options=-c%20x%3D1");
        assert_eq!(Url::parse("postgresql://host").expect("a URL").with_database("d"), "postgresql://host/d");
        assert!(Url::parse("host=x dbname=y").is_err() && Url::parse("mysql://u@h/d").is_err());
    }

    #[test]
    fn effects_are_counted_by_query_and_by_command() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = Home::create(&Place::Sqlite(folder.path().to_owned()), "one").expect("made");
        home.run("CREATE TABLE ledger (id); INSERT INTO ledger VALUES ('a'), ('a'), (7), (NULL)")
            .expect("run");
        let query = CountedBy::Query("SELECT id FROM ledger".into());
        let both: Effects = [("a".to_owned(), 2), ("7".to_owned(), 1)].into();
        assert_eq!(home.effects(&query, &[]).expect("counted"), both);
        let words = ["sh", "-c", "printf 'a\\n%s\\n\\na\\n' $SEVEN"].map(str::to_owned).to_vec();
        let command = CountedBy::Command(words);
        let counted = home.effects(&command, &[("SEVEN".into(), "7".into())]).expect("counted");
        assert_eq!(counted, both);
        let error = home.effects(&CountedBy::Command(vec!["false".into()]), &[]).expect_err("failed");
        assert!(error.to_string().contains("effects.command"), "{error}");
        drop(home);
        assert_eq!(std::fs::read_dir(folder.path()).expect("read").count(), 0);
    }
}
