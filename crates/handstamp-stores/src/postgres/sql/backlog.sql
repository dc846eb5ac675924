-- How many messages are parked (counted up to $2), in how many milliseconds the first is due, for how many the first that
-- was parked has been, and how many dead letters there are (counted up to $2). The first three are those of
-- `parked_status.sql`.
-- Lock: ACCESS SHARE on parked, dead_letters and consumers.
-- Index: consumers_name_key; parked_by_seq for the count (index only) and the oldest; parked_by_due and
-- parked_by_order for the first that is due; dead_letters_by_time for the other count (index only).
WITH own AS MATERIALIZED (
    SELECT c.id, floor(extract(epoch FROM clock_timestamp()) * 1000)::int8 AS ms
    FROM {schema}.consumers AS c WHERE c.name = $1
)
SELECT (SELECT count(*) FROM (
           SELECT FROM {schema}.parked AS p WHERE p.consumer = own.id ORDER BY p.seq LIMIT $2
       ) AS bounded),
       (SELECT p.due_at_ms FROM {schema}.parked AS p
        WHERE p.consumer = own.id AND NOT p.behind
          AND CASE WHEN p.order_key IS NULL THEN true ELSE p.seq = (
                  SELECT f.seq FROM {schema}.parked AS f
                  WHERE f.consumer = p.consumer AND f.order_key = p.order_key
                  ORDER BY f.seq LIMIT 1
              ) END
        ORDER BY p.due_at_ms, p.seq LIMIT 1) - own.ms,
       own.ms - (SELECT p.parked_at_ms FROM {schema}.parked AS p WHERE p.consumer = own.id ORDER BY p.seq LIMIT 1),
       (SELECT count(*) FROM (
           SELECT FROM {schema}.dead_letters AS d WHERE d.consumer = own.id LIMIT $2
       ) AS bounded)
FROM own
