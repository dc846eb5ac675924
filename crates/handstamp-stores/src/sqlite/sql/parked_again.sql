-- One parked message, due or not, or only where it is due (?3).
-- Lock: the write lock of the transaction is the lock of the row. Index: unique (consumer, dedup).
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line, p.received_at_ms, p.digest, p.timestamp_ms,
       p.key, p.headers, p.value_full_bytes, p.value_blake3, p.value,
       p.parked_at_ms, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) - p.parked_at_ms, p.order_key
FROM handstamp_parked AS p
WHERE p.consumer = ?1 AND p.dedup = ?2
  AND (NOT ?3 OR (NOT p.behind AND p.due_at_ms <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)))
