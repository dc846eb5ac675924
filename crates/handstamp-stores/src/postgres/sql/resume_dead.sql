-- Makes dead letters of parked rows, says `dead` in their inbox rows, and lets the next of their order keys be
-- the first. Only inside a guarded transaction. A record without a usable id may be a dead letter again already,
-- from a redelivery while it was parked: that row then says what this one knows.
-- Lock: ROW EXCLUSIVE on parked, dead_letters and inbox; FOR UPDATE of the rows, which this transaction holds,
-- of their inbox rows and of the next ones.
-- Index: parked_pkey, dead_letters_pkey, inbox_pkey; parked_by_order, one row each.
WITH gone AS (
    DELETE FROM {schema}.parked AS p
    USING unnest($2::bytea[], $3::int8[], $4::int8[], $5::text[], $6::text[], $7::text[])
        AS f (dedup, charged, at_ms, class, code, reason)
    WHERE p.consumer = $1::int2 AND p.dedup = f.dedup AND {guard}
    RETURNING p.dedup, p.seq, p.order_key, f.at_ms AS failed_at_ms, p.received_at_ms,
              p.attempts + f.charged AS attempts, f.class, f.code, f.reason, p.id, p.digest,
              p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.value, p.header_names,
              p.header_values, p.value_full_bytes, p.value_blake3
), kept AS (
    INSERT INTO {schema}.dead_letters (
        consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
        topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
        value_full_bytes, value_blake3
    )
    SELECT $1::int2, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
           topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
           value_full_bytes, value_blake3
    FROM gone
    ON CONFLICT (consumer, dedup) DO UPDATE
    SET failed_at_ms = excluded.failed_at_ms, attempts = excluded.attempts, class = excluded.class,
        code = excluded.code, reason = excluded.reason, id = excluded.id
), said AS (
    UPDATE {schema}.inbox AS i SET state = 'd'
    FROM gone WHERE i.id = gone.id AND i.consumer = $1::int2 AND i.state = 'p'
)
UPDATE {schema}.parked AS n SET behind = false
FROM gone CROSS JOIN LATERAL (
    SELECT f.dedup FROM {schema}.parked AS f
    WHERE f.consumer = $1::int2 AND f.order_key = gone.order_key AND f.seq > gone.seq
    ORDER BY f.seq LIMIT 1
) AS next
WHERE n.consumer = $1::int2 AND n.dedup = next.dedup AND n.behind
