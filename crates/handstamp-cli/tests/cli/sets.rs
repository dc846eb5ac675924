//! Effects that run once a batch, from outside: what is checked, what is run, what is left out.

use crate::common::Place;
use crate::wallet::number;

fn place(lines: &[&str], effects: &str) -> Place {
    let place = Place::new();
    let schema = "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
        INSERT INTO accounts VALUES (1, 0), (2, 0);
        CREATE TABLE ledger (event_id TEXT, account_id INTEGER, amount INTEGER CHECK (amount < 1000)) STRICT;";
    place.write("schema.sql", schema);
    place.write("in.jsonl", &lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    place.write(
        "p.toml",
        &format!(
            "name = \"wallet\"\n[source]\ntype = \"file\"\npath = \"in.jsonl\"\n[identity]\nfield = \"/id\"\n[store]\n\
             type = \"sqlite\"\npath = \"wallet.db\"\nsetup = \"schema.sql\"\n[retry]\nmax_attempts = 1\n{effects}"
        ),
    );
    place
}

fn effect(sql: &str, more: &str) -> String {
    format!(
        "[[effect]]\nset = true\nsql = \"{sql}\"\ncolumns.account = \"integer\"\ncolumns.amount = \"integer\"\n{more}\n"
    )
}

const LEDGER: &str = "INSERT INTO ledger SELECT message_id, account, amount FROM messages";
const SUMMED: &str = "UPDATE accounts SET balance = balance + m.amount FROM (SELECT account, sum(amount) AS amount FROM messages \
                      GROUP BY 1) AS m WHERE accounts.id = m.account";
const NAIVE: &str =
    "UPDATE accounts SET balance = balance + m.amount FROM messages AS m WHERE accounts.id = m.account";
const LINES: [&str; 6] = [
    r#"{"id":"a","account":1,"amount":5}"#,
    r#"{"id":"b","account":1,"amount":6}"#,
    r#"{"id":"c","account":2,"amount":7.5}"#,
    r#"{"id":"d","account":1,"amount":5000}"#,
    r#"{"id":"a","account":1,"amount":5}"#,
    r#"{"id":"e","account":9,"amount":1}"#,
];

#[test]
fn what_fits_is_applied_and_what_does_not_is_left_out() {
    let distinct = "expect_rows_sql = \"SELECT count(DISTINCT account) FROM messages\"";
    for updating in [effect(SUMMED, distinct), effect(NAIVE, "")] {
        let place = place(&LINES, &(effect(LEDGER, "") + &updating));
        let told = place.run(&["check", "p.toml"]).exits(0);
        assert!(told.stdout.contains("effects: each fits the tables"), "{}", told.stdout);
        place.run(&["run", "p.toml"]).exits(0);
        let count = |sql: &str| number(&place, sql);
        assert_eq!(count("SELECT sum(balance) FROM accounts"), 11);
        assert_eq!(count("SELECT count(*) FROM ledger"), 2);
        // A number that does not fit, a check of the table, an account that is not there.
        for class in ["binding", "sql", "rows"] {
            let dead = format!("SELECT count(*) FROM handstamp_dead_letters WHERE class = '{class}'");
            assert_eq!(count(&dead), 1, "{class}");
        }
    }
}

#[test]
fn a_condition_leaves_messages_out_of_the_relation() {
    let effects = effect(LEDGER, "when = \":account = 1\"")
        + &effect(LEDGER, "when = \":account = 2 and :amount < 7\"");
    let place = place(&LINES, &effects);
    place.run(&["run", "p.toml"]).exits(0);
    let count = |sql: &str| number(&place, sql);
    assert_eq!(count("SELECT sum(amount) FROM ledger"), 11);
    assert_eq!(count("SELECT count(*) FROM handstamp_dead_letters WHERE class = 'unmatched'"), 2);
}

#[test]
fn check_warns_of_any_number_of_rows_and_finds_columns_that_are_not_there() {
    let place = place(&LINES, &effect(LEDGER, "expect_rows = \"any\""));
    let told = place.run(&["check", "p.toml"]).exits(0);
    assert!(told.stdout.contains("it may touch any number of rows"), "{}", told.stdout);
    place.write("p.toml", &place.read("p.toml").replace("message_id, account", "message_id, acount"));
    let told = place.run(&["check", "p.toml"]).exits(5);
    assert!(told.stdout.contains("effect 1") && told.stdout.contains("acount"), "{}", told.stdout);
    let printed = place.run(&["check", "p.toml", "--print"]).exits(0).stdout;
    assert!(printed.contains("set = true") && printed.contains("expect_rows = \"any\""), "{printed}");
}
