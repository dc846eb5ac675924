-- What a dead letter says of its id, and whether a message of the same key is parked.
-- Lock: none beyond the transaction's. Index: unique (consumer, dedup) of both tables.
SELECT d.id, d.class, d.digest,
       EXISTS (SELECT 1 FROM handstamp_parked AS p WHERE p.consumer = ?1 AND p.dedup = ?2)
FROM handstamp_dead_letters AS d
WHERE d.consumer = ?1 AND d.dedup = ?2
