-- Lets the first message of each of some order keys be the first, after others of them were taken out. A statement of
-- its own: one that takes a row out and changes it does only one of the two. Only inside a guarded transaction.
-- Lock: ROW EXCLUSIVE on parked and FOR NO KEY UPDATE of the rows. Index: parked_by_order, one row a key; parked_pkey.
UPDATE {schema}.parked AS n SET behind = false
FROM unnest($2::bytea[]) AS k (order_key) CROSS JOIN LATERAL (
    SELECT f.dedup FROM {schema}.parked AS f
    WHERE f.consumer = $1::int2 AND f.order_key = k.order_key
    ORDER BY f.seq LIMIT 1
) AS first
WHERE n.consumer = $1::int2 AND n.dedup = first.dedup AND n.behind AND {guard}
