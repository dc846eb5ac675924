-- How many dead letters a consumer has.
-- Lock: none (a snapshot). Index: handstamp_dead_letters_by_time (index only).
SELECT count(*) FROM handstamp_dead_letters AS d INDEXED BY handstamp_dead_letters_by_time WHERE d.consumer = ?1
