-- Notes the time of a consumer's oldest row in a part of the inbox, whatever its state: one that is parked may be
-- applied later. Without any it is now.
-- Lock: ROW EXCLUSIVE on inbox_parts. Index: none on inbox, the rows of 512 pages are read; inbox_parts_pkey.
INSERT INTO {schema}.inbox_parts (consumer, part, oldest)
SELECT $1::int2, $2::int4,
       least(min(i.seen_at), (floor(date_part('epoch', now())) - 1577836800)::int4)
FROM {schema}.inbox AS i
WHERE i.ctid >= $3::text::tid AND i.ctid < $4::text::tid AND i.consumer = $1::int2
ON CONFLICT (consumer, part) DO UPDATE SET oldest = excluded.oldest
