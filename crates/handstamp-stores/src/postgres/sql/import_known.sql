-- How many of these ids a consumer's inbox knows.
-- Lock: ACCESS SHARE on inbox. Index: inbox_pkey, one descent an id.
SELECT count(*)
FROM unnest($2::bytea[]) AS c (id)
CROSS JOIN LATERAL (
    SELECT FROM {schema}.inbox AS k WHERE k.id = c.id AND k.consumer = $1::int2 LIMIT 1
) AS i
