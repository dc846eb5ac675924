-- Which of some messages are parked, locked or not.
-- Lock: ACCESS SHARE on parked. Index: parked_pkey.
SELECT p.dedup FROM {schema}.parked AS p WHERE p.consumer = $1::int2 AND p.dedup = ANY ($2::bytea[])
