-- The failed attempts of one message, oldest first.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_attempts_by_message.
SELECT a.at_ms, a.node, a.class, a.code, a.reason
FROM handstamp_attempts AS a INDEXED BY handstamp_attempts_by_message
WHERE a.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1) AND a.dedup = ?2
ORDER BY a.number
