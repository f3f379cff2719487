//! The thread that sends spans to the collector.
//!
//! Workers put written spans into a bounded queue and never wait. The thread collects them for up to a
//! second, and sends what it has in one request. If the collector is away or busy, it tries again, later each
//! time, while the queue fills; what does not fit is dropped and counted. The log is told when sending begins
//! to fail and when it works again.
#![expect(clippy::disallowed_methods, reason = "the thread has no worker")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use petrel_engine::Exchange;
use petrel_engine::log::LogHandle;
use petrel_engine::proto::otlp::{ExportRequest, Value};
use petrel_engine::shared::lock;
use petrel_engine::tls::TlsServer;

use super::endpoint::{Answer, Collector};
use crate::gateway::trust::LoadedTrusts;

/// Where to send, and how.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) endpoint: Collector,
    /// Fields of each request.
    pub(super) fields: Vec<(String, String)>,
    /// The service's name.
    pub(super) service: String,
}

/// The way to the collector, for all workers.
#[derive(Default)]
pub struct Exporter {
    queue: OnceLock<SyncSender<Spans>>,
    counts: Arc<Counts>,
    /// Told by the thread when it has sent everything after [`Exporter::finish`].
    finished: Mutex<Option<Receiver<()>>>,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
    /// The process ends: nothing is collected any more, and nothing tried again.
    is_over: AtomicBool,
}

/// The spans of one request, as JSON objects separated by commas.
struct Spans {
    written: Vec<u8>,
    count: u64,
}

impl Exporter {
    /// Sends spans of `exchange`, if there is room in the queue.
    pub(super) fn send(
        &self,
        written: Vec<u8>,
        count: u64,
        exchange: &Exchange,
        destination: &Arc<Destination>,
    ) {
        let queue = self.queue.get_or_init(|| self.start(exchange, destination));
        if queue.try_send(Spans { written, count }).is_err() {
            self.counts.dropped.fetch_add(count, Relaxed);
        }
    }

    /// Whether a request was traced.
    pub(crate) fn is_used(&self) -> bool {
        self.queue.get().is_some()
    }

    /// How many spans the collector has taken.
    pub(crate) fn spans_sent(&self) -> u64 {
        self.counts.sent.load(Relaxed)
    }

    /// How many spans were lost.
    pub(crate) fn spans_dropped(&self) -> u64 {
        self.counts.dropped.load(Relaxed)
    }

    /// Sends what is in the queue, for at most `time`. The workers have ended.
    pub fn finish(&self, time: Duration) {
        self.counts.is_over.store(true, Relaxed);
        let Some(queue) = self.queue.get() else {
            return;
        };
        // An empty message wakes the thread. If the queue is full, it is awake.
        let _ = queue.try_send(Spans {
            written: Vec::new(),
            count: 0,
        });
        if let Some(finished) = lock(&self.finished).take() {
            let _ = finished.recv_timeout(time);
        }
    }

    fn start(&self, exchange: &Exchange, destination: &Arc<Destination>) -> SyncSender<Spans> {
        let (queue, received) = sync_channel(QUEUE_MAX);
        let (done, finished) = sync_channel(1);
        *lock(&self.finished) = Some(finished);
        let endpoint = &destination.endpoint;
        let trusts = LoadedTrusts::of(&exchange.worker);
        let sender = Sender {
            destination: Arc::clone(destination),
            tls: endpoint
                .tls_name()
                .map(|name| trusts.authorized(None, name)),
            counts: Arc::clone(&self.counts),
            log: exchange.settings.core.error_log.clone(),
            is_failing: false,
        };
        let thread = std::thread::Builder::new().name("petrel-otel".to_owned());
        // Without the thread the queue has no receiver, so that all spans are dropped and counted.
        let _ = thread.spawn(move || {
            sender.run(&received);
            let _ = done.try_send(());
        });
        queue
    }
}

struct Sender {
    destination: Arc<Destination>,
    tls: Option<TlsServer>,
    counts: Arc<Counts>,
    log: LogHandle,
    is_failing: bool,
}

impl Sender {
    /// Sends until the process ends.
    fn run(mut self, received: &Receiver<Spans>) {
        while let Ok(first) = received.recv() {
            let is_over = self.is_over();
            let (request, count) = self.collect(first, received);
            if count > 0 {
                self.send(&request, count);
            }
            // The last request may have left some.
            if is_over && count < SPANS_MAX {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.counts.is_over.load(Relaxed)
    }

    /// Collects spans for a request, until there are many or the first one has waited for [`COLLECT`].
    fn collect(&self, first: Spans, received: &Receiver<Spans>) -> (Vec<u8>, u64) {
        let service = Value::Text(self.destination.service.as_bytes());
        let version = env!("CARGO_PKG_VERSION");
        let resource = [("service.name", service)];
        let mut request = ExportRequest::new(&resource, ("petrel", version));
        let (mut count, mut bytes) = (0, 0);
        let due = Instant::now() + COLLECT;
        let mut next = Ok(first);
        while let Ok(spans) = next {
            if spans.count > 0 {
                request.add_written(&spans.written);
                count += spans.count;
                bytes += spans.written.len();
            }
            if count >= SPANS_MAX || bytes >= BYTES_MAX {
                break;
            }
            next = match self.is_over() {
                true => received.try_recv().map_err(|_| RecvTimeoutError::Timeout),
                false => received.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
        }
        (request.finish(), count)
    }

    /// Sends one request, several times if need be.
    fn send(&mut self, request: &[u8], count: u64) {
        let mut pause = PAUSE_MIN;
        loop {
            let Destination {
                endpoint, fields, ..
            } = &*self.destination;
            let answer = endpoint.post(request, fields, self.tls.as_ref());
            let (why, wanted_pause) = match answer {
                Answer::Taken => {
                    self.counts.sent.fetch_add(count, Relaxed);
                    if std::mem::take(&mut self.is_failing) {
                        self.log
                            .error(format_args!("otel: {endpoint} takes spans again"));
                    }
                    return;
                }
                Answer::Refused(why) => {
                    self.fails(&why);
                    break;
                }
                Answer::Later(why, pause) => (why, pause),
            };
            self.fails(&why);
            if self.is_over() || pause > PAUSE_MAX {
                break;
            }
            // Short sleeps, so that the end of the process is noticed.
            let until = Instant::now() + wanted_pause.unwrap_or(pause).min(PAUSE_MAX);
            while Instant::now() < until && !self.is_over() {
                std::thread::sleep(Duration::from_millis(50));
            }
            pause *= 2;
        }
        self.counts.dropped.fetch_add(count, Relaxed);
    }

    fn fails(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let endpoint = &self.destination.endpoint;
            self.log.error(format_args!(
                "otel: {endpoint} does not take spans, so that some will be lost: {why}"
            ));
        }
    }
}

/// How many requests may wait to be sent away.
const QUEUE_MAX: usize = 2048;

/// How long spans are collected.
const COLLECT: Duration = Duration::from_secs(1);

/// How many spans a request to the collector has at most, but for those of its last request.
const SPANS_MAX: u64 = 512;

/// The same in bytes.
const BYTES_MAX: usize = 1 << 20;

/// How long the first pause before another try is. Each one is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause. After it the spans are dropped.
const PAUSE_MAX: Duration = Duration::from_secs(16);
