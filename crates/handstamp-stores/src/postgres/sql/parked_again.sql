-- Locks rows by their keys, due or not, in the order given; passes over those that are gone or that others
-- have locked. The last column says whether another owner than $3 had started the message and did not end it; NULL
-- asks for none.
-- Lock: ROW SHARE on parked, and FOR UPDATE of the rows answered.
-- Index: parked_pkey, one row a key; parked_starts_pkey, one descent each.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms
)
SELECT p.failed_at_ms, p.received_at_ms, p.attempts, p.class, p.code, p.reason, p.id, p.digest,
       p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.value,
       p.header_names, p.header_values, p.value_full_bytes, p.value_blake3,
       p.dedup, p.parked_at_ms, (SELECT ms FROM clock) - p.parked_at_ms, p.order_key,
       (SELECT true FROM {schema}.parked_starts AS s
        WHERE s.consumer = p.consumer AND s.dedup = p.dedup AND s.owner <> $3::bytea LIMIT 1) IS NOT NULL
FROM unnest((SELECT $2::bytea[])) WITH ORDINALITY AS u (dedup, place)
JOIN {schema}.parked AS p ON p.consumer = $1::int2 AND p.dedup = u.dedup
WHERE {guard}
ORDER BY u.place
FOR UPDATE OF p SKIP LOCKED
