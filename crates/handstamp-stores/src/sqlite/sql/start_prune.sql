-- Takes out what owners left in lanes that were not seen for ?2 milliseconds: nobody takes those any more. At most a
-- thousand.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_starts, the rows of the consumer.
DELETE FROM handstamp_starts WHERE (consumer, lane, owner) IN (
    SELECT s.consumer, s.lane, s.owner FROM handstamp_starts AS s
    WHERE s.consumer = ?1 AND s.at_ms < CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) - ?2
    LIMIT 1000)
