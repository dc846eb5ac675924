-- One dead letter, whole.
-- Lock: none (a snapshot). Index: unique (consumer, dedup).
SELECT d.dedup, d.failed_at_ms, d.class, d.code, d.reason, d.id, d.attempts,
       d.topic, d.partition, d.position, d.line, d.received_at_ms, d.digest, d.timestamp_ms,
       d.key, d.headers, d.value_full_bytes, d.value_blake3, d.value
FROM handstamp_consumers AS c JOIN handstamp_dead_letters AS d ON d.consumer = c.id
WHERE c.name = ?1 AND d.dedup = ?2
