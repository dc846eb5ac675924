-- The id of a parked message.
-- Lock: none beyond the transaction's. Index: unique (consumer, dedup).
SELECT p.id FROM handstamp_parked AS p WHERE p.consumer = ?1 AND p.dedup = ?2
