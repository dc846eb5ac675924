//! `sslmode` from none to verify-full, on a server with a certificate of a test's own authority. The
//! certificate names `localhost`, so that 127.0.0.1 is another name.

use crate::harness::{Server, name, request};
use crate::private::PrivateServer;
use handstamp_core::{Fingerprint, Store, StoreError, StoreErrorKind};
use handstamp_stores::postgres::{MigrateOptions, PostgresOptions, PostgresStore};
use std::path::Path;
use std::process::Command;

fn openssl(folder: &Path, words: &str) {
    let output =
        Command::new("openssl").args(words.split(' ')).current_dir(folder).output().expect("openssl runs");
    assert!(output.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn authority(folder: &Path, file: &str) {
    openssl(
        folder,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={file} -keyout {file}.key -out {file}.pem"
        ),
    );
}

/// Whether a transaction runs over TLS.
async fn encrypted(url: &str) -> Result<bool, StoreError> {
    let store = PostgresStore::new(PostgresOptions::parse(url)?)?;
    let key = store.register(&name("wallet"), &Fingerprint("test".into()), false).await?;
    let (tx, _) = store.begin(&key, &[request("m", None)]).await?;
    let row = tx.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await.unwrap();
    // A cancel request goes over TLS too.
    store.abandon(tx).await;
    Ok(row.get(0))
}

#[tokio::test]
async fn every_sslmode_asks_for_what_it_says() {
    let private = PrivateServer::up(Server::V15).await;
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path();
    authority(place, "ours");
    authority(place, "theirs");
    std::fs::write(place.join("names"), "subjectAltName=DNS:localhost\n").unwrap();
    openssl(place, "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr");
    openssl(
        place,
        "x509 -req -in server.csr -CA ours.pem -CAkey ours.key -CAcreateserial -days 2 -extfile names -out server.pem",
    );
    let admin = private.admin().await;
    for (from, to) in [("server.pem", "server.crt"), ("server.key", "server.key")] {
        let text = std::fs::read_to_string(place.join(from)).unwrap().trim_end().replace('\n', "'), ('");
        let copy = format!("COPY (VALUES ('{text}')) TO PROGRAM 'umask 077 && cat > {to}'");
        admin.batch_execute(&copy).await.unwrap();
    }
    admin.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    admin.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    PostgresStore::new(PostgresOptions::parse(&private.url).unwrap())
        .unwrap()
        .migrate(&MigrateOptions::default())
        .await
        .unwrap();
    let plain = &private.url;
    let local = plain.replace("127.0.0.1", "localhost");
    let (ours, theirs) = (place.join("ours.pem"), place.join("theirs.pem"));
    let (ours, theirs) = (ours.display(), theirs.display());
    for (url, expected) in [
        (format!("{plain}?sslmode=disable"), Some(false)),
        (format!("{plain}?sslmode=prefer"), Some(true)),
        (format!("{plain}?sslmode=require"), Some(true)),
        (format!("{plain}?sslmode=require&sslrootcert={theirs}"), None),
        (format!("{plain}?sslmode=verify-ca&sslrootcert={ours}"), Some(true)),
        (format!("{plain}?sslmode=verify-ca&sslrootcert={theirs}"), None),
        (format!("{plain}?sslmode=verify-ca"), None),
        (format!("{local}?sslmode=verify-full&sslrootcert={ours}&hostaddr=127.0.0.1"), Some(true)),
        (format!("{plain}?sslmode=verify-full&sslrootcert={ours}"), None),
        (format!("{local}?sslmode=verify-full&sslrootcert={theirs}&hostaddr=127.0.0.1"), None),
    ] {
        match (encrypted(&url).await, expected) {
            (Ok(seen), Some(wanted)) => assert_eq!(seen, wanted, "{url}"),
            (Err(error), None) => assert_eq!(error.kind, StoreErrorKind::Unavailable, "{url}: {error}"),
            (seen, _) => panic!("{url}: {seen:?}"),
        }
    }
    let missing =
        PostgresOptions::parse(&format!("{plain}?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem")).unwrap();
    assert_eq!(PostgresStore::new(missing).unwrap_err().kind, StoreErrorKind::Config);
}
