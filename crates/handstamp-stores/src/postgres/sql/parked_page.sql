-- A page of a consumer's parked messages in the order in which they were parked, without their bodies; each with the
-- milliseconds until it is due, and the key of the first of its order key where that is another one.
-- Lock: ACCESS SHARE on parked and consumers. Index: consumers_name_key, parked_by_seq (in its order); parked_by_order,
-- one row for each.
SELECT p.dedup, p.failed_at_ms, p.class, p.code, p.reason, p.id, p.attempts,
       p.topic, p.partition, p.position, p.line,
       coalesce(p.value_full_bytes, length(p.value)::int8),
       p.seq, p.parked_at_ms, p.due_at_ms, p.order_key,
       p.due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::int8,
       (SELECT f.dedup FROM {schema}.parked AS f
        WHERE f.consumer = p.consumer AND f.order_key = p.order_key AND f.seq < p.seq
        ORDER BY f.seq LIMIT 1)
FROM {schema}.parked AS p
JOIN {schema}.consumers AS c ON c.id = p.consumer
WHERE c.name = $1 AND p.seq > $2
ORDER BY p.seq
LIMIT $3
