-- One parked message, whole, with the key of the first of its order key where that is another one.
-- Lock: ACCESS SHARE on parked and consumers.
-- Index: consumers_name_key, parked_pkey; parked_by_order, one row.
SELECT p.failed_at_ms, p.received_at_ms, p.attempts, p.class, p.code, p.reason, p.id, p.digest,
       p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.value,
       p.header_names, p.header_values, p.value_full_bytes, p.value_blake3,
       p.parked_at_ms, p.due_at_ms,
       p.due_at_ms - floor(extract(epoch FROM clock_timestamp()) * 1000)::int8, p.order_key,
       (SELECT f.dedup FROM {schema}.parked AS f
        WHERE f.consumer = p.consumer AND f.order_key = p.order_key AND f.seq < p.seq
        ORDER BY f.seq LIMIT 1)
FROM {schema}.parked AS p
JOIN {schema}.consumers AS c ON c.id = p.consumer
WHERE c.name = $1 AND p.dedup = $2
