-- Takes the start records of one parked message away, whoever wrote them.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_parked_starts.
DELETE FROM handstamp_parked_starts WHERE consumer = ?1 AND dedup = ?2
