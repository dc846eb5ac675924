-- How many messages are parked (counted up to $2), in how many milliseconds the first is due, and for how many
-- the first that was parked has been. Rows behind others of their order key are not due.
-- Lock: ACCESS SHARE on parked.
-- Index: parked_by_seq for the count (index only) and the oldest; parked_by_due and parked_by_order for the
-- first that is due. As in `parked_take.sql`, the plan does not depend on the parameters.
WITH clock AS MATERIALIZED (
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms
)
SELECT (SELECT count(*) FROM (
           SELECT FROM {schema}.parked AS p WHERE p.consumer = (SELECT $1::int2) ORDER BY p.seq LIMIT (SELECT $2::int8)
       ) AS bounded),
       (SELECT p.due_at_ms FROM {schema}.parked AS p
        WHERE p.consumer = (SELECT $1::int2) AND NOT p.behind
          AND CASE WHEN p.order_key IS NULL THEN true ELSE p.seq = (
                  SELECT f.seq FROM {schema}.parked AS f
                  WHERE f.consumer = p.consumer AND f.order_key = p.order_key
                  ORDER BY f.seq LIMIT 1
              ) END
        ORDER BY p.due_at_ms, p.seq LIMIT 1) - clock.ms,
       clock.ms - (SELECT p.parked_at_ms FROM {schema}.parked AS p
                   WHERE p.consumer = (SELECT $1::int2) ORDER BY p.seq LIMIT 1)
FROM clock
