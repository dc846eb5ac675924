-- Takes one start record of a lane away.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_starts.
DELETE FROM handstamp_starts WHERE consumer = ?1 AND lane = ?2 AND owner = ?3
