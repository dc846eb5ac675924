-- What the server is and how it is set up.
-- Lock: none. Index: none.
SELECT current_setting('server_version_num')::int4, current_setting('fsync') = 'on',
       current_setting('full_page_writes') = 'on', current_setting('synchronous_commit'),
       pg_is_in_recovery(), current_setting('deadlock_timeout')::interval < make_interval(secs => $1),
       current_setting('server_encoding')
