-- Takes out crashes older than ?2 milliseconds of messages that are not parked. At most a thousand.
-- Lock: the write lock of the transaction. Index: primary key of handstamp_crashes, the rows of the consumer; unique
-- (consumer, dedup) of handstamp_parked, one look a row.
DELETE FROM handstamp_crashes WHERE (consumer, dedup, owner) IN (
    SELECT c.consumer, c.dedup, c.owner FROM handstamp_crashes AS c
    WHERE c.consumer = ?1 AND c.at_ms < CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER) - ?2
      AND NOT EXISTS (SELECT 1 FROM handstamp_parked AS p WHERE p.consumer = c.consumer AND p.dedup = c.dedup)
    LIMIT 1000)
