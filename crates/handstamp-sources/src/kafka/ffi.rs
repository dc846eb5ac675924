//! Everything that needs `unsafe`: the calls of the C library that the safe wrapper does not offer, or
//! offers in a way that panics.
//!
//! * one queue per partition, so that holding a lane costs nothing;
//! * header names as bytes (the wrapper unwraps them as UTF-8);
//! * commits that answer on a queue of ours, so that waiting for one has a limit;
//! * the end of a client that met a fatal error;
//! * cached watermarks, and two hooks for tests;
//! * the mock cluster's rebalance delay, for the crash lab.
//!
//! Every object here keeps the client alive by an `Arc`, so no pointer outlives what it points into.

#![allow(unsafe_code)]

use super::context::Context;
use super::wake::Signal;
use rdkafka::TopicPartitionList;
use rdkafka::bindings as rd;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::OwnedHeaders;
use std::ffi::{CStr, CString, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

/// The client whose queues are read here.
pub(super) type Client = Arc<BaseConsumer<Context>>;

/// An error code of the client library or the broker, as a number: newer brokers send codes that no
/// enum of ours knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

impl Code {
    pub(super) const NONE: Self = Self(0);
    /// The end of a partition was reached.
    pub(super) const PARTITION_EOF: Self = Self(-191);

    /// The library's own words for the code.
    pub(super) fn text(self) -> String {
        match rd::rd_kafka_resp_err_t::try_from(self.0) {
            Ok(code) => rdkafka::error::RDKafkaErrorCode::from(code).to_string(),
            Err(_) => format!("unknown error code {}", self.0),
        }
    }
}

/// Reads a code field without trusting that its value is one the enum has.
///
/// # Safety
/// The pointer must be readable.
unsafe fn read_code(code: *const rd::rd_kafka_resp_err_t) -> Code {
    // SAFETY: the enum is `repr(i32)`, so its place holds an i32; the caller promises it is readable.
    Code(unsafe { code.cast::<i32>().read() })
}

// Declared again with a number as its result: the bindings' enum has no place for the code of a newer
// broker.
#[allow(clashing_extern_declarations)]
unsafe extern "C" {
    #[link_name = "rd_kafka_event_error"]
    fn event_error(event: *mut rd::rd_kafka_event_t) -> i32;
}

fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

/// A queue of the client library.
pub(super) struct Queue {
    ptr: NonNull<rd::rd_kafka_queue_t>,
    /// What the library's callback points to while it is enabled.
    signal: Option<Arc<Signal>>,
    client: Client,
}

// SAFETY: the C library's queues may be used from any thread (its own documentation).
unsafe impl Send for Queue {}

impl Queue {
    fn own(client: &Client, ptr: *mut rd::rd_kafka_queue_t) -> Option<Self> {
        Some(Self { ptr: NonNull::new(ptr)?, signal: None, client: Arc::clone(client) })
    }

    /// A new, empty queue.
    pub(super) fn new(client: &Client) -> Option<Self> {
        // SAFETY: the client is alive; the returned reference is owned by the new object.
        Self::own(client, unsafe { rd::rd_kafka_queue_new(client.client().native_ptr()) })
    }

    /// The queue that carries rebalances and errors.
    pub(super) fn main(client: &Client) -> Option<Self> {
        // SAFETY: as above.
        Self::own(client, unsafe { rd::rd_kafka_queue_get_consumer(client.client().native_ptr()) })
    }

    /// The queue of one partition, cut off from the main queue: what is fetched waits here until it is
    /// read. Must be called before the partition is assigned.
    pub(super) fn of_partition(client: &Client, topic: &str, partition: i32) -> Option<Self> {
        let topic = CString::new(topic).ok()?;
        // SAFETY: the client is alive and the name is a C string for the length of the call.
        let ptr = unsafe {
            rd::rd_kafka_queue_get_partition(client.client().native_ptr(), topic.as_ptr(), partition)
        };
        let queue = Self::own(client, ptr)?;
        // SAFETY: the queue is alive; a null target ends the forwarding to the main queue.
        unsafe { rd::rd_kafka_queue_forward(queue.ptr.as_ptr(), ptr::null_mut()) };
        Some(queue)
    }

    /// Raises the signal whenever the queue stops being empty.
    pub(super) fn raise(&mut self, signal: Arc<Signal>) {
        let opaque = Arc::as_ptr(&signal).cast::<c_void>().cast_mut();
        self.signal = Some(signal);
        // SAFETY: the signal lives in `self.signal` until `drop` has disabled the callback; the library
        // calls it under the queue's lock, so none runs after that.
        unsafe { rd::rd_kafka_queue_cb_event_enable(self.ptr.as_ptr(), Some(on_event), opaque) };
    }

    /// Whether there may be something to read.
    pub(super) fn signal(&self) -> Option<&Signal> {
        self.signal.as_deref()
    }

    /// Entries that wait.
    pub(super) fn len(&self) -> usize {
        // SAFETY: the queue is alive.
        unsafe { rd::rd_kafka_queue_length(self.ptr.as_ptr()) }
    }

    /// Reads at most `max` entries that are there now and shows each one. Returns how many were read.
    ///
    /// One by one, and not with the library's batch call: that one (2.12.1) takes the entry for a
    /// partition's end as consumed, so that after the pause of a cooperative rebalance fetching goes on one
    /// past the end: a message is lost, or the position is out of range and the log is read again.
    pub(super) fn read(&mut self, max: usize, mut each: impl FnMut(&Raw<'_>)) -> usize {
        for read in 0..max {
            // SAFETY: the queue is alive; the message is ours from here on.
            let ptr = unsafe { rd::rd_kafka_consume_queue(self.ptr.as_ptr(), 0) };
            if ptr.is_null() {
                return read;
            }
            each(&Raw { ptr, client: &self.client });
        }
        max
    }

    /// The next answer to a commit, waiting at most so long.
    pub(super) fn commit_answer(&self, wait: Duration) -> Option<CommitAnswer> {
        // SAFETY: the queue is alive; the event is destroyed below, after its last use.
        unsafe {
            let event = rd::rd_kafka_queue_poll(self.ptr.as_ptr(), millis(wait));
            if event.is_null() {
                return None;
            }
            let answer = CommitAnswer {
                number: rd::rd_kafka_event_opaque(event).addr(),
                code: Code(event_error(event)),
                partitions: list(rd::rd_kafka_event_topic_partition_list(event)),
            };
            rd::rd_kafka_event_destroy(event);
            Some(answer)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: our own reference, used for the last time; the client is still alive.
        unsafe {
            if self.signal.is_some() {
                rd::rd_kafka_queue_cb_event_enable(self.ptr.as_ptr(), None, ptr::null_mut());
            }
            rd::rd_kafka_queue_destroy(self.ptr.as_ptr());
        }
    }
}

/// Called by the library's threads under a queue's lock; it must not call the library.
unsafe extern "C" fn on_event(_client: *mut rd::rd_kafka_t, opaque: *mut c_void) {
    // SAFETY: the opaque is the signal given in `Queue::raise`, alive until the callback is disabled.
    let signal = unsafe { &*opaque.cast::<Signal>() };
    signal.raise();
}

/// One entry of a partition's queue: a message, an error or the end of the partition.
pub(super) struct Raw<'a> {
    ptr: *mut rd::rd_kafka_message_t,
    client: &'a Client,
}

impl Raw<'_> {
    fn message(&self) -> &rd::rd_kafka_message_t {
        // SAFETY: the library gave us this message to own; it lives until `drop`. Its code is not read
        // through this reference.
        unsafe { &*self.ptr }
    }

    /// `Code::NONE` for a message.
    pub(super) fn code(&self) -> Code {
        // SAFETY: the message is alive; only the address of the field is taken.
        unsafe { read_code(ptr::addr_of!((*self.ptr).err)) }
    }

    /// The message's offset, or the end's.
    pub(super) fn offset(&self) -> i64 {
        self.message().offset
    }

    /// The key; `None` is null.
    pub(super) fn key(&self) -> Option<&[u8]> {
        // SAFETY: pointer and length describe the key inside the message, alive as long as `self`.
        unsafe { bytes(self.message().key, self.message().key_len) }
    }

    /// The value; `None` is null. For an error: the words for it.
    pub(super) fn value(&self) -> Option<&[u8]> {
        // SAFETY: as for the key.
        unsafe { bytes(self.message().payload, self.message().len) }
    }

    /// What the library says of an error.
    pub(super) fn words(&self) -> String {
        let words = self.value().map(String::from_utf8_lossy).unwrap_or_default();
        if words.trim().is_empty() { self.code().text() } else { words.trim().to_owned() }
    }

    /// Milliseconds since the epoch, when the record has a time.
    pub(super) fn timestamp(&self) -> Option<i64> {
        let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive and the kind is a place of ours.
        let time = unsafe { rd::rd_kafka_message_timestamp(self.ptr, &raw mut kind) };
        (kind != rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && time >= 0).then_some(time)
    }

    /// Shows each header in order: name bytes, value bytes (`None` is null).
    pub(super) fn headers(&self, mut each: impl FnMut(&[u8], Option<&[u8]>)) {
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive; the headers stay its own.
        if unsafe { rd::rd_kafka_message_headers(self.ptr, &raw mut headers) } as i32 != 0 {
            return;
        }
        for at in 0.. {
            let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0_usize);
            // SAFETY: the headers are alive; the three places are ours; past the end a code is returned.
            let found = unsafe {
                rd::rd_kafka_header_get_all(headers, at, &raw mut name, &raw mut value, &raw mut length)
            };
            if found as i32 != 0 || name.is_null() {
                return;
            }
            // SAFETY: the name is a C string and the value has `length` bytes, both inside the message.
            let (name, value) = unsafe { (CStr::from_ptr(name), bytes(value.cast_mut(), length)) };
            each(name.to_bytes(), value);
        }
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        debug_assert!(Arc::strong_count(self.client) > 0);
        // SAFETY: owned by us, destroyed once, before its client.
        unsafe { rd::rd_kafka_message_destroy(self.ptr) };
    }
}

