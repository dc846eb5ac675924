-- What operators did to one message, newest first, before a line of the audit; only what fits.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_audit_by_message (backwards).
SELECT a.at_ms, a.action, a.operation, a.done_by, a.why, a.dedup, a.id, a.number
FROM handstamp_audit AS a INDEXED BY handstamp_audit_by_message
WHERE a.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1) AND a.dedup = ?7
  AND a.number < ?2
  AND (?3 IS NULL OR a.action = ?3)
  AND a.at_ms >= ?4 AND a.at_ms <= ?5
  AND (?6 IS NULL OR a.id = ?6)
ORDER BY a.number DESC
LIMIT ?8
