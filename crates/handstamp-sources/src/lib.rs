//! placeholder

#[cfg(feature = "file")]
pub mod file;
