//! The hook that decides whether an answer may be stored.
//!
//! When in doubt, it is not stored: a page is stored only if nothing in request or answer suggests that it
//! belongs to one client or should not be kept. The hook runs in the store phase, before scripts change the
//! answer, so the backend's answer is what is stored.

use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, InMemory, Piece};
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::proto::date;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;

use super::lookup::Found;
use super::options::Debug;
use super::servers::{Clients, Servers};
use super::{key, value};
use crate::page_cache::cache_control::{RequestDirectives, ResponseDirectives};
use crate::page_cache::request;
use crate::tee::{self, Tee};

/// The hook that stores pages.
pub(super) struct PageStore(pub(crate) Rc<Servers>);

/// The largest page: memcached accepts a megabyte including its overhead.
const BYTES_MAX: usize = 1_000_000;

impl Hook for PageStore {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(found) = Found::of(exchange).filter(|found| found.page.is_none()) else {
            return Outcome::Next;
        };
        let servers = &self.0;
        match decide(exchange, &found, servers.options.bytes_min) {
            Ok(lifetime_s) => {
                servers.trace(exchange, Debug::On, "to be stored", &found.url);
                let draft = MemcachedDraft {
                    head: value::write(&found.url, exchange.response.fields(), b""),
                    url: found.url.clone(),
                    lifetime_s,
                    clients: servers.clients(exchange),
                    bytes_min: servers.options.bytes_min,
                };
                store(exchange, draft);
            }
            Err(why) => servers.trace(exchange, Debug::Verbose, why, &found.url),
        }
        Outcome::Next
    }
}

/// Whether the answer may be stored, and for how many seconds according to its own fields.
fn decide(exchange: &Exchange, found: &Found, bytes_min: usize) -> Result<Option<u32>, key::Why> {
    let head = &exchange.request.head;
    if exchange.request.method != Method::Get || key::of(exchange).is_ok_and(|url| url != found.url)
    {
        return Err("not stored: the answer is about something else");
    }
    // The client may have been identified since the lookup.
    key::of(exchange)?;
    if head.field(KnownField::Cookie).is_some() {
        return Err("not stored: the request has cookies");
    }
    if RequestDirectives::of(head).no_store {
        return Err("not stored: the request says no-store");
    }
    if request::is_peculiar(exchange) {
        return Err("not stored: fields of the request may have changed it");
    }
    if exchange.response.status != Status::OK {
        return Err("not stored: its status is not 200");
    }
    match &exchange.response.body {
        Body::Empty => return Err("not stored: it is empty"),
        Body::Piece(Piece::File { .. }) => return Err("not stored: it is a file"),
        Body::Pieces(pieces)
            if pieces
                .iter()
                .any(|piece| matches!(piece, Piece::File { .. })) =>
        {
            return Err("not stored: it is made of files");
        }
        _ => {}
    }
    if let Some(length) = exchange.response.body.length() {
        if length < bytes_min as u64 {
            return Err("not stored: it is smaller than mcpage.memcached-minsize");
        }
        if length > BYTES_MAX as u64 {
            return Err("not stored: it is too large for memcached");
        }
    }
    let response = &exchange.response;
    if response.has_carried() {
        return Err("not stored: a script has given it fields for this request");
    }
    let now_s = exchange.worker.clock().wall_seconds();
    allowed_by(&response.with_carried(response.fields()), now_s)
}

/// What the fields of the answer allow.
fn allowed_by(fields: &HeaderBlock, now_s: u64) -> Result<Option<u32>, key::Why> {
    if fields.contains("Set-Cookie") || fields.contains("Set-Cookie2") {
        return Err("not stored: it sets a cookie");
    }
    if fields.contains("Content-Range") {
        return Err("not stored: it is a part");
    }
    let mut varies = fields
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"Vary"))
        .flat_map(|(_, value)| value.split(|byte| *byte == b','));
    if !varies.all(|name| name.trim_ascii().eq_ignore_ascii_case(b"Accept-Encoding")) {
        return Err("not stored: it depends on fields of the request (Vary)");
    }
    let is_known = |coding: &[u8]| coding.eq_ignore_ascii_case(b"gzip");
    if !fields.get("Content-Encoding").is_none_or(is_known) {
        return Err("not stored: it is coded in another way than gzip");
    }
    let directives = ResponseDirectives::of(fields);
    let has_pragma = fields
        .get("Pragma")
        .is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    let is_withheld = !directives.withheld.is_empty();
    if directives.no_store || directives.no_cache || directives.private || has_pragma || is_withheld
    {
        return Err("not stored: Cache-Control forbids it");
    }
    let expires = || {
        let field = fields.get("Expires")?;
        let left_s = date::parse(field).unwrap_or(0).saturating_sub(now_s);
        Some(u32::try_from(left_s).unwrap_or(u32::MAX))
    };
    let stated = directives
        .shared_max_age_s
        .or(directives.max_age_s)
        .or_else(expires);
    match stated {
        Some(0) => Err("not stored: it is stale already"),
        stated => Ok(stated),
    }
}

/// A page that lacks only its body.
struct MemcachedDraft {
    head: Vec<u8>,
    url: Vec<u8>,
    lifetime_s: Option<u32>,
    clients: Clients,
    bytes_min: usize,
}

impl tee::Draft for MemcachedDraft {
    fn finish(self, body: Bytes) {
        if body.is_empty() || body.len() < self.bytes_min {
            return;
        }
        let mut value = self.head;
        value.extend_from_slice(&body);
        let value = Bytes::from(value);
        self.clients.put(&self.url, value, self.lifetime_s);
    }

    fn give_up(self) {}
}

/// Stores a body that is complete, or collects it while it is sent.
fn store(exchange: &mut Exchange, draft: MemcachedDraft) {
    let body = std::mem::take(&mut exchange.response.body);
    exchange.response.body = match body {
        Body::Piece(Piece::Bytes(bytes)) => {
            tee::Draft::finish(draft, bytes.clone());
            Body::Piece(Piece::Bytes(bytes))
        }
        body => {
            let reader = InMemory::new(exchange.file_reader());
            Body::Source(Box::new(Tee::new(body, reader, draft, BYTES_MAX)))
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_for_one_client_is_not_stored() {
        for (fields, expected) in [
            ("", Some(None)),
            ("Content-Type: text/html", Some(None)),
            ("Cache-Control: max-age=60", Some(Some(60))),
            ("Cache-Control: max-age=60, s-maxage=5", Some(Some(5))),
            ("Expires: Sun, 06 Nov 1994 08:49:47 GMT", Some(Some(10))),
            ("Vary: Accept-Encoding", Some(None)),
            ("Content-Encoding: gzip", Some(None)),
            ("Set-Cookie: a=b", None),
            ("Vary: Cookie", None),
            ("Vary: *", None),
            ("Vary: Accept-Encoding|Vary: User-Agent", None),
            ("Content-Encoding: br", None),
            ("Cache-Control: private", None),
            ("Cache-Control: no-store", None),
            ("Cache-Control: no-cache", None),
            ("Cache-Control: private=\"x-a\"", None),
            ("Cache-Control: max-age=0", None),
            ("Pragma: no-cache", None),
            ("Expires: 0", None),
            ("Expires: Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Content-Range: bytes 0-1/2", None),
        ] {
            let mut block = HeaderBlock::new();
            for line in fields.split('|').filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(": ").expect("a field");
                block.append(name, value.as_bytes());
            }
            assert_eq!(allowed_by(&block, 784_111_777).ok(), expected, "{fields}");
        }
    }
}
