-- Forgets the crashes of what others left alone in a lane where the inbox knows its id and it is not parked: it is at
-- its end.
-- Lock: the write lock of the transaction. Index: primary keys of handstamp_starts, handstamp_inbox and
-- handstamp_crashes.
DELETE FROM handstamp_crashes
WHERE consumer = ?1 AND dedup IN (
    SELECT s.alone_dedup FROM handstamp_starts AS s
    CROSS JOIN handstamp_inbox AS i ON i.id = s.alone AND i.consumer = s.consumer
    WHERE s.consumer = ?1 AND s.lane = ?2 AND s.owner <> ?3 AND i.state <> 'p')
