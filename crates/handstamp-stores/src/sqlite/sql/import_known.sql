-- Whether a consumer's inbox knows an id.
-- Lock: none (a snapshot). Index: primary key of handstamp_inbox.
SELECT EXISTS (SELECT 1 FROM handstamp_inbox WHERE id = ?1 AND consumer = ?2)
