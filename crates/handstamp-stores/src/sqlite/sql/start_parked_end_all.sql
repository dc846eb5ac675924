-- Takes all start records of an owner's parked messages away.
-- Lock: the write lock of the transaction. Index: handstamp_parked_starts_by_owner; named, so that no statistics
-- choose another.
DELETE FROM handstamp_parked_starts INDEXED BY handstamp_parked_starts_by_owner WHERE consumer = ?1 AND owner = ?2
