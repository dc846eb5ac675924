-- A page of a consumer's parked messages in the order in which they were parked, without their bodies.
-- Lock: ACCESS SHARE on parked and consumers. Index: consumers_name_key, parked_by_seq (in its order).
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line,
       coalesce(p.value_full_bytes, length(p.value)::int8),
       p.seq, p.parked_at_ms, p.due_at_ms, p.order_key
FROM {schema}.parked AS p
JOIN {schema}.consumers AS c ON c.id = p.consumer
WHERE c.name = $1 AND p.seq > $2
ORDER BY p.seq
LIMIT $3
