//! Which handlers stand redelivery, and in which way the others are caught.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is the failure report")]

use handstamp_core::{BoxError, ConsumerName, HandlerError, Message};
use handstamp_testkit::fakes::{MemoryStore, MemoryTx};
use handstamp_testkit::redelivery::{Caught, Redelivery, Way, apply, crash_point, message};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A database in memory: what was written stays when a connection is dropped.
#[derive(Debug, Default)]
struct Database {
    balance: i64,
    marks: BTreeSet<String>,
    status: Option<String>,
}

type Shared = Rc<RefCell<Database>>;

/// Runs a handler over three messages.
async fn caught(
    redelivery: Redelivery,
    handle: impl AsyncFn(&mut Shared, &Message) -> Result<(), BoxError>,
) -> Result<(), Caught> {
    let all: RefCell<BTreeMap<u32, Shared>> = RefCell::default();
    let open = async |number: u32| Ok(Rc::clone(all.borrow_mut().entry(number).or_default()));
    let observe = async |database: &mut Shared| {
        let database = database.borrow();
        Ok((database.balance, database.status.clone()))
    };
    redelivery.check(open, handle, observe).await
}

fn three() -> Redelivery {
    Redelivery::of(["evt-1", "evt-2", "evt-3"].map(|id| message(id, id).unwrap()))
}

#[tokio::test]
async fn adding_without_an_inbox_is_caught_by_the_second_copy() {
    let found = caught(three(), async |database, _| {
        database.borrow_mut().balance += 100;
        Ok(())
    });
    let found = found.await.unwrap_err();
    assert_eq!(found.way, Way::Twice);
    assert!(found.to_string().contains("300") && found.to_string().contains("600"), "{found}");
}

#[tokio::test]
async fn a_memory_of_the_last_id_alone_is_caught_when_all_come_again() {
    let found = caught(three(), async |database, message| {
        let (mut database, id) = (database.borrow_mut(), message.id().to_string());
        if !database.marks.contains(&id) {
            database.marks = [id].into();
            database.balance += 100;
        }
        Ok(())
    });
    assert_eq!(found.await.unwrap_err().way, Way::AllAgain);
}

#[tokio::test]
async fn look_up_act_mark_is_caught_by_a_crash_in_between_and_one_transaction_is_not() {
    let apart = async |database: &mut Shared, message: &Message| {
        let id = message.id().to_string();
        if database.borrow().marks.contains(&id) {
            return Ok(());
        }
        database.borrow_mut().balance += 100;
        crash_point().await;
        database.borrow_mut().marks.insert(id);
        Ok(())
    };
    assert_eq!(caught(three(), apart).await.unwrap_err().way, Way::CrashInside);
    let together = async |database: &mut Shared, message: &Message| {
        crash_point().await;
        let mut database = database.borrow_mut();
        if database.marks.insert(message.id().to_string()) {
            database.balance += 100;
        }
        Ok(())
    };
    caught(three(), together).await.unwrap();
}

#[tokio::test]
async fn marking_first_is_caught_as_a_loss() {
    let found = caught(three(), async |database, message| {
        if database.borrow_mut().marks.insert(message.id().to_string()) {
            crash_point().await;
            database.borrow_mut().balance += 100;
        }
        Ok(())
    });
    let found = found.await.unwrap_err();
    assert_eq!(found.way, Way::CrashInside);
    assert!(found.to_string().contains("so it is (0"), "{found}");
}

#[tokio::test]
async fn a_memory_that_dies_with_the_process_is_caught() {
    // What is kept beside the database, such as a set in the process.
    #[derive(Debug, Default)]
    struct Process(Shared, BTreeSet<String>);
    let all: RefCell<BTreeMap<u32, Shared>> = RefCell::default();
    let open = async |number: u32| {
        Ok::<_, BoxError>(Process(Rc::clone(all.borrow_mut().entry(number).or_default()), BTreeSet::new()))
    };
    let handle = async |process: &mut Process, message: &Message| {
        if process.1.insert(message.id().to_string()) {
            process.0.borrow_mut().balance += 100;
        }
        Ok(())
    };
    let observe = async |process: &mut Process| Ok(process.0.borrow().balance);
    assert_eq!(three().check(open, handle, observe).await.unwrap_err().way, Way::CrashBeforeSettle);
}

#[tokio::test]
async fn the_last_writer_is_caught_out_of_order_unless_the_order_is_kept() {
    let handle = async |database: &mut Shared, message: &Message| {
        database.borrow_mut().status = Some(message.id().to_string());
        Ok(())
    };
    assert_eq!(caught(three(), handle).await.unwrap_err().way, Way::Backwards);
    // Twice in a row and all again end with the same last message.
    caught(three().in_order(), handle).await.unwrap();
}

#[tokio::test]
async fn an_error_for_a_duplicate_is_a_finding() {
    let found = caught(three(), async |database, message| {
        if database.borrow_mut().marks.insert(message.id().to_string()) {
            return Ok(());
        }
        Err("duplicate key".into())
    });
    let found = found.await.unwrap_err();
    assert_eq!(found.way, Way::Twice);
    assert!(found.to_string().contains("evt-1") && found.to_string().contains("duplicate key"), "{found}");
}

#[tokio::test]
async fn a_handler_of_the_runtime_is_caught_only_for_what_it_does_outside_of_its_transaction() {
    let consumer = ConsumerName::new("wallet").unwrap();
    let inside = async |tx: &mut MemoryTx, _: &Message| -> Result<(), HandlerError> {
        crash_point().await;
        tx.add("balance", 100)?;
        crash_point().await;
        Ok(())
    };
    let stores: RefCell<BTreeMap<u32, MemoryStore>> = RefCell::default();
    let open = async |number: u32| {
        let store = stores.borrow_mut().entry(number).or_insert_with(|| MemoryStore::broken(None)).clone();
        // A connection that was open is closed by the server.
        store.restart();
        Ok::<_, BoxError>(store)
    };
    let handle =
        async |store: &mut MemoryStore, message: &Message| apply(store, &consumer, &inside, message).await;
    let observe = async |store: &mut MemoryStore| Ok(store.counter("balance"));
    three().check(open, handle, observe).await.unwrap();

    let sent = Rc::new(std::cell::Cell::new(0));
    let outside = {
        let sent = Rc::clone(&sent);
        async move |store: &mut MemoryStore, message: &Message| {
            sent.set(sent.get() + 1);
            crash_point().await;
            apply(store, &ConsumerName::new("wallet")?, &inside, message).await
        }
    };
    let stores: RefCell<BTreeMap<u32, MemoryStore>> = RefCell::default();
    let open = async |number: u32| {
        sent.set(0);
        Ok::<_, BoxError>(
            stores.borrow_mut().entry(number).or_insert_with(|| MemoryStore::broken(None)).clone(),
        )
    };
    let observe = async |_: &mut MemoryStore| Ok(sent.get());
    assert_eq!(three().check(open, outside, observe).await.unwrap_err().way, Way::Twice);
}
