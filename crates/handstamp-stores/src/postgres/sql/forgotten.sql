-- Up to when ids of a consumer are forgotten.
-- Lock: ACCESS SHARE on pruned. Index: pruned_pkey.
SELECT horizon FROM {schema}.pruned WHERE consumer = $1::int2
