-- The failed attempts of one message, oldest first.
-- Lock: ACCESS SHARE on attempts and consumers. Index: consumers_name_key, attempts_pkey (in its order).
SELECT a.at_ms, a.node, a.class, a.code, a.reason
FROM {schema}.attempts AS a
JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE c.name = $1 AND a.dedup = $2
ORDER BY a.number
LIMIT $3
