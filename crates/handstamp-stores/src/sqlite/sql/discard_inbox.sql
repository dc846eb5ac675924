-- Says discarded in the inbox row of an id whose own message is a dead letter.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_inbox.
UPDATE handstamp_inbox SET state = 'x' WHERE id = ?1 AND consumer = ?2 AND state = 'd'
