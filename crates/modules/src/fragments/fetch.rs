//! Fragments that are the answers of URLs of this server.
//!
//! A fragment with a lifetime is shared by all clients: it is requested without any field of the client but
//! Host, and stored only if the answer is 200, sets no cookie and may be shared. A fragment without a
//! lifetime belongs to the client: it is requested with the client's fields and not stored.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::proto::status::Status;
use petrel_engine::subrequest::{Inherit, Subrequest, SubrequestHead};
use petrel_lua::Lent;

use super::{Patience, Taken, take};
use crate::page_cache::cache_control::ResponseDirectives;

/// Where a fragment comes from, and how long it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The path with its query.
    pub(crate) url: Vec<u8>,
    /// The lifetime in seconds; 0: for this request only.
    pub(crate) lifetime_s: u32,
    /// The key that it is stored under; `None`: host and URL.
    pub(crate) key: Option<Vec<u8>>,
}

/// The largest fragment.
const BYTES_MAX: usize = 4 << 20;

/// How long making a fragment may take.
const TIME_MAX: Duration = Duration::from_secs(30);

/// Gets all fragments. Those that are not stored are requested at the same time. To be polled while the
/// request is lent.
///
/// # Errors
/// The first fragment that cannot be had: a sentence for the log.
pub(crate) async fn fetch_all(
    lent: Rc<Lent<Exchange>>,
    sources: Vec<Source>,
) -> Result<Vec<Bytes>, String> {
    type FragmentFetch = Pin<Box<dyn Future<Output = Result<Bytes, String>>>>;
    let fetch = |source: Source| -> FragmentFetch { Box::pin(fetch(Rc::clone(&lent), source)) };
    let mut fetches: Vec<FragmentFetch> = sources.into_iter().map(fetch).collect();
    let mut fetched: Vec<Option<Bytes>> = vec![None; fetches.len()];
    poll_fn(|context| {
        let mut is_pending = false;
        for (fetch, place) in fetches.iter_mut().zip(&mut fetched) {
            if place.is_none() {
                match fetch.as_mut().poll(context) {
                    Poll::Ready(Ok(bytes)) => *place = Some(bytes),
                    Poll::Ready(Err(sentence)) => return Poll::Ready(Err(sentence)),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        match is_pending {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    })
    .await?;
    Ok(fetched.into_iter().flatten().collect())
}

async fn fetch(lent: Rc<Lent<Exchange>>, source: Source) -> Result<Bytes, String> {
    let asked = lent.with(|exchange| {
        let patience = match exchange.is_subrequest() {
            true => Patience::MakesItsOwn,
            false => Patience::Waits,
        };
        let worker = Rc::clone(&exchange.worker);
        (worker, key(exchange, &source), patience)
    });
    let (worker, key, patience) = asked.ok_or_else(|| "there is no request".to_owned())?;
    let ticket = match take(&worker, &key, source.lifetime_s, patience).await {
        Taken::Found(bytes) => return Ok(bytes),
        Taken::Make(ticket) => ticket,
    };
    let made = tokio::time::timeout(TIME_MAX, ask(&lent, &source)).await;
    match made.unwrap_or_else(|_| Err(format!("no answer after {} s", TIME_MAX.as_secs()))) {
        Ok((bytes, true)) => {
            ticket.finish(bytes.clone());
            Ok(bytes)
        }
        Ok((bytes, false)) => {
            ticket.keep_to_oneself();
            Ok(bytes)
        }
        Err(why) => {
            let url = String::from_utf8_lossy(&source.url).into_owned();
            let last = ticket.fail();
            if last.is_some() {
                lent.with(|exchange| {
                    let cause = format_args!("the last fragment of {url:?} is used again: {why}");
                    exchange.log_error("content", cause);
                });
            }
            last.ok_or_else(|| format!("no fragment of {url:?}: {why}"))
        }
    }
}

/// Requests the URL. Returns the answer, and whether it may be shared.
async fn ask(lent: &Lent<Exchange>, source: &Source) -> Result<(Bytes, bool), String> {
    let head = SubrequestHead {
        inherit: match source.lifetime_s {
            0 => Inherit::All,
            _ => Inherit::Nothing,
        },
        ..SubrequestHead::get(&source.url)
    };
    let made = lent.with(|exchange| Subrequest::new(exchange, head));
    let made = made.ok_or_else(|| "there is no request".to_owned())?;
    let mut subrequest = made.map_err(|refused| refused.to_string())?;
    let status = subrequest.head().await;
    if status != Status::OK {
        return Err(format!("it is answered {}", status.0));
    }
    let fields = subrequest.response().fields();
    let directives = ResponseDirectives::of(fields);
    let is_everybodys =
        !(fields.contains("Set-Cookie") || directives.private || directives.no_store);
    let bytes = subrequest.collect(BYTES_MAX).await;
    bytes
        .map(|bytes| (bytes, is_everybodys))
        .map_err(|error| error.to_string())
}

/// The key. Those of scripts begin with `k`, those of URLs with `u`, so that they do not clash.
fn key(exchange: &Exchange, source: &Source) -> Vec<u8> {
    match &source.key {
        Some(key) => [&b"k"[..], key].concat(),
        None => {
            let scheme = exchange.scheme().as_str().as_bytes();
            let host = exchange.request.head.host();
            [b"u", scheme, b"://", host, b"\0", &source.url[..]].concat()
        }
    }
}
