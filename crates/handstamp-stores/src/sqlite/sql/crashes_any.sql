-- Whether any message has crashes: as a rule none has.
-- Lock: none beyond the transaction's. Index: primary key of handstamp_crashes, its first entry.
SELECT EXISTS (SELECT 1 FROM handstamp_crashes AS c WHERE c.consumer = ?1)
