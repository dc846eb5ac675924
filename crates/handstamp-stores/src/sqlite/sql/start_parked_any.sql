-- Whether anybody else has started a parked message at all: as a rule nobody has.
-- Lock: the write lock of the transaction. Index: handstamp_parked_starts_by_owner, index only, past the owner's own
-- rows; named, so that no statistics choose another.
SELECT EXISTS (
    SELECT 1 FROM handstamp_parked_starts AS s INDEXED BY handstamp_parked_starts_by_owner
    WHERE s.consumer = ?1 AND s.owner <> ?2)
