-- A page of a consumer's dead letters, oldest first, without their bodies.
-- Lock: ACCESS SHARE on dead_letters and consumers. Index: consumers_name_key, dead_letters_by_time.
SELECT d.dedup, d.failed_at_ms, d.class, d.code, d.reason, d.id, d.attempts,
       d.topic, d.partition, d.position, d.line,
       coalesce(d.value_full_bytes, length(d.value)::int8)
FROM {schema}.dead_letters AS d
JOIN {schema}.consumers AS c ON c.id = d.consumer
WHERE c.name = $1
  AND (d.failed_at_ms, d.dedup) > ($2, $3)
  AND ($4::text IS NULL OR d.class = $4)
ORDER BY d.failed_at_ms, d.dedup
LIMIT $5
