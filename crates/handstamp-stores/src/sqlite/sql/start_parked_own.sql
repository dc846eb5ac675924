-- How many parked messages an owner has started.
-- Lock: the write lock of the transaction. Index: handstamp_parked_starts_by_owner, index only; named, so that no
-- statistics choose another.
SELECT count(*) FROM handstamp_parked_starts INDEXED BY handstamp_parked_starts_by_owner
WHERE consumer = ?1 AND owner = ?2