/// # Safety
/// A pointer that is not null must have `length` readable bytes for the lifetime.
unsafe fn bytes<'a>(pointer: *mut c_void, length: usize) -> Option<&'a [u8]> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: the caller promises it.
    Some(unsafe { std::slice::from_raw_parts(pointer.cast::<u8>(), length) })
}

/// What a commit request was answered.
#[derive(Debug)]
pub(super) struct CommitAnswer {
    /// The number given to [`commit`].
    pub(super) number: usize,
    /// The request's own code.
    pub(super) code: Code,
    /// Topic, partition, offset and code of each partition.
    pub(super) partitions: Vec<(String, i32, i64, Code)>,
}

/// # Safety
/// The list must be null or alive.
unsafe fn list(list: *const rd::rd_kafka_topic_partition_list_t) -> Vec<(String, i32, i64, Code)> {
    if list.is_null() {
        return vec![];
    }
    // SAFETY: the caller promises it; `elems` has `cnt` elements, each with a C string as its topic.
    unsafe {
        let count = usize::try_from((*list).cnt).unwrap_or(0);
        (0..count)
            .map(|at| {
                let element = (*list).elems.add(at);
                let topic = CStr::from_ptr((*element).topic).to_string_lossy().into_owned();
                let code = read_code(ptr::addr_of!((*element).err));
                (topic, (*element).partition, (*element).offset, code)
            })
            .collect()
    }
}

