-- Takes all start records of an owner's lanes away.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_starts, the rows of the consumer: one a
-- lane, and those that dead processes left.
DELETE FROM handstamp_starts WHERE consumer = ?1 AND owner = ?2
