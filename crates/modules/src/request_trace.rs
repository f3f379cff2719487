//! The trace that a request belongs to, and its tries at backends.
//!
//! mod_opentelemetry begins a trace and sends it away at the end of the request; the gateway tells of each
//! try. A request that is not traced has nothing of this: the functions for the gateway look into the list of
//! what modules keep for the request, which is then empty or short.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::ledger::Nanos;
use petrel_engine::proto::trace_context::{TRACEPARENT, TraceParent};

/// The trace of one request.
pub(crate) struct RequestTrace {
    /// The trace, of which the request may be a part only.
    pub(crate) trace_id: u128,
    /// The span of this request.
    pub(crate) span_id: u64,
    /// The span of a trusted proxy that caused it; 0: none.
    pub(crate) parent_id: u64,
    /// What the trusted proxy added for its vendors.
    pub(crate) state: Vec<u8>,
    /// The spans are sent away, and backends are told so.
    pub(crate) is_sampled: bool,
    ids: Rc<SpanIds>,
    tries: RefCell<Vec<BackendTry>>,
}

/// One try at a backend.
pub(crate) struct BackendTry {
    /// Its span.
    pub(crate) span_id: u64,
    /// The backend.
    pub(crate) backend: Box<str>,
    /// When it began, by the monotonic clock.
    pub(crate) begun: Nanos,
    /// When it ended; `None`: it goes on.
    pub(crate) ended: Option<Nanos>,
    /// Why it failed.
    pub(crate) failure: Option<Box<str>>,
}

/// The name under which an exchange keeps its trace.
const NAME: &str = "request_trace";

/// More tries of one request have no spans of their own.
const TRIES_MAX: usize = 16;

impl RequestTrace {
    /// A new trace or, with `parent`, a part of that one.
    pub(crate) fn new(
        ids: Rc<SpanIds>,
        parent: Option<TraceParent>,
        state: Vec<u8>,
        is_sampled: bool,
    ) -> RequestTrace {
        let trace_id = match parent {
            Some(parent) => parent.trace_id,
            None => u128::from(ids.next()) << 64 | u128::from(ids.next()),
        };
        RequestTrace {
            trace_id,
            span_id: ids.next(),
            parent_id: parent.map_or(0, |parent| parent.span_id),
            state,
            is_sampled,
            ids,
            tries: RefCell::default(),
        }
    }

    /// Keeps it for `exchange`, whose `traceparent` names it from now on.
    pub(crate) fn keep(self, exchange: &mut Exchange) {
        self.announce(self.span_id, exchange);
        exchange.keep(NAME, Rc::new(self));
    }

    /// The trace of `exchange`.
    pub(crate) fn of(exchange: &Exchange) -> Option<Rc<RequestTrace>> {
        exchange.kept(NAME)
    }

    /// Calls `with` for each try.
    pub(crate) fn each_try(&self, with: impl FnMut(&BackendTry)) {
        self.tries.borrow().iter().for_each(with);
    }

    fn announce(&self, span_id: u64, exchange: &mut Exchange) {
        let parent = TraceParent {
            trace_id: self.trace_id,
            span_id,
            is_sampled: self.is_sampled,
        };
        let head = &mut exchange.request.head;
        head.set_field(TRACEPARENT, parent.value().as_bytes());
    }

    fn begin(&self, exchange: &mut Exchange, backend: &str) {
        let now = exchange.worker.clock().now();
        self.end(now, None);
        let span_id = self.ids.next();
        let mut tries = self.tries.borrow_mut();
        if tries.len() < TRIES_MAX {
            tries.push(BackendTry {
                span_id,
                backend: backend.into(),
                begun: now,
                ended: None,
                failure: None,
            });
        }
        self.announce(span_id, exchange);
    }

    fn end(&self, now: Nanos, failure: Option<&dyn fmt::Display>) {
        let mut tries = self.tries.borrow_mut();
        if let Some(last) = tries.last_mut().filter(|last| last.ended.is_none()) {
            last.ended = Some(now);
            last.failure = failure.map(|failure| failure.to_string().into());
        }
    }
}

