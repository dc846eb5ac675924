-- Forgets the crashes of one message.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_crashes.
DELETE FROM handstamp_crashes WHERE consumer = ?1 AND dedup = ?2
