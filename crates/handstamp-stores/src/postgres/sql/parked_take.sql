-- Locks rows that are due, the longest due first, and passes over those that others have locked. Of an order
-- key only the one with the lowest seq, whoever has it locked: the look for it uses this statement's snapshot,
-- so that the second is not taken before the removal of the first is committed. A row that was changed
-- while its lock was asked for is checked again as it is then. The last column says whether another owner than $3
-- had started the message and did not end it; NULL asks for none.
-- Lock: ROW SHARE on parked, and FOR UPDATE of the rows answered.
-- Index: parked_by_due, read in its order until enough rows are locked; parked_by_order, one row each;
-- parked_starts_pkey, one descent each.
-- The parameters stand in sub-selects so that the planner's guess does not depend on them: without statistics
-- it would rather look at every due row and sort.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms
)
SELECT p.failed_at_ms, p.received_at_ms, p.attempts, p.class, p.code, p.reason, p.id, p.digest,
       p.topic, p.partition, p.position, p.line, p.timestamp_ms, p.key, p.value,
       p.header_names, p.header_values, p.value_full_bytes, p.value_blake3,
       p.dedup, p.parked_at_ms, (SELECT ms FROM clock) - p.parked_at_ms, p.order_key,
       (SELECT true FROM {schema}.parked_starts AS s
        WHERE s.consumer = p.consumer AND s.dedup = p.dedup AND s.owner <> $3::bytea LIMIT 1) IS NOT NULL
FROM {schema}.parked AS p
WHERE p.consumer = (SELECT $1::int2) AND NOT p.behind AND p.due_at_ms <= (SELECT ms FROM clock)
  AND CASE WHEN p.order_key IS NULL THEN true ELSE p.seq = (
          SELECT f.seq FROM {schema}.parked AS f
          WHERE f.consumer = p.consumer AND f.order_key = p.order_key
          ORDER BY f.seq LIMIT 1
      ) END
  AND {guard}
ORDER BY p.due_at_ms, p.seq
LIMIT (SELECT $2::int8)
FOR UPDATE OF p SKIP LOCKED
