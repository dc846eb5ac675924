-- Parks a dead letter, due at once and without attempts, under the id it has from now on, behind what is parked
-- of its order key.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup) of both tables;
-- handstamp_parked_by_order, one look.
INSERT INTO handstamp_parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, headers, value_full_bytes, value_blake3, value,
    parked_at_ms, due_at_ms, order_key, behind)
SELECT d.consumer, d.dedup, d.failed_at_ms, d.received_at_ms, 0, d.class, d.code, d.reason, ?3, d.digest,
    d.topic, d.partition, d.position, d.line, d.timestamp_ms, d.key, d.headers, d.value_full_bytes,
    d.value_blake3, d.value,
    CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER), ?4,
    EXISTS (SELECT 1 FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_order
        WHERE p.consumer = ?1 AND p.order_key = ?4)
FROM handstamp_dead_letters AS d WHERE d.consumer = ?1 AND d.dedup = ?2
