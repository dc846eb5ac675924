//! On a real broker with Postgres.
