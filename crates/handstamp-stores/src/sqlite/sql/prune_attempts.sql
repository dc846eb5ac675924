-- Deletes the oldest failed attempts of a consumer's messages that are neither parked nor dead.
-- Lock: the write lock, taken by BEGIN IMMEDIATE before.
-- Index: handstamp_attempts_by_time; the unique keys of handstamp_parked and handstamp_dead_letters.
DELETE FROM handstamp_attempts WHERE number IN (
    SELECT a.number FROM handstamp_attempts AS a INDEXED BY handstamp_attempts_by_time
    WHERE a.consumer = ?1 AND a.at_ms < (unixepoch() - ?2) * 1000
      AND NOT EXISTS (SELECT 1 FROM handstamp_parked AS p WHERE p.consumer = a.consumer AND p.dedup = a.dedup)
      AND NOT EXISTS (SELECT 1 FROM handstamp_dead_letters AS d WHERE d.consumer = a.consumer AND d.dedup = a.dedup)
    ORDER BY a.at_ms
    LIMIT ?3
)
