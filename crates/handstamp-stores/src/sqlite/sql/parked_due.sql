-- Whether anything is due.
-- Lock: none (a snapshot). Index: handstamp_parked_by_due, its first entry.
SELECT EXISTS (
    SELECT 1 FROM handstamp_parked AS p
    WHERE p.consumer = ?1 AND NOT p.behind
      AND p.due_at_ms <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER))
