-- What is known of an id that was not inserted.
-- Lock: none beyond the transaction's. Index: primary key of handstamp_inbox.
SELECT state, seen_at, digest FROM handstamp_inbox WHERE id = ?1 AND consumer = ?2
