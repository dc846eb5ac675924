-- What is due, the longest due first, and whether another owner had started it and did not end it.
-- Lock: the write lock of the transaction is the lock of the rows: no other transaction is open on them.
-- Index: handstamp_parked_by_due, in its order; named, so that no statistics choose another. Primary key of
-- handstamp_parked_starts, one look a row.
SELECT p.dedup,
       EXISTS (SELECT 1 FROM handstamp_parked_starts AS s
           WHERE s.consumer = ?1 AND s.dedup = p.dedup AND s.owner <> ?3)
FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_due
WHERE p.consumer = ?1 AND NOT p.behind
  AND p.due_at_ms <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)
ORDER BY p.due_at_ms, p.seq
LIMIT ?2
