-- Takes ids that another table knew as applied into a consumer's inbox, given in sorted order. One row: how many were
-- new. A part of the inbox may hold older rows from now on than somebody saw there.
-- Lock: ROW EXCLUSIVE on inbox and inbox_parts; waits, in the order given, for other transactions inserting the same
-- ids. Index: inbox_pkey for the conflicts; inbox_parts_pkey.
WITH inserted AS (
    INSERT INTO {schema}.inbox (digest, seen_at, consumer, state, id)
    SELECT NULL, coalesce($3::int4, (date_part('epoch', now()) - 1577836800)::int4), $1::int2, 'a', c.id
    FROM unnest($2::bytea[]) AS c (id)
    ON CONFLICT DO NOTHING
    RETURNING 1
), older AS (
    UPDATE {schema}.inbox_parts AS p SET oldest = $3::int4 WHERE p.consumer = $1::int2 AND p.oldest > $3::int4
)
SELECT count(*) FROM inserted
