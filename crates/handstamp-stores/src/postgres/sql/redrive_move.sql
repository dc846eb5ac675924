-- Parks a dead letter, due at once and without attempts, under a new id where it gets one. As in
-- `parked_insert.sql`, it is behind where another of its order key is there. Only inside a guarded transaction.
-- Crashes of it that were still to be forgotten are: it starts anew. Why it was given up is kept in its history, where
-- that says nothing of it.
-- Lock: ROW EXCLUSIVE on dead_letters, parked, attempts and crashes; the dead letter's lock is held; KEY SHARE on the last row
-- of its order key, without waiting.
-- Index: dead_letters_pkey, parked_pkey, attempts_pkey, crashes_pkey; parked_by_order (backwards, one row).
WITH gone AS (
    DELETE FROM {schema}.dead_letters WHERE consumer = $1::int2 AND dedup = $2::bytea AND {guard} RETURNING *
), kept AS (
    INSERT INTO {schema}.attempts (consumer, dedup, at_ms, node, class, code, reason)
    SELECT g.consumer, g.dedup, g.failed_at_ms, '', g.class, g.code, g.reason FROM gone AS g
    WHERE NOT EXISTS (SELECT FROM {schema}.attempts AS o WHERE o.consumer = g.consumer AND o.dedup = g.dedup)
), forgotten AS (
    DELETE FROM {schema}.crashes WHERE consumer = $1::int2 AND dedup = $2::bytea AND {guard}
)
INSERT INTO {schema}.parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
    value_full_bytes, value_blake3, parked_at_ms, due_at_ms, order_key, behind
)
SELECT consumer, dedup, failed_at_ms, received_at_ms, 0, class, code, reason, coalesce($3::bytea, id), digest,
       topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
       value_full_bytes, value_blake3, clock.ms, clock.ms, $4::bytea,
       (SELECT front.seq FROM (
           SELECT p.seq FROM {schema}.parked AS p
           WHERE p.consumer = $1::int2 AND p.order_key = $4::bytea
           ORDER BY p.seq DESC LIMIT 1
           FOR KEY SHARE SKIP LOCKED
       ) AS front) IS NOT NULL
FROM gone, (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms) AS clock
ON CONFLICT DO NOTHING
