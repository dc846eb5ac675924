-- What operators did, newest first, before a line of the audit, to one message or to all of a consumer; only what
-- fits.
-- Lock: ACCESS SHARE on audit and consumers.
-- Index: consumers_name_key; audit_by_message for one message, audit_pkey (backwards) for all; the other
-- conditions are looked at line by line.
SELECT floor(extract(epoch FROM a.at) * 1000)::int8, a.action, a.operation, a.done_by, a.why, a.dedup, a.id, a.number
FROM {schema}.audit AS a
JOIN {schema}.consumers AS c ON c.id = a.consumer
WHERE c.name = $1 AND ($2::bytea IS NULL OR a.dedup = $2) AND a.number < $3
  AND ($4::text IS NULL OR a.action = $4)
  AND floor(extract(epoch FROM a.at) * 1000)::int8 >= $5
  AND floor(extract(epoch FROM a.at) * 1000)::int8 <= $6
  AND ($7::bytea IS NULL OR a.id = $7)
ORDER BY a.number DESC
LIMIT $8