/// Sends a commit whose answer comes on the queue under the number. Does not wait.
///
/// # Errors
/// The code of a request that could not even be queued.
pub(super) fn commit(
    client: &Client,
    offsets: &TopicPartitionList,
    answers: &Queue,
    number: usize,
) -> Result<(), Code> {
    // SAFETY: client, list and queue are alive; the library copies the list; the opaque is a number that
    // is never read as an address.
    let code = unsafe {
        rd::rd_kafka_commit_queue(
            client.client().native_ptr(),
            offsets.ptr(),
            answers.ptr.as_ptr(),
            None,
            ptr::without_provenance_mut(number),
        )
    };
    let code = Code(code as i32);
    if code == Code::NONE { Ok(()) } else { Err(code) }
}

/// The log's first and next offset as last seen by the fetcher; no question to the broker.
pub(super) fn watermarks(client: &Client, topic: &str, partition: i32) -> Option<(i64, i64)> {
    let topic = CString::new(topic).ok()?;
    let (mut low, mut high) = (-1_i64, -1_i64);
    // SAFETY: the client is alive, the name is a C string and the two places are ours.
    let code = unsafe {
        rd::rd_kafka_get_watermark_offsets(
            client.client().native_ptr(),
            topic.as_ptr(),
            partition,
            &raw mut low,
            &raw mut high,
        )
    };
    (code as i32 == 0 && high >= 0).then_some((low, high))
}

