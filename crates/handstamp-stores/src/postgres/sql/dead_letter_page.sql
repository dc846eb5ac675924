-- A page of a consumer's dead letters, oldest first, those of one time in the order of their source,
-- without their bodies; only those that fit.
-- Lock: ACCESS SHARE on dead_letters and consumers. Index: consumers_name_key, dead_letters_by_time, which the
-- times bound (only those of one time are sorted); the other conditions are looked at row by row.
SELECT d.dedup, d.failed_at_ms, d.class, d.code, d.reason, d.id, d.attempts,
       d.topic, d.partition, d.position, d.line,
       coalesce(d.value_full_bytes, length(d.value)::int8)
FROM {schema}.dead_letters AS d
JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE c.name = $1
  AND (d.failed_at_ms, d.topic COLLATE "C", d.partition, d.position, d.dedup) > ($2, $3, $4, $5, $6)
  AND ($7::text IS NULL OR d.class = $7)
  AND d.failed_at_ms >= $9 AND d.failed_at_ms <= $10
  AND ($11::bytea IS NULL OR d.key = $11)
  AND ($12::text IS NULL OR d.topic = $12)
  AND ($13::bytea IS NULL OR d.id = $13)
ORDER BY d.failed_at_ms, d.topic COLLATE "C", d.partition, d.position, d.dedup
LIMIT $8
