-- Whether an owner is counted for a message.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_crashes.
SELECT EXISTS (SELECT 1 FROM handstamp_crashes AS c WHERE c.consumer = ?1 AND c.dedup = ?2 AND c.owner = ?3)
