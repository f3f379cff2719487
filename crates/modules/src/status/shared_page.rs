//! A page that takes a while to make: one job makes it for all requests that come within a second.
//!
//! The job runs on a thread for computing, so that no worker's time goes into it. A page is made anew when it
//! is a second old, and only if a client asks.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared as SharedFuture};

use petrel_engine::Exchange;
use petrel_engine::blocking::{self, Class, NotDone, Origin};
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::CauseCode;
use petrel_engine::ledger::Nanos;
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::status::Status;
use petrel_engine::shared::{Shared, lock};

/// Makes a page.
pub(super) type MakePage = fn(&Arc<Shared>) -> Vec<u8>;

/// The pages of a server process, by the function that makes them.
#[derive(Default)]
struct Pages(Mutex<Vec<Page>>);

struct Page {
    make: MakePage,
    begun: Nanos,
    made: PageJob,
}

pub(super) type PageJob = SharedFuture<BoxFuture<'static, Result<Bytes, NotDone>>>;

/// Answers with the page that `make` makes, as `content_type`.
pub(super) fn answer(
    exchange: &mut Exchange,
    make: MakePage,
    content_type: &'static str,
) -> Outcome {
    let now = exchange.worker.clock().latest();
    let job = job(exchange.worker.shared(), make, now);
    Outcome::Later(Box::new(AwaitedPage { job, content_type }))
}

/// The job that makes the page, begun at most [`PAGE_NANOS`] ago or not done yet.
pub(super) fn job(shared: &Arc<Shared>, make: MakePage, now: Nanos) -> PageJob {
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
    let job = blocking::run_for(Class::Compute, Origin::default(), move || {
        Bytes::from(make(&of))
    });
    job.boxed().shared()
}

/// A request that waits for a page.
struct AwaitedPage {
    job: PageJob,
    content_type: &'static str,
}

impl Pending for AwaitedPage {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Ready(match ready!(self.job.poll_unpin(context)) {
            Ok(page) => {
                let response = &mut exchange.response;
                response.answer(Status::OK);
                response.set("Content-Type", self.content_type.as_bytes());
                response.set("Cache-Control", b"no-store");
                response.set("Vary", b"Accept");
                response.body = Body::Piece(Piece::Bytes(page));
                Outcome::Answer
            }
            Err(error) => {
                exchange.log_error("content", format_args!("status: no page was made: {error}"));
                exchange.fail_by_page(CauseCode::StatusFailed, Status::SERVICE_UNAVAILABLE)
            }
        })
    }
}

/// For how long a page is given to other requests.
const PAGE_NANOS: Nanos = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    static MADE: AtomicUsize = AtomicUsize::new(0);

    fn make(_: &Arc<Shared>) -> Vec<u8> {
        MADE.fetch_add(1, Relaxed).to_string().into_bytes()
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
