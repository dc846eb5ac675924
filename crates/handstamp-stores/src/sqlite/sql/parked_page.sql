-- A page of a consumer's parked messages in the order in which they were parked, without their bodies; each with the
-- milliseconds until it is due, and the key of the first of its order key where that is another one.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_parked_by_seq (in its order);
-- handstamp_parked_by_order, one look for each.
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line, coalesce(p.value_full_bytes, length(p.value)),
       p.seq, p.parked_at_ms, p.due_at_ms, p.order_key,
       p.due_at_ms - CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER),
       (SELECT f.dedup FROM handstamp_parked AS f INDEXED BY handstamp_parked_by_order
        WHERE f.consumer = p.consumer AND f.order_key = p.order_key AND f.seq < p.seq
        ORDER BY f.seq LIMIT 1)
FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_seq
WHERE p.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1) AND p.seq > ?2
ORDER BY p.seq
LIMIT ?3
