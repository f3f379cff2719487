//! Removes stored answers: on PURGE, and after requests that change something (RFC 9111 4.4).

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::status::Status;

use super::key;
use super::lookup::Gate;
use super::options::CacheOptions;
use super::shared::PageCache;

/// The hook that answers PURGE.
pub(crate) struct Purge(pub(crate) Rc<Gate>);

impl Hook for Purge {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.request.method != Method::Purge {
            return Outcome::Next;
        }
        let options = &self.0.options;
        if !options.purgers.include(exchange.connection.peer.ip()) {
            return exchange.fail(CauseCode::PurgeDenied);
        }
        let cache = Rc::clone(self.0.cache(exchange));
        let tags = options.tags_header.as_deref();
        let tags: Vec<Box<[u8]>> = tags
            .into_iter()
            .flat_map(|name| exchange.request.head.fields_named(name))
            .flat_map(tags_in)
            .map(Box::from)
            .collect();
        let worker = Rc::clone(&exchange.worker);
        let count = match tags.is_empty() {
            false => tags.iter().map(|tag| cache.purge_tag(&worker, tag)).sum(),
            true => {
                let mut base = Vec::new();
                key::write_base(&mut base, exchange, options);
                cache.purge_base(&worker, &base)
            }
        };
        exchange.response.answer(Status::OK);
        exchange.response.set("Content-Type", b"text/plain");
        exchange.response.set("Cache-Control", b"no-store");
        exchange.response.is_final = true;
        exchange.response.body = format!("purged: {count}\n").into_bytes().into();
        Outcome::Answer
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let may_purge = self
            .0
            .options
            .purgers
            .include(exchange.connection.peer.ip());
        if exchange.request.method != Method::Purge || !may_purge {
            return self.run(exchange);
        }
        exchange.note(|| Note::Text("would remove the stored pages of this URL".to_owned()));
        exchange.answer_as_told(Status::OK)
    }
}

/// Removes the stored answers for the URL of an unsafe request that has succeeded, and for those URLs of the
/// same host that its answer names in Location and Content-Location.
pub(crate) fn invalidate(exchange: &Exchange, cache: &PageCache, options: &CacheOptions) {
    let mut base = Vec::new();
    key::write_base(&mut base, exchange, options);
    cache.purge_base(&exchange.worker, &base);
    for name in ["Location", "Content-Location"] {
        let named = exchange.response.get(name);
        if let Some(target) = named.and_then(|value| target_here(exchange, value)) {
            let (path, query) = key::split(target);
            key::write_base_of(&mut base, exchange, options, path, query);
            cache.purge_base(&exchange.worker, &base);
        }
    }
}

/// The target of a reference, if it is absolute and of the same origin. An answer must not be able to remove
/// pages of other origins (RFC 9111 4.4).
fn target_here<'a>(exchange: &Exchange, reference: &'a [u8]) -> Option<&'a [u8]> {
    if reference.starts_with(b"/") && !reference.starts_with(b"//") {
        return Some(reference);
    }
    let rest = reference.strip_prefix(exchange.scheme().as_str().as_bytes())?;
    let rest = rest.strip_prefix(b"://")?;
    let host = exchange.request.head.host();
    let (begin, path) = rest.split_at_checked(host.len())?;
    let is_here = !host.is_empty() && begin.eq_ignore_ascii_case(host);
    match path.first() {
        None if is_here => Some(b"/"),
        Some(b'/') if is_here => Some(path),
        _ => None,
    }
}

/// The tags in a field, separated by spaces as in Surrogate-Key or by commas as in Cache-Tag.
pub(crate) fn tags_in(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = value.split(|byte| matches!(byte, b' ' | b'\t' | b','));
    parts.filter(|tag| !tag.is_empty())
}
