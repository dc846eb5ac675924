-- How many messages are parked, in how many milliseconds the first is due, and for how many
-- the first that was parked has been. Rows behind others of their order key are not due.
-- Lock: none (a snapshot).
-- Index: handstamp_parked_by_seq for the count (index only) and the oldest; handstamp_parked_by_due, its first
-- entry. Named, so that no statistics choose others.
SELECT (SELECT count(*) FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_seq WHERE p.consumer = ?1),
       (SELECT p.due_at_ms FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_due
        WHERE p.consumer = ?1 AND NOT p.behind ORDER BY p.due_at_ms LIMIT 1)
           - CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER),
       CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)
           - (SELECT p.parked_at_ms FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_seq
              WHERE p.consumer = ?1 ORDER BY p.seq LIMIT 1)
