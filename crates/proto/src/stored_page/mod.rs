//! Stored answers of the page cache, as they are kept in files and in stores that several machines share.
//!
//! [`blob`] turns an answer into bytes and back; [`key`] and [`vary`] say which requests it is for. Nothing here knows
//! where the bytes are kept.

pub mod blob;
pub mod key;
mod page;
pub mod vary;

pub use page::{CachedPage, Freshness, TAGS_MAX, Times, VARY_NAMES_MAX};
