-- Takes a dead letter out.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup).
DELETE FROM handstamp_dead_letters WHERE consumer = ?1 AND dedup = ?2
