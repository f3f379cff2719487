//! A page that takes a while to make: one job makes it for all requests that come within a second.
//!
//! The job runs on a thread for computing, so that no worker's time goes into it. A page is made anew when it
//! is a second old, and only if a client asks. What differs between clients is not part of it.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared as SharedFuture};

use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::CauseCode;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::status::Status;
use petrel_engine::shared::{Shared, lock};
use petrel_engine::waits::HolderText;

/// Makes a page.
///
/// # Errors
/// It cannot be made; the message is for the log.
pub(super) type MakePage = fn(&Arc<Shared>) -> Result<Vec<u8>, String>;

/// The pages of a server process, by the function that makes them.
#[derive(Default)]
struct Pages(Mutex<Vec<Page>>);

struct Page {
    make: MakePage,
    begun: Nanos,
    made: PageJob,
}

type PageJob = SharedFuture<BoxFuture<'static, Result<Bytes, String>>>;

/// Answers with `head`, which is this client's own, and the page that `make` makes, as `content_type`.
pub(super) fn answer(
    exchange: &mut Exchange,
    make: MakePage,
    content_type: &'static str,
    head: String,
) -> Outcome {
    let now = exchange.worker.clock().latest();
    let job = job(exchange.worker.shared(), make, now);
    Outcome::Later(Box::new(AwaitedPage {
        job,
        content_type,
        head,
    }))
}

/// Answers with `content`.
pub(super) fn put(exchange: &mut Exchange, content_type: &str, content: Bytes) {
    let response = &mut exchange.response;
    response.answer(Status::OK);
    for (name, value) in HEADERS {
        response.set(name, value.as_bytes());
    }
    response.set("Content-Type", content_type.as_bytes());
    response.body = Body::Piece(Piece::Bytes(content));
}

/// The job that makes the page, begun at most [`PAGE_NANOS`] ago or not done yet.
fn job(shared: &Arc<Shared>, make: MakePage, now: Nanos) -> PageJob {
    let pages = shared.belonging(Pages::default);
    let mut pages = lock(&pages.0);
    let is_fresh = |page: &Page| {
        let is_wanted = !matches!(page.made.peek(), Some(Err(_)));
        is_wanted && (page.made.peek().is_none() || now.saturating_sub(page.begun) < PAGE_NANOS)
    };
    let known = pages
        .iter_mut()
        .find(|page| std::ptr::fn_addr_eq(page.make, make));
    match known {
        Some(page) if is_fresh(page) => page.made.clone(),
        Some(page) => {
            page.begun = now;
            page.made = begin(shared, make);
            page.made.clone()
        }
        None => {
            let made = begin(shared, make);
            pages.push(Page {
                make,
                begun: now,
                made: made.clone(),
            });
            made
        }
    }
}

fn begin(shared: &Arc<Shared>, make: MakePage) -> PageJob {
    let of = Arc::clone(shared);
    let job = blocking::run_for(Class::Compute, Origin::default(), move || make(&of));
    let made = async {
        let page = job.await.map_err(|error| error.to_string())?;
        page.map(Bytes::from)
    };
    made.boxed().shared()
}

/// A request that waits for a page.
struct AwaitedPage {
    job: PageJob,
    content_type: &'static str,
    head: String,
}

impl Pending for AwaitedPage {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(match ready!(self.job.poll_unpin(context)) {
            Ok(page) => {
                let page = match self.head.is_empty() {
                    true => page,
                    false => [self.head.as_bytes(), &page].concat().into(),
                };
                put(exchange, self.content_type, page);
                Outcome::Answer
            }
            Err(error) => {
                exchange.log_error("content", format_args!("status: no page was made: {error}"));
                exchange.fail_by_page(CauseCode::StatusFailed, Status::SERVICE_UNAVAILABLE)
            }
        })
    }

    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Content)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("a thread for computing made the page");
    }
}

/// Nothing of a page comes from elsewhere, no other site may embed or read it, and nothing in it runs that
/// the server has not sent as its script. The format of metrics depends on Accept.
const HEADERS: [(&str, &str); 7] = [
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Vary", "Accept"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
];

/// For how long a page is given to other requests.
const PAGE_NANOS: Nanos = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    static MADE: AtomicUsize = AtomicUsize::new(0);

    fn make(_: &Arc<Shared>) -> Result<Vec<u8>, String> {
        Ok(MADE.fetch_add(1, Relaxed).to_string().into_bytes())
    }

    #[tokio::test(flavor = "local")]
    async fn requests_within_a_second_get_the_same_page() {
        let shared = Arc::new(Shared::new(1, 1));
        let jobs: Vec<PageJob> = (0..100).map(|number| job(&shared, make, number)).collect();
        for job in jobs {
            assert_eq!(job.await, Ok(Bytes::from_static(b"0")));
        }
        assert_eq!(
            job(&shared, make, PAGE_NANOS - 1).await,
            Ok(Bytes::from_static(b"0"))
        );
        assert_eq!(
            job(&shared, make, PAGE_NANOS).await,
            Ok(Bytes::from_static(b"1"))
        );
        assert_eq!(MADE.load(Relaxed), 2);
    }
}
