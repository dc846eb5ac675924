-- Takes a parked message out; the trigger handstamp_parked_next lets the next of its order key be the first.
-- Lock: the write lock of the transaction. Index: unique (consumer, dedup); handstamp_parked_by_order, one look.
DELETE FROM handstamp_parked WHERE consumer = ?1 AND dedup = ?2
