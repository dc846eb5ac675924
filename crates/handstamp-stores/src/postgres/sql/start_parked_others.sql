-- Who else had started some parked messages alone, did not end it and is not counted for it yet; and when. The
-- messages are locked by another transaction of the same process: nobody starts them meanwhile.
-- Lock: ACCESS SHARE on parked_starts and crashes. Index: parked_starts_pkey, crashes_pkey.
SELECT s.dedup, s.owner, s.at_ms
FROM {schema}.parked_starts AS s
WHERE s.consumer = $1::int2 AND s.dedup = ANY ($2::bytea[]) AND s.owner <> $3::bytea AND s.alone
  AND NOT EXISTS (
      SELECT FROM {schema}.crashes AS c
      WHERE c.consumer = s.consumer AND c.dedup = s.dedup AND c.owner = s.owner
  )
