//! The key of a page, which is its URL.

use petrel_engine::Exchange;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::{BodyFraming, KnownField};
use petrel_engine::proto::url::Url;

use crate::gateway::AUTHORIZED;
use crate::page_cache::key::without_origin;

/// The reason why a request is not looked up.
pub(super) type Why = &'static str;

/// The key of the page that the request asks for: scheme, host, and path and query as the client sent them.
/// If a rule has changed path or query, or they were not in normal form, the present ones follow after a `#`,
/// which a URL in a request cannot contain.
///
/// # Errors
/// The request does not ask for a page that may be shared.
pub(super) fn of(exchange: &Exchange) -> Result<Vec<u8>, Why> {
    let request = &exchange.request;
    let head = &request.head;
    if !matches!(request.method, Method::Get | Method::Head) {
        return Err("its method is neither GET nor HEAD");
    }
    if !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0)) {
        return Err("it has a body");
    }
    if head.field(KnownField::Upgrade).is_some() {
        return Err("it wants another protocol");
    }
    let is_known = ["REMOTE_USER", "AUTH_TYPE"]
        .iter()
        .any(|name| exchange.environment.get(name).is_some());
    // An authorizer's variables are not in the key, and applications may answer by them.
    let is_known = is_known || exchange.kept::<()>(AUTHORIZED).is_some();
    let shows_certificate = exchange
        .environment
        .get("SSL_CLIENT_VERIFY")
        .is_some_and(|verified| verified != b"NONE");
    if is_known || shows_certificate || head.field(KnownField::Authorization).is_some() {
        return Err("the identity of its client is known");
    }
    if exchange.handles_error() {
        return Err("it is for an error");
    }
    let target = without_origin(request.original_target());
    let target = target
        .split(|byte| *byte == b'#')
        .next()
        .unwrap_or_default();
    let now = request.url.target();
    let scheme = exchange.scheme().as_str().as_bytes();
    let mut key = Vec::with_capacity(scheme.len() + head.host().len() + target.len() + 3);
    key.extend_from_slice(scheme);
    key.extend_from_slice(b"://");
    key.extend_from_slice(head.host());
    key.extend_from_slice(target);
    if now != target {
        key.push(b'#');
        key.extend_from_slice(now);
    }
    Ok(key)
}

/// Whether path or file differ from what the URL names: a script has chosen them, perhaps depending on what
/// only this client has sent. To be called before index files are looked for.
pub(super) fn is_led_elsewhere(exchange: &Exchange) -> bool {
    let (url, physical) = (&exchange.request.url, &exchange.physical);
    if url.path() != url.path_raw() {
        let options = &exchange.worker.process().url_options;
        let mut fresh = Url::new();
        let decoded = fresh.set_path_and_query(url.target(), options);
        if decoded.is_err() || fresh.path() != url.path() {
            return true;
        }
    }
    // Behind an alias there is another root. Letter case may have been changed by
    // `server.force-lowercase-filenames`.
    let is_aliased = !physical.base.is_empty() && physical.base != physical.document_root;
    let below = physical.path.strip_prefix(&*physical.document_root);
    !is_aliased && !below.is_some_and(|path| path.eq_ignore_ascii_case(url.path()))
}
