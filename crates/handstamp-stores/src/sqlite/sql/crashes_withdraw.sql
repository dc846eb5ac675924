-- Takes back what an owner was counted for: it lives.
-- Lock: the write lock of the transaction. Index: handstamp_crashes_by_owner; named, so that no statistics choose
-- another.
DELETE FROM handstamp_crashes INDEXED BY handstamp_crashes_by_owner WHERE consumer = ?1 AND owner = ?2
