-- What is due, the longest due first; of an order key only the one that was parked first, which alone is not
-- behind another.
-- Lock: the write lock of the transaction is the lock of the rows. Index: handstamp_parked_by_due, in its order;
-- named, so that no statistics choose another.
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line, p.received_at_ms, p.digest, p.timestamp_ms,
       p.key, p.headers, p.value_full_bytes, p.value_blake3, p.value,
       p.parked_at_ms, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) - p.parked_at_ms, p.order_key
FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_due
WHERE p.consumer = ?1 AND NOT p.behind
  AND p.due_at_ms <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)
ORDER BY p.due_at_ms, p.seq
LIMIT ?2
