//! Passes a request to the script's `trigger_handler`, which makes the page.
//!
//! That is a file next to the one that the request leads to (`index.php`), or, if it begins with a slash, a
//! path from the document root. It may have a query of its own after a `?`. Its URL passes the phases again
//! from the access rules on, so that it is answered, or refused, as if a client had requested it. The target
//! of the request does not change, nor does its query unless the handler has one.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::module::{Outcome, Phase};
use petrel_engine::proto::escape::percent_encode_path;

use super::parts::simplified;
use super::request::{script_name, up_to_slash};

/// Passes the request to `handler`.
///
/// # Errors
/// It is no path: a sentence for the log.
pub(super) fn go_on(exchange: &mut Exchange, handler: &[u8]) -> Result<Outcome, String> {
    let (path, query) = match memchr::memchr(b'?', handler) {
        Some(mark) => handler.split_at(mark),
        None => (handler, &b""[..]),
    };
    let path = match path.first() {
        Some(b'/') => path.to_vec(),
        _ => [up_to_slash(script_name(exchange)), path].concat(),
    };
    let is_plain = !path.iter().any(u8::is_ascii_control);
    let path = simplified(&path).filter(|path| is_plain && !path.is_empty());
    let wrong = || {
        let handler = String::from_utf8_lossy(handler);
        format!("trigger_handler is no path: {handler:?}")
    };
    let path = path.ok_or_else(wrong)?;
    let url = &mut exchange.request.url;
    if query.is_empty() {
        url.set_path(&path);
    } else {
        let mut target = Vec::with_capacity(path.len() + query.len());
        percent_encode_path(&mut target, &path);
        target.extend_from_slice(query);
        let options = &exchange.worker.process().url_options;
        url.set_path_and_query(&target, options)
            .map_err(|error| format!("{} ({error})", wrong()))?;
    }
    let led = Led {
        path: exchange.request.url.path().to_vec(),
    };
    exchange.keep(KEPT, Rc::new(led));
    Ok(Outcome::Again(Phase::Authorize))
}

/// Whether the present path of the request was set by [`go_on`]. Access rules apply to that path; redirects and
/// scripts had the request before.
pub(crate) fn has_led_here(exchange: &Exchange) -> bool {
    exchange
        .kept::<Led>(KEPT)
        .is_some_and(|led| led.path == exchange.request.url.path())
}

/// The path that a request was passed to.
struct Led {
    path: Vec<u8>,
}

const KEPT: &str = "mod_cml.trigger";
