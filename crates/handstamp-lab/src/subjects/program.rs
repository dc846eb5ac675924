//! The ready-made program: `handstamp run pipeline.toml`. Its work is a first effect that sleeps.