/// A try at `backend` begins: the `traceparent` that it gets names the span of this try. Ends the one before,
/// if that goes on.
pub(crate) fn begin_try(exchange: &mut Exchange, backend: &str) {
    if let Some(trace) = RequestTrace::of(exchange) {
        trace.begin(exchange, backend);
    }
}

/// The try ends: its whole reply is there, or it failed. A try that does not end lasts as long as its
/// request.
pub(crate) fn end_try(exchange: &Exchange, failure: Option<&dyn fmt::Display>) {
    if let Some(trace) = RequestTrace::of(exchange) {
        trace.end(exchange.worker.clock().now(), failure);
    }
}

/// The ids of a worker: random numbers, which no reader need be unable to guess. Never 0.
pub(crate) struct SpanIds {
    state: Cell<u64>,
}

impl SpanIds {
    /// Ids that begin at a random place.
    pub(crate) fn new() -> SpanIds {
        let mut seed = [0; 8];
        // Without random numbers of the system, TLS would not work either; ids then repeat in each process.
        let _ = aws_lc_rs::rand::fill(&mut seed);
        SpanIds {
            state: Cell::new(u64::from_ne_bytes(seed)),
        }
    }

    /// The next one: SplitMix64, whose numbers are as good as independent.
    pub(crate) fn next(&self) -> u64 {
        let state = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(exchange: &mut Exchange) -> Rc<RequestTrace> {
        let ids = Rc::new(SpanIds::new());
        RequestTrace::new(ids, None, Vec::new(), true).keep(exchange);
        RequestTrace::of(exchange).expect("it was kept")
    }

    fn parent_in(exchange: &Exchange) -> TraceParent {
        let value = exchange.request.head.value_of(TRACEPARENT);
        TraceParent::parse(value.expect("a field")).expect("sound")
    }

    #[test]
    fn each_try_has_a_span_that_its_backend_is_told() {
        let tree = crate::testing::Tree::new(&[]);
        let mut answer = tree.site("", &[]).get("/");
        let exchange = answer.exchange_mut();
        begin_try(exchange, "one");
        assert!(exchange.request.head.value_of(TRACEPARENT).is_none());
        let trace = trace(exchange);
        assert_eq!(parent_in(exchange).span_id, trace.span_id);
        begin_try(exchange, "one");
        let first = parent_in(exchange);
        end_try(exchange, Some(&"it broke"));
        begin_try(exchange, "two");
        let second = parent_in(exchange);
        assert_eq!(
            (first.trace_id, second.trace_id),
            (trace.trace_id, trace.trace_id)
        );
        let mut seen = Vec::new();
        trace.each_try(|one| {
            let failure = one.failure.as_deref().map(str::to_owned);
            seen.push((
                one.span_id,
                one.backend.to_string(),
                one.ended.is_some(),
                failure,
            ));
        });
        let failure = Some("it broke".to_owned());
        assert_eq!(
            seen,
            [
                (first.span_id, "one".to_owned(), true, failure),
                (second.span_id, "two".to_owned(), false, None)
            ]
        );
    }

    #[test]
    fn tries_are_bounded() {
        let tree = crate::testing::Tree::new(&[]);
        let mut answer = tree.site("", &[]).get("/");
        let exchange = answer.exchange_mut();
        let trace = trace(exchange);
        for _ in 0..100 {
            begin_try(exchange, "one");
        }
        let mut count = 0;
        trace.each_try(|_| count += 1);
        assert_eq!(count, TRIES_MAX);
    }

    #[test]
    fn ids_are_not_zero_and_differ() {
        let ids = SpanIds::new();
        let mut seen = std::collections::HashSet::new();
        assert!((0..10_000).all(|_| seen.insert(ids.next())));
        assert!(!seen.contains(&0));
    }
}
