-- Takes back the crashes for which an owner was counted that lives after all. Behind the statement that ended what
-- it had started, with a snapshot of its own: who counts it meanwhile holds the lock of the start record.
-- Lock: ROW EXCLUSIVE on crashes. Index: crashes_by_owner.
DELETE FROM {schema}.crashes WHERE consumer = $1::int2 AND owner = $2::bytea
