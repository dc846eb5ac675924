//! Four processes on one Postgres take what is parked and due, and are killed while they try it: each attempt is
//! counted once, each message ends once, and at every moment a message has as many lines of history as attempts.

use crate::outages::SUBJECT;
use handstamp_e2e::child::Subject;
use handstamp_e2e::money::credit;
use handstamp_e2e::servers::{Database, Topic};
use std::time::{Duration, Instant};

const MESSAGES: i64 = 600;
/// Of them these never succeed.
const HOPELESS: i64 = 200;
/// Their account.
const NOBODY: i64 = 999;
const ATTEMPTS: i64 = 6;
const PROCESSES: usize = 4;
const KILLS: i64 = 6;
const LIMIT: Duration = Duration::from_secs(120);

/// While the branch is closed no effect is taken, and that of one account never is. Each try takes a number, also
/// one that is rolled back: so tries are counted by nobody of ours.
const BRANCH: &str = "CREATE SEQUENCE tries; CREATE TABLE closed (since timestamptz DEFAULT now()); \
     INSERT INTO closed DEFAULT VALUES; \
     CREATE FUNCTION branch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
       PERFORM nextval('tries'); \
       IF NEW.account_id = 999 OR EXISTS (SELECT FROM closed) THEN \
         RAISE check_violation USING MESSAGE = 'the branch is closed'; END IF; \
       RETURN NEW; END $$; \
     CREATE TRIGGER branch BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION branch()";

/// In one snapshot: messages whose attempts are not their lines of history; those lines; messages that have ended. A
/// death with a message alone is a crash of it and no attempt; its line is there once the message is given up.
const LOOK: &str = "WITH history AS (SELECT dedup, count(*) AS lines FROM handstamp.attempts \
                           WHERE class <> 'crashed' GROUP BY dedup), \
     messages AS (SELECT 'parked' AS state, dedup, attempts FROM handstamp.parked \
                  UNION ALL SELECT 'dead', dedup, attempts FROM handstamp.dead_letters) \
     SELECT (SELECT string_agg(format('%s: %s attempts, %s lines', state, attempts, lines), '; ') \
             FROM messages LEFT JOIN history USING (dedup) WHERE attempts IS DISTINCT FROM lines), \
            (SELECT coalesce(sum(lines), 0)::int8 FROM history), \
            (SELECT count(*) FROM handstamp.inbox WHERE state IN ('a', 'd'))";

struct Look {
    lines: i64,
    ended: i64,
}

struct Bed {
    database: Database,
    topic: Topic,
    /// How many were started.
    started: usize,
    until: Instant,
}

impl Bed {
    async fn new() -> Self {
        let database = Database::create().await;
        database.client.batch_execute(BRANCH).await.unwrap();
        let topic = Topic::create(4).await;
        for n in 0..MESSAGES {
            let id = uuid::Uuid::now_v7().to_string();
            let account = if n % (MESSAGES / HOPELESS) == 0 { NOBODY } else { n };
            topic.send(&id, &n.to_string(), &credit(&id, account, 1));
        }
        topic.flush();
        Self { database, topic, started: 0, until: Instant::now() + LIMIT }
    }

    /// A process that says on its connections which one it is.
    fn start(&mut self) -> (String, Subject) {
        self.started += 1;
        let name = format!("member_{}", self.started);
        let url = format!("{}?application_name={name}", self.database.url);
        let more = format!("attempts={ATTEMPTS} immediate=1 backoff-ms=150 batch=20 pause-us=500");
        let subject = Subject::start(SUBJECT, &self.topic.arguments(&url, &more));
        (name, subject)
    }

    async fn look(&self) -> Look {
        let row = self.database.client.query_one(LOOK, &[]).await.unwrap();
        let differ: Option<String> = row.get(0);
        assert_eq!(differ, None, "attempts are lines of history");
        let look = Look { lines: row.get(1), ended: row.get(2) };
        assert!(Instant::now() < self.until, "{} lines, {} ended", look.lines, look.ended);
        look
    }

    async fn number(&self, sql: &str) -> i64 {
        self.database.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Waits until a process holds rows of what is parked, in a transaction that has written.
    async fn wait_until_it_retries(&self, name: &str) {
        let sql = "SELECT count(*) FROM pg_stat_activity JOIN pg_locks USING (pid) \
                   WHERE application_name = $1 AND backend_xid IS NOT NULL \
                   AND relation = 'handstamp.parked'::regclass AND mode = 'RowShareLock'";
        while self.database.client.query_one(sql, &[&name]).await.unwrap().get::<_, i64>(0) == 0 {
            self.look().await;
        }
    }
}

#[tokio::test]
async fn four_processes_of_which_some_are_killed_count_each_attempt_and_each_end_once() {
    let mut bed = Bed::new().await;
    let mut members: Vec<(String, Subject)> = (0..PROCESSES).map(|_| bed.start()).collect();
    for kill in 1..=KILLS {
        while bed.look().await.lines < kill * MESSAGES / 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (name, subject) = members.remove(0);
        bed.wait_until_it_retries(&name).await;
        subject.kill();
        let member = bed.start();
        members.push(member);
        if kill == KILLS {
            bed.database.client.batch_execute("DELETE FROM closed").await.unwrap();
        }
    }
    while bed.look().await.ended < MESSAGES || bed.number("SELECT count(*) FROM handstamp.parked").await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (_, subject) in members {
        subject.terminate();
        let (status, log) = subject.wait(LIMIT);
        assert!(status.success(), "{}", log.join("\n"));
    }

    let dead = bed.database.dead_letters().await;
    let lines = bed.look().await.lines;
    bed.database.verdict().await.assert_once(MESSAGES - dead, 1);
    for (state, messages) in [("a", MESSAGES - dead), ("d", dead)] {
        let of_state = format!("SELECT count(*) FROM handstamp.inbox WHERE state = '{state}'");
        assert_eq!(bed.number(&of_state).await, messages, "{state}");
    }
    assert!((HOPELESS..MESSAGES).contains(&dead), "{dead} dead");
    let at_the_end = format!("SELECT count(*) FROM handstamp.dead_letters WHERE attempts = {ATTEMPTS}");
    assert_eq!(bed.number(&at_the_end).await, dead, "dead after all attempts, no more and no fewer");
    let most = "SELECT max(lines) FROM (SELECT count(*) AS lines FROM handstamp.attempts \
                WHERE class <> 'crashed' GROUP BY dedup) AS history";
    assert_eq!(bed.number(most).await, ATTEMPTS);
    let applied = MESSAGES - dead;
    let tries = bed.number("SELECT last_value FROM tries").await;
    assert!(tries >= lines + applied, "{tries} tries, {lines} failed and {applied} applied");
    let nodes = bed.number("SELECT count(DISTINCT node) FROM handstamp.attempts").await;
    assert!(nodes >= 4, "{nodes} processes tried anything");
    bed.topic.delete().await;
    bed.database.drop_now().await;
}
