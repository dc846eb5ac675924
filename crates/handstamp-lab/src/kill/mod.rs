//! `lab kill`.
