-- Notes up to when ids of a consumer are forgotten.
-- Lock: the write lock, taken by BEGIN IMMEDIATE before. Index: primary key of handstamp_pruned.
INSERT INTO handstamp_pruned (consumer, horizon) VALUES (?1, unixepoch() - 1577836800 - ?2)
ON CONFLICT (consumer) DO UPDATE SET horizon = max(horizon, excluded.horizon), at = unixepoch()
