-- A page of a consumer's dead letters, oldest first, without their bodies.
-- Lock: none (a snapshot). Index: handstamp_dead_letters_by_time.
SELECT d.dedup, d.failed_at_ms, d.class, d.code, d.reason, d.id, d.attempts,
       d.topic, d.partition, d.position, d.line, coalesce(d.value_full_bytes, length(d.value))
FROM handstamp_consumers AS c JOIN handstamp_dead_letters AS d ON d.consumer = c.id
WHERE c.name = ?1
  AND (d.failed_at_ms, d.dedup) > (?2, ?3)
  AND (?4 IS NULL OR d.class = ?4)
ORDER BY d.failed_at_ms, d.dedup
LIMIT ?5
