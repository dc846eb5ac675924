-- Keeps a dead letter; nothing when its row is there (a redelivered bad message meets its own row).
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup).
INSERT INTO handstamp_dead_letters (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, headers, value_full_bytes, value_blake3, value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
ON CONFLICT (consumer, dedup) DO NOTHING
