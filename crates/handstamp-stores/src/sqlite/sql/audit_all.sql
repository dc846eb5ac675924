-- What operators did to all of a consumer's messages, newest first.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_audit_by_number (backwards).
SELECT a.at_ms, a.action, a.operation, a.done_by, a.why, a.dedup, a.id
FROM handstamp_audit AS a INDEXED BY handstamp_audit_by_number
WHERE a.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1)
ORDER BY a.number DESC
LIMIT ?2
