-- Parks a message; no row changed when it is parked already. Only inside a guarded transaction.
-- The row is `behind` where another one of its order key is there and its lock is granted: that one can then
-- not go before this transaction ends, and who removes it later sees this row. Where a worker holds it, or it
-- is not committed, this row may be the first: nothing is waited for, and `parked_take.sql` looks.
-- Lock: ROW EXCLUSIVE on parked; KEY SHARE on the last row of its order key, without waiting; waits for
-- another transaction that parks the same message.
-- Index: parked_pkey for the conflict; parked_by_order (backwards, one row).
INSERT INTO {schema}.parked (
    consumer, dedup, failed_at_ms, received_at_ms, attempts, class, code, reason, id, digest,
    topic, partition, position, line, timestamp_ms, key, value, header_names, header_values,
    value_full_bytes, value_blake3, parked_at_ms, due_at_ms, order_key, behind
)
SELECT $1::int2, $2::bytea, $3::int8, $4::int8, $5::int8, $6::text, $7::text, $8::text, $9::bytea, $10::int8,
       $11::text, $12::int4, $13::int8, $14::int8, $15::int8, $16::bytea, $17::bytea, $18::bytea[], $19::bytea[],
       $20::int8, $21::bytea, clock.ms, clock.ms + $22::int8, $23::bytea,
       (SELECT front.seq FROM (
           SELECT p.seq FROM {schema}.parked AS p
           WHERE p.consumer = $1::int2 AND p.order_key = $23::bytea
           ORDER BY p.seq DESC LIMIT 1
           FOR KEY SHARE SKIP LOCKED
       ) AS front) IS NOT NULL
FROM (SELECT ceil(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms) AS clock
WHERE {guard}
ON CONFLICT DO NOTHING
