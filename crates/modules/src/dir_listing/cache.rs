//! Listings that are kept for a while (`dir-listing.cache`).
//!
//! They are kept in the memory of the worker, or as files that all workers share and that survive a restart.
//! The key is everything that the bytes depend on: directory, URL, view and options.

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::{FileKind, Symlinks};
use petrel_engine::proto::status::Status;

use super::options::{Cache, ListingOptions};
use super::set_fields;
use super::view::{ListingFormat, View};
use crate::byte_cache::ByteCache;
use crate::cache_dir::CacheDir;

/// The result of looking for a listing.
pub(super) enum Cached {
    /// It was found and is the answer.
    Answered,
    /// There is none, or it is too old.
    Missing,
    /// A disk has to be waited for.
    Cold,
}

/// Answers with a listing that was kept, if there is one that is fresh.
pub(super) fn answer(exchange: &mut Exchange, options: &ListingOptions, view: &View) -> Cached {
    let Some(cache) = &options.cache else {
        return Cached::Missing;
    };
    let found = match &cache.directory {
        Some(directory) => match from_file(exchange, options, cache, directory, view) {
            Some(found) => found,
            None => return Cached::Cold,
        },
        None => from_memory(exchange, options, view),
    };
    let Some(body) = found else {
        return Cached::Missing;
    };
    exchange.response.status = Status::OK;
    set_fields(exchange, options, view.format);
    exchange.response.body = body;
    Cached::Answered
}

/// Keeps a listing, if that is configured and the listing is not too long. Files are written in the
/// background.
pub(super) fn keep(exchange: &Exchange, options: &ListingOptions, view: &View, bytes: &Bytes) {
    let Some(cache) = &options.cache else { return };
    match &cache.directory {
        None => {
            let until_s = exchange
                .worker
                .clock()
                .seconds()
                .saturating_add(cache.max_age_s);
            let kept = KeptListing {
                until_s,
                bytes: bytes.clone(),
            };
            let key = ListingKey::of(exchange, options, view);
            let listings = Listings::of(exchange);
            let bytes = bytes.len() + KEY_BYTES;
            listings.0.borrow_mut().insert(key, kept, bytes);
        }
        Some(directory) => {
            let name = file_name(exchange, options, view);
            let settings = Rc::clone(&exchange.settings);
            directory.keep(&exchange.worker, name, bytes.clone(), move |error| {
                settings.core.error_log.error(format_args!(
                    "(content) a listing could not be kept: {error}"
                ));
            });
        }
    }
}

fn from_memory(exchange: &Exchange, options: &ListingOptions, view: &View) -> Option<Body> {
    let key = ListingKey::of(exchange, options, view);
    let now_s = exchange.worker.clock().seconds();
    let listings = Listings::of(exchange);
    let mut listings = listings.0.borrow_mut();
    let kept = listings.get(&key).filter(|kept| now_s < kept.until_s)?;
    Some(Body::Piece(Piece::Bytes(kept.bytes.clone())))
}

/// `None`: a disk has to be waited for.
fn from_file(
    exchange: &Exchange,
    options: &ListingOptions,
    cache: &Cache,
    directory: &CacheDir,
    view: &View,
) -> Option<Option<Body>> {
    let Some(path) = directory.path_of(&file_name(exchange, options, view)) else {
        return Some(None);
    };
    let file = exchange.look_up(&path, Symlinks::Refuse)?;
    let now_s = exchange.worker.clock().wall_seconds();
    let age_s = now_s.checked_sub(file.stat().modified_s);
    let is_fresh = age_s.is_some_and(|age_s| age_s < u64::from(cache.max_age_s));
    if file.kind() != FileKind::Regular || !is_fresh {
        return Some(None);
    }
    let range = 0..file.stat().size;
    Some(Some(Body::Piece(Piece::File { file, range })))
}

/// The name that lighttpd has as `dirlist.html`. The number in it distinguishes views of the same directory.
fn file_name(exchange: &Exchange, options: &ListingOptions, view: &View) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    ListingKey::of(exchange, options, view).hash(&mut hasher);
    let suffix = match view.format {
        ListingFormat::Page => "html",
        ListingFormat::Json => "json",
    };
    let path = exchange.physical.path.trim_ascii();
    let parts = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty());
    let mut name = Vec::with_capacity(path.len() + 40);
    for part in parts {
        name.extend_from_slice(part);
        name.push(b'/');
    }
    name.extend_from_slice(format!("dirlist-{:016x}.{suffix}", hasher.finish()).as_bytes());
    name
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct ListingKey {
    path: Vec<u8>,
    url_path: Vec<u8>,
    view: View,
    fingerprint: u64,
}

impl ListingKey {
    fn of(exchange: &Exchange, options: &ListingOptions, view: &View) -> ListingKey {
        ListingKey {
            path: exchange.physical.path.clone(),
            url_path: exchange.request.url.path().to_vec(),
            view: *view,
            fingerprint: options.fingerprint,
        }
    }
}

struct KeptListing {
    /// When it expires, in seconds of the worker's monotonic clock.
    until_s: u32,
    bytes: Bytes,
}

/// The listings in the memory of a worker.
struct Listings(RefCell<ByteCache<ListingKey, KeptListing>>);

impl Listings {
    fn of(exchange: &Exchange) -> Rc<Listings> {
        let make = || Listings(RefCell::new(ByteCache::new(KEPT_BYTES_MAX)));
        exchange.worker.belonging(make)
    }
}

/// Bytes of listings that a worker keeps in memory.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The memory that a kept listing takes in addition to its bytes, roughly.
const KEY_BYTES: usize = 512;