/// Adds a header with a name of any bytes; the wrapper takes text only. Returns whether it was added.
pub(super) fn add_header(headers: &OwnedHeaders, name: &[u8], value: Option<&[u8]>) -> bool {
    let list = ptr::from_ref(headers.as_borrowed()).cast_mut().cast::<rd::rd_kafka_headers_t>();
    let (value, length) =
        value.map_or((ptr::null(), 0), |value| (value.as_ptr().cast::<c_void>(), value.len()));
    let (Ok(name_length), Ok(length)) = (isize::try_from(name.len()), isize::try_from(length)) else {
        return false;
    };
    // SAFETY: the borrowed form is the C object itself, writable because it is owned by the caller and was
    // not sent yet; the library copies name and value.
    let code = unsafe { rd::rd_kafka_header_add(list, name.as_ptr().cast(), name_length, value, length) };
    code as i32 == 0
}

/// Names of the settings the library knows, for "did you mean".
pub(super) fn known_settings() -> Vec<String> {
    // SAFETY: the configuration is made, read and destroyed here; the array has `count` C strings, names
    // and values in turn, and is freed once.
    unsafe {
        let config = rd::rd_kafka_conf_new();
        let mut count = 0_usize;
        let array = rd::rd_kafka_conf_dump(config, &raw mut count);
        let names = (0..count)
            .step_by(2)
            .map(|at| CStr::from_ptr(*array.add(at)).to_string_lossy().into_owned())
            .collect();
        rd::rd_kafka_conf_dump_free(array, count);
        rd::rd_kafka_conf_destroy(config);
        names
    }
}

/// How long the mock cluster inside a client waits for more members when a group is new. False where the
/// client holds no mock cluster.
#[cfg(feature = "kafka-mock")]
pub(super) fn set_mock_rebalance_delay<C: rdkafka::ClientContext>(
    client: &rdkafka::client::Client<C>,
    delay: Duration,
) -> bool {
    // SAFETY: the client is alive, and so is the mock cluster it owns.
    unsafe {
        let cluster = rd::rd_kafka_handle_mock_cluster(client.native_ptr());
        if cluster.is_null() {
            return false;
        }
        rd::rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, millis(delay));
    }
    true
}

/// Ends a client for good: its threads are gone when this returns.
///
/// The wrapper's own way closes the group first, however long that takes. After a fatal error the library does
/// not close it at all but for members of some kinds (static ones, the new group protocol), and would wait
/// on a busy core for a group that never ends; and a commit that waits for a coordinator that is gone holds
/// the close up for minutes. So a client that is not closed is destroyed with the flag that says so. The
/// wrapper offers no such call: its own few hundred bytes are left behind.
pub(super) fn destroy(client: Client) {
    let Some(client) = Arc::into_inner(client) else { return };
    if client.closed() && client.client().fatal_error().is_none() {
        return;
    }
    let client = ManuallyDrop::new(client);
    // SAFETY: nobody else has the client, and the wrapper never destroys it a second time; what the
    // library's threads may still call into (the context) stays where it is.
    unsafe {
        rd::rd_kafka_destroy_flags(client.client().native_ptr(), rd::RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    }
}

/// For tests: makes the library raise a fatal error.
pub(super) fn raise_fatal_error(client: &Client) {
    // SAFETY: the client is alive and the reason is a C string.
    unsafe {
        rd::rd_kafka_test_fatal_error(
            client.client().native_ptr(),
            rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID,
            c"asked for by a test".as_ptr(),
        );
    }
}
