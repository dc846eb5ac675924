-- Makes a dead letter of a parked message. A record without a usable id may be a dead letter again already, from
-- a redelivery while it was parked: that row then says what this one knows.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup) of both tables.
INSERT INTO handstamp_dead_letters (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, headers, value_full_bytes, value_blake3, value)
SELECT p.consumer, p.dedup, ?3, p.received_at_ms, p.attempts + ?7, ?4, ?5, ?6, p.id, p.digest,
    p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.headers, p.value_full_bytes,
    p.value_blake3, p.value
FROM handstamp_parked AS p WHERE p.consumer = ?1 AND p.dedup = ?2
ON CONFLICT (consumer, dedup) DO UPDATE
SET failed_at_ms = excluded.failed_at_ms, attempts = excluded.attempts, class = excluded.class,
    code = excluded.code, reason = excluded.reason, id = excluded.id
