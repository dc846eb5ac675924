-- One parked message, whole, with the key of the first of its order key where that is another one.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, unique (consumer, dedup);
-- handstamp_parked_by_order, one look.
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line, p.received_at_ms, p.digest, p.timestamp_ms,
       p.key, p.headers, p.value_full_bytes, p.value_blake3, p.value,
       p.parked_at_ms, p.due_at_ms,
       p.due_at_ms - CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER), p.order_key,
       (SELECT f.dedup FROM handstamp_parked AS f INDEXED BY handstamp_parked_by_order
        WHERE f.consumer = p.consumer AND f.order_key = p.order_key AND f.seq < p.seq
        ORDER BY f.seq LIMIT 1)
FROM handstamp_consumers AS c JOIN handstamp_parked AS p ON p.consumer = c.id
WHERE c.name = ?1 AND p.dedup = ?2
