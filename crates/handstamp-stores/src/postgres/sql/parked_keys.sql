-- Which of some order keys have a parked message: their places in the array, from 1. A statement of its own
-- behind the claim, so that its snapshot holds what the claim waited for.
-- Lock: ACCESS SHARE on parked. Index: parked_by_order, one row a key.
SELECT u.place::int4
FROM unnest((SELECT $2::bytea[])) WITH ORDINALITY AS u (order_key, place)
WHERE (
    SELECT true FROM {schema}.parked AS p
    WHERE p.consumer = $1::int2 AND p.order_key = u.order_key
    LIMIT 1
)
