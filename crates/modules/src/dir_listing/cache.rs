//! Listings that are kept for a while (`dir-listing.cache`).
//!
//! In memory of the worker, or as files that all workers share and that survive a restart. The
//! key is all that the bytes depend on: directory, URL, view and options.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::{FileKind, Symlinks};
use petrel_engine::proto::status::Status;

use super::options::{Cache, Options};
use super::set_fields;
use super::view::{Format, View};

/// Answers with a listing that was kept, if there is a fresh one.
pub(super) fn answer(exchange: &mut Exchange, options: &Options, view: &View) -> bool {
    let Some(cache) = &options.cache else {
        return false;
    };
    let found = match &cache.directory {
        Some(_) => from_file(exchange, options, cache, view),
        None => from_memory(exchange, options, view),
    };
    let Some(body) = found else { return false };
    exchange.response.status = Status::OK;
    set_fields(exchange, options, view.format);
    exchange.response.body = body;
    true
}

/// Keeps a listing, if that is configured and it is not too long. Files are written in the background.
pub(super) fn keep(exchange: &Exchange, options: &Options, view: &View, bytes: &Bytes) {
    let Some(cache) = &options.cache else { return };
    match &cache.directory {
        None => {
            let until_s = exchange
                .worker
                .clock()
                .seconds()
                .saturating_add(cache.max_age_s);
            let kept = Kept {
                until_s,
                bytes: bytes.clone(),
            };
            LISTINGS.with_borrow_mut(|listings| {
                listings.insert(Key::of(exchange, options, view), kept)
            });
        }
        Some(directory) => {
            let name = file_name(exchange, options, view);
            let settings = Rc::clone(&exchange.settings);
            directory.keep(name, bytes.clone(), move |error| {
                settings.core.error_log.error(format_args!(
                    "(content) a listing could not be kept: {error}"
                ));
            });
        }
    }
}

fn from_memory(exchange: &Exchange, options: &Options, view: &View) -> Option<Body> {
    let key = Key::of(exchange, options, view);
    let now_s = exchange.worker.clock().seconds();
    LISTINGS.with_borrow(|listings| {
        let kept = listings
            .by_key
            .get(&key)
            .filter(|kept| now_s < kept.until_s)?;
        Some(Body::Piece(Piece::Bytes(kept.bytes.clone())))
    })
}

fn from_file(exchange: &Exchange, options: &Options, cache: &Cache, view: &View) -> Option<Body> {
    let path = cache
        .directory
        .as_ref()?
        .path_of(&file_name(exchange, options, view))?;
    let clock = exchange.worker.clock();
    let file = exchange
        .worker
        .files()
        .lookup_waiting(&path, Symlinks::Refuse, clock.seconds());
    let age_s = clock.wall_seconds().checked_sub(file.stat().modified_s)?;
    if file.kind() != FileKind::Regular || age_s >= u64::from(cache.max_age_s) {
        return None;
    }
    let range = 0..file.stat().size;
    Some(Body::Piece(Piece::File { file, range }))
}

/// Where lighttpd has `dirlist.html`; the number keeps different views of a directory apart.
fn file_name(exchange: &Exchange, options: &Options, view: &View) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    Key::of(exchange, options, view).hash(&mut hasher);
    let suffix = match view.format {
        Format::Page => "html",
        Format::Json => "json",
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
struct Key {
    path: Vec<u8>,
    url_path: Vec<u8>,
    view: View,
    fingerprint: u64,
}

impl Key {
    fn of(exchange: &Exchange, options: &Options, view: &View) -> Key {
        Key {
            path: exchange.physical.path.clone(),
            url_path: exchange.request.url.path().to_vec(),
            view: *view,
            fingerprint: options.fingerprint,
        }
    }
}

struct Kept {
    /// In seconds of the worker's monotonic clock.
    until_s: u32,
    bytes: Bytes,
}

#[derive(Default)]
struct Listings {
    by_key: HashMap<Key, Kept>,
    bytes: usize,
}

impl Listings {
    /// When it is full everything goes: entries live for seconds anyway.
    fn insert(&mut self, key: Key, kept: Kept) {
        let size = kept.bytes.len() + KEY_BYTES;
        if size > KEPT_BYTES_MAX / 4 {
            return;
        }
        if self.bytes + size > KEPT_BYTES_MAX {
            self.by_key.clear();
            self.bytes = 0;
        }
        self.bytes += size;
        if let Some(old) = self.by_key.insert(key, kept) {
            self.bytes = self.bytes.saturating_sub(old.bytes.len() + KEY_BYTES);
        }
    }
}

thread_local! {
    /// A worker is a thread; its listings end with it.
    static LISTINGS: RefCell<Listings> = RefCell::default();
}

/// Bytes of listings a worker keeps in memory.
const KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A rough size of what surrounds a kept listing.
const KEY_BYTES: usize = 512;
