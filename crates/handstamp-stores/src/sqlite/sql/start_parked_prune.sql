-- Takes out what owners had started of parked messages that were not seen for ?2 milliseconds. At most a thousand.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_parked_starts, the rows of the consumer.
DELETE FROM handstamp_parked_starts WHERE (consumer, dedup, owner) IN (
    SELECT s.consumer, s.dedup, s.owner FROM handstamp_parked_starts AS s
    WHERE s.consumer = ?1 AND s.at_ms < CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) - ?2
    LIMIT 1000)
