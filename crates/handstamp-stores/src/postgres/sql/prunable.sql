-- Counts the inbox rows of a consumer that are old and applied or discarded in one part of the inbox, up to a number.
-- Lock: ACCESS SHARE on inbox. Index: none; the rows of 512 pages are read.
SELECT count(*)
FROM (
    SELECT FROM {schema}.inbox AS i
    WHERE i.ctid >= $3::text::tid AND i.ctid < $4::text::tid
      AND i.consumer = $1::int2 AND i.state IN ('a', 'x')
      AND i.seen_at < (SELECT (floor(date_part('epoch', now())) - 1577836800 - $2::int4)::int4)
    LIMIT $5::int8
) AS old
