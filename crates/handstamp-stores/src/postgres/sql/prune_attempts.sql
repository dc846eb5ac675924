-- Deletes the oldest failed attempts of a consumer's messages that are neither parked nor dead. One row: how many.
-- Lock: ROW EXCLUSIVE on attempts; ACCESS SHARE on parked and dead_letters.
-- Index: attempts_by_time; parked_pkey and dead_letters_pkey, one descent an attempt; rows are deleted by their address.
WITH gone AS (
    DELETE FROM {schema}.attempts
    WHERE ctid = ANY (ARRAY(
        SELECT a.ctid
        FROM {schema}.attempts AS a
        WHERE a.consumer = $1::int2
          AND a.at_ms < (SELECT floor(date_part('epoch', now()) * 1000)::int8 - $2::int4 * 1000::int8)
          AND NOT EXISTS (SELECT FROM {schema}.parked AS p WHERE p.consumer = a.consumer AND p.dedup = a.dedup)
          AND NOT EXISTS (SELECT FROM {schema}.dead_letters AS d WHERE d.consumer = a.consumer AND d.dedup = a.dedup)
        ORDER BY a.consumer, a.at_ms
        LIMIT $3::int8
    ))
    RETURNING 1
)
SELECT count(*) FROM gone
