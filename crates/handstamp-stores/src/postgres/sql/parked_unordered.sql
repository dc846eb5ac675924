-- How many parked messages have a key and no order key (counted up to $2): they were parked before the order of
-- keys was kept.
-- Lock: ACCESS SHARE on parked and consumers. Index: consumers_name_key, parked_by_seq; each row of the consumer
-- is looked at.
SELECT count(*) FROM (
    SELECT FROM {schema}.parked AS p
    WHERE p.consumer = (SELECT c.id FROM {schema}.consumers AS c WHERE c.name = $1)
      AND p.order_key IS NULL AND p.key IS NOT NULL
    LIMIT $2
) AS bounded
