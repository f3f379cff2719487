//! See Cargo.toml; filled in by the first commits.
