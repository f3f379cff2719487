//! X-Rewrite-URI, X-Rewrite-Host and X-Rewrite-Backend (`proxy-core.allow-x-rewrite`): a backend's reply
//! names another URL, host or backend that should answer the request.
//!
//! The request begins again with that URL, host or backend, and all rules apply to it anew. Method and body
//! stay: a backend that redirects requests has only looked at their heads. It can only name backends of the
//! configuration. The engine limits how often a request begins again.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::module::{Outcome, Phase};
use petrel_engine::proto::reply_head::ReplyHead;

/// The backend that a reply named, by its address or its label in the configuration.
pub(super) struct Named(pub(crate) Vec<u8>);

/// Follows the fields in `head`. `None`: there is none of them.
///
/// # Errors
/// They ask for something impossible: a sentence for the log. The answer is 502.
pub(super) fn follow(
    exchange: &mut Exchange,
    head: &ReplyHead,
) -> Option<Result<Outcome, &'static str>> {
    let [uri, host, backend] = [URI, HOST, BACKEND].map(|name| head.get(name));
    if uri.is_none() && host.is_none() && backend.is_none() {
        return None;
    }
    Some(begin_again(exchange, uri, host, backend))
}

/// The backend that a reply named to answer this request, if one did.
pub(super) fn named(exchange: &Exchange) -> Option<Rc<Named>> {
    exchange.kept(BACKEND)
}

fn begin_again(
    exchange: &mut Exchange,
    uri: Option<&[u8]>,
    host: Option<&[u8]>,
    backend: Option<&[u8]>,
) -> Result<Outcome, &'static str> {
    let body = &exchange.request.body;
    if body.received() != body.spool().held() {
        return Err("a part of the request body has been passed on already");
    }
    let process = exchange.worker.process();
    let (url_options, head_options) = (process.url_options, exchange.head_options());
    if let Some(uri) = uri.map(<[u8]>::trim_ascii) {
        // `//host/path` would be a URL of another server.
        if uri.first() != Some(&b'/') || uri.get(1) == Some(&b'/') {
            return Err("X-Rewrite-URI is not a path of this server");
        }
        let url = &mut exchange.request.url;
        url.set_path_and_query(uri, &url_options)
            .map_err(|_| "X-Rewrite-URI is not a valid URL")?;
    }
    if let Some(host) = host.map(<[u8]>::trim_ascii) {
        if !exchange.request.head.replace_host(host, &head_options) {
            return Err("X-Rewrite-Host is not a valid host");
        }
        exchange.set_client(exchange.connection.peer, exchange.scheme());
    }
    // A backend that an earlier reply named was for the earlier attempt only.
    let name = backend.map(<[u8]>::trim_ascii).unwrap_or_default();
    exchange.keep(BACKEND, Rc::new(Named(name.to_vec())));
    exchange.response.clear();
    Ok(Outcome::Again(Phase::Translate))
}

const URI: &str = "X-Rewrite-URI";
const HOST: &str = "X-Rewrite-Host";
const BACKEND: &str = "X-Rewrite-Backend";
