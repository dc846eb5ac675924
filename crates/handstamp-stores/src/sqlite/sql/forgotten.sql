-- Up to when ids of a consumer are forgotten.
-- Lock: none (a snapshot). Index: primary key of handstamp_pruned.
SELECT horizon FROM handstamp_pruned WHERE consumer = ?1
