-- Whether an order key has a parked message now.
-- Lock: none beyond the transaction's. Index: handstamp_parked_by_order, one look; named, so that no statistics choose another.
SELECT EXISTS (SELECT 1 FROM handstamp_parked AS p INDEXED BY handstamp_parked_by_order WHERE p.consumer = ?1 AND p.order_key = ?2)
