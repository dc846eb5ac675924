-- What operators did, newest first, to one message or to all of a consumer.
-- Lock: ACCESS SHARE on audit and consumers.
-- Index: consumers_name_key; audit_by_message for one message, audit_pkey (backwards) for all.
SELECT floor(extract(epoch FROM a.at) * 1000)::int8, a.action, a.operation, a.done_by, a.why, a.dedup, a.id
FROM {schema}.audit AS a
JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE c.name = $1 AND ($2::bytea IS NULL OR a.dedup = $2)
ORDER BY a.number DESC
LIMIT $3
