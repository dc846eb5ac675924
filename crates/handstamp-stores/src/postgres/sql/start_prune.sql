-- Takes out what owners left behind that were not seen for $2 milliseconds: starts of lanes that nobody takes any
-- more, of parked messages, and crashes of messages that are not parked. Nobody is charged. At most a thousand of each.
-- Lock: ROW EXCLUSIVE on starts, parked_starts and crashes; of the first two the rows' locks without waiting.
-- Index: starts_pkey, parked_starts_pkey, crashes_pkey, each for the consumer's few rows; parked_pkey, one row a crash.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 - $2::int8 AS ms
), old_lanes AS (
    DELETE FROM {schema}.starts WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.starts AS s
        WHERE s.consumer = $1::int2 AND s.at_ms < (SELECT ms FROM clock) LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
), old_parked AS (
    DELETE FROM {schema}.parked_starts WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM {schema}.parked_starts AS s
        WHERE s.consumer = $1::int2 AND s.at_ms < (SELECT ms FROM clock) LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
)
DELETE FROM {schema}.crashes WHERE ctid = ANY (ARRAY(
    SELECT c.ctid FROM {schema}.crashes AS c
    WHERE c.consumer = $1::int2 AND c.at_ms < (SELECT ms FROM clock)
      AND NOT EXISTS (
          SELECT FROM {schema}.parked AS p WHERE p.consumer = c.consumer AND p.dedup = c.dedup
      )
    LIMIT 1000
))
