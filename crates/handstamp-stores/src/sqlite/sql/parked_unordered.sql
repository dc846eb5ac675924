-- How many parked messages have a key and no order key: they were parked before the order of keys was kept.
-- Lock: none (a snapshot). Index: unique name of handstamp_consumers, handstamp_parked_by_seq; each row of the
-- consumer is looked at.
SELECT count(*) FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_seq
WHERE p.consumer = (SELECT c.id FROM handstamp_consumers AS c WHERE c.name = ?1)
  AND p.order_key IS NULL AND p.key IS NOT NULL
