-- Sent right in front of COMMIT: fails where the transaction is not the one that our BEGIN opened, or where
-- the server has already given it up. Durability is raised here and not at the start, so that nothing a
-- handler sets can lower it.
-- Lock: none. Index: none.
SELECT 1/({guard})::int,
       CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', true) END
