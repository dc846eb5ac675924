-- The next part of the inbox in which a consumer may have old rows, from a part on, and the number of the last part.
-- No row: there is none.
-- Lock: ACCESS SHARE on inbox_parts. Index: inbox_parts_pkey, one descent a part.
WITH size AS (
    SELECT ((pg_relation_size('{schema}.inbox'::regclass) / current_setting('block_size')::int8 - 1) / 512)::int4 AS last
)
SELECT r.part, s.last
FROM size AS s
CROSS JOIN LATERAL generate_series($3::int4, s.last) AS r (part)
LEFT JOIN {schema}.inbox_parts AS p ON p.consumer = $1::int2 AND p.part = r.part
WHERE p.oldest IS NULL OR p.oldest < (floor(date_part('epoch', now())) - 1577836800 - $2::int4)::int4
ORDER BY r.part
LIMIT 1
