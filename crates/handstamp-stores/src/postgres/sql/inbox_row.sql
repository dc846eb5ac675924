-- One inbox row.
-- Lock: ACCESS SHARE on inbox and consumers. Index: consumers_name_key, inbox_pkey.
SELECT i.state, i.seen_at, i.digest
FROM {schema}.inbox AS i
JOIN {schema}.consumers AS c ON c.id = i.consumer
WHERE c.name = $1 AND i.id = $2
