-- Whether anything is due.
-- Lock: none (a snapshot). Index: handstamp_parked_by_due, its first entry; named, so that no statistics choose another.
SELECT EXISTS (
    SELECT 1 FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_due
    WHERE p.consumer = ?1 AND NOT p.behind
      AND p.due_at_ms <= CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER))
