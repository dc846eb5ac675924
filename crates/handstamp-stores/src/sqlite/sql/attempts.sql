-- The failed attempts of one message, oldest first.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_attempts_by_message.
SELECT a.at_ms, a.node, a.class, a.code, a.reason
FROM handstamp_consumers AS c JOIN handstamp_attempts AS a ON a.consumer = c.id
WHERE c.name = ?1 AND a.dedup = ?2
ORDER BY a.number
