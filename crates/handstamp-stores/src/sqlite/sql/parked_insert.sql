-- Parks a message; nothing when its row is there (a redelivered bad message meets its own row).
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup); handstamp_parked_by_order, one look.
INSERT INTO handstamp_parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, headers, value_full_bytes, value_blake3, value,
    parked_at_ms, due_at_ms, order_key, behind)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER),
    CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) + ?21, ?22,
    EXISTS (SELECT 1 FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_order
        WHERE p.consumer = ?1 AND p.order_key = ?22))
ON CONFLICT (consumer, dedup) DO NOTHING
