-- Locks dead letters in the order of their keys, and says which of them are parked too: a record without a usable
-- id that was sent back under one, and was delivered again since. Only inside a guarded transaction.
-- Lock: ROW SHARE on dead_letters, and FOR UPDATE of the rows answered; waits for other operators.
-- Index: dead_letters_pkey, parked_pkey.
SELECT d.dedup, d.id, d.class, d.digest,
       EXISTS (SELECT FROM {schema}.parked AS p WHERE p.consumer = $1 AND p.dedup = d.dedup)
FROM {schema}.dead_letters AS d
WHERE d.consumer = $1 AND d.dedup = ANY ($2) AND {guard}
ORDER BY d.dedup
FOR UPDATE OF d
