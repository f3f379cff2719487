//! X-Accel-Redirect and CGI's local redirect: another URL of this server gives the answer, without a redirect
//! that the client would see.

use petrel_engine::Exchange;
use petrel_engine::module::{Outcome, Phase};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;

use super::BackendHost;
use super::opening::{OpeningFacts, Step};

/// Fields of the reply that the answer of the other URL gets. The status is that of the other answer. Both as
/// in nginx.
const KEPT: &[&str] = &[
    "Content-Type",
    "Content-Disposition",
    "Set-Cookie",
    "Cache-Control",
    "Expires",
];

/// Begins the exchange again with a GET (a HEAD stays a HEAD) for the URL in `value`: path and query,
/// percent-encoded as in a request. All rules for that URL apply.
pub(super) fn go(
    exchange: &mut Exchange,
    _: &BackendHost,
    value: &[u8],
    _: &mut OpeningFacts,
) -> Result<Step, &'static str> {
    let kept: Vec<(String, Vec<u8>)> = exchange
        .response
        .fields()
        .iter()
        .filter_map(|(name, value)| Some((std::str::from_utf8(name).ok()?.to_owned(), value)))
        .filter(|(name, _)| KEPT.iter().any(|kept| kept.eq_ignore_ascii_case(name)))
        .map(|(name, value)| (name, value.to_vec()))
        .collect();
    restart_at(exchange, value)?;
    for (name, value) in kept {
        exchange.response.hand_on(&name, &value);
    }
    Ok(Step::Done(Outcome::Again(Phase::Translate)))
}

/// Follows a Location that is the only field in the reply of a CGI program and is a path (RFC 3875 6.2.2).
/// `None`: the field is passed on to the client as a redirect. That is also what ends the loop of a program
/// that redirects to itself.
pub(crate) fn local_redirect(exchange: &mut Exchange, head: &ReplyHead) -> Option<Outcome> {
    let location = head.get("Location").filter(|_| head.len() == 1)?;
    let own = exchange.request.url.path();
    let is_own = location
        .strip_prefix(own)
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'?')));
    if is_own {
        return None;
    }
    let location = location.to_vec();
    restart_at(exchange, &location).ok()?;
    Some(Outcome::Again(Phase::Translate))
}

/// Sets the exchange's URL to `target`, changes the method to GET unless it is HEAD, and clears the answer.
fn restart_at(exchange: &mut Exchange, target: &[u8]) -> Result<(), &'static str> {
    let target = target.trim_ascii();
    // `//host/path` would be a URL of another server.
    if target.first() != Some(&b'/') || target.get(1) == Some(&b'/') {
        return Err("it is not a path of this server;");
    }
    let options = exchange.worker.process().url_options;
    let url = &mut exchange.request.url;
    url.set_path_and_query(target, &options)
        .map_err(|_| "it is not a valid URL;")?;
    let limit = exchange.response.bytes_per_second_max;
    exchange.response.clear();
    exchange.response.bytes_per_second_max = limit;
    if exchange.request.method != Method::Head {
        exchange.request.method = Method::Get;
    }
    // The body was for the program that has replied (RFC 3875 6.2.2).
    exchange.request.body.give_up();
    Ok(())
}
