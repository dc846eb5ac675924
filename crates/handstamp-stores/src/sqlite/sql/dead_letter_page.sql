-- A page of a consumer's dead letters, oldest first, those of one time in the order of their source,
-- without their bodies; only those that fit.
-- Lock: none (a snapshot). Index: handstamp_dead_letters_by_time, which the times bound (only those of one time
-- are sorted); the other conditions are looked at row by row.
SELECT d.dedup, d.failed_at_ms, d.class, d.code, d.reason, d.id, d.attempts,
       d.topic, d.partition, d.position, d.line, coalesce(d.value_full_bytes, length(d.value))
FROM handstamp_dead_letters AS d INDEXED BY handstamp_dead_letters_by_time
WHERE d.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1)
  AND d.failed_at_ms >= ?2 AND d.failed_at_ms <= ?3
  AND (d.failed_at_ms, d.topic, d.partition, d.position, d.dedup) > (?4, ?5, ?6, ?7, ?8)
  AND (?9 IS NULL OR d.class = ?9)
  AND (?10 IS NULL OR d.key = ?10)
  AND (?11 IS NULL OR d.topic = ?11)
  AND (?12 IS NULL OR d.id = ?12)
ORDER BY d.failed_at_ms, d.topic, d.partition, d.position, d.dedup
LIMIT ?13
