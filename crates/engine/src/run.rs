//! The life of one exchange: hooks, the pieces of its response, deadlines, the log.
//!
//! An [`ExchangeRun`] knows no wire format and no socket, and sets no timer. Its owner connects it with the
//! client: an HTTP/1 connection, a stream of an HTTP/2 connection, a subrequest, or a test. The owner
//!
//! 1. fills `request.head` and calls [`ExchangeRun::begin`];
//! 2. calls [`ExchangeRun::poll_answer`] until there is a response, and meanwhile receives the request body, as
//!    far as a hook wants it ([`ExchangeRun::receive`], [`ExchangeRun::complete_body`]);
//! 3. encodes [`ExchangeRun::answer_head`];
//! 4. takes the pieces of the body ([`ExchangeRun::poll_piece`]) as fast as the client takes them, and reports
//!    what it cannot take back any more, head included ([`ExchangeRun::account`]);
//! 5. reports the end: [`ExchangeRun::finish`] or [`ExchangeRun::abort`].
//!
//! Whenever a call is pending, the owner has to call again in the second [`ExchangeRun::due_s`] at the
//! latest.

use std::fmt::Arguments;
use std::io;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::method::Method;
use petrel_proto::status::Status;
use petrel_proto::url::UrlError;
use petrel_sys::pooled::Pooled;
use petrel_sys::socket::TcpPath;

use crate::body::{Body, InMemory, Piece};
use crate::cause::{CauseCode, ErrorCause};
use crate::cold_files::cause_of_error;
use crate::deadlines::Deadlines;
use crate::exchange::{ConnectionFacts, Exchange, Interim, holders};
use crate::ledger::{Nanos, Stage};
use crate::limits;
use crate::phase::{self, Walked};
use crate::settings::ConnectionScope;
use crate::throttle::{Bucket, Throttle};
use crate::trace;
use crate::waits;
use crate::worker::Worker;

/// An exchange, and its place in the pool of its worker.
pub struct ExchangeRun(Pooled<Exchange>);

/// What a response head has besides its fields, in every version of HTTP.
#[derive(Clone, Debug)]
pub struct AnswerHead {
    /// The status.
    pub status: Status,
    /// The value of Content-Length. `None`: there is no such field.
    pub length: Option<u64>,
    /// Whether a body follows, even an empty one.
    pub has_body: bool,
    /// Whether the connection adds Date, because no module has set it.
    pub adds_date: bool,
    /// Whether the connection adds the Server field of `server.tag`.
    pub adds_server: bool,
    /// The value of Server-Timing. `None`: the settings do not want it.
    pub server_timing: Option<Vec<u8>>,
}

impl Deref for ExchangeRun {
    type Target = Exchange;

    #[inline]
    fn deref(&self) -> &Exchange {
        &self.0
    }
}

impl DerefMut for ExchangeRun {
    #[inline]
    fn deref_mut(&mut self) -> &mut Exchange {
        &mut self.0
    }
}

/// Receiving the request.
impl ExchangeRun {
    /// A run on `worker` for a request on `connection`. The owner starts the ledger.
    pub fn new(worker: &Rc<Worker>, connection: ConnectionFacts) -> ExchangeRun {
        let exchange = match worker.take_exchange() {
            Some(mut exchange) => {
                exchange.connection = connection;
                exchange.id = worker.next_request_id();
                exchange
            }
            None => Box::new(Exchange::new(Rc::clone(worker), connection)),
        };
        ExchangeRun(exchange.into())
    }

    /// The request head is complete: parses the URL, and chooses the settings. `scope` has what was decided
    /// for the connection.
    ///
    /// # Errors
    /// The URL is wrong. The settings were chosen all the same.
    #[inline]
    pub fn begin(&mut self, scope: &ConnectionScope) -> Result<(), UrlError> {
        let exchange = &mut *self.0;
        if !exchange.is_subrequest() {
            exchange.worker.count_begun();
        }
        let request = &mut exchange.request;
        request.method = request.head.method();
        request.has_begun = true;
        let options = &exchange.worker.process().url_options;
        let parsed = request
            .url
            .parse(request.head.target(), request.method, options);
        exchange.settle(scope);
        trace::request_header(exchange);
        parsed
    }

    /// The end of [`ExchangeRun::begin`]: the request is parsed and its settings are chosen.
    #[inline]
    pub fn stamp_begin(&mut self) {
        let scope = self.scope.as_ref();
        let stage = match scope.is_some_and(|scope| scope.has_candidates()) {
            true => Stage::Match,
            false => Stage::Parse,
        };
        self.stamp(stage);
    }

    /// Answers 421 (RFC 9110 15.5.20) if the client's TLS session is for another host, whose certificates or
    /// rules for clients differ from those of the requested host. The client can open another connection for
    /// that host. Returns whether it did so.
    #[inline]
    pub fn refuse_misdirected(&mut self) -> bool {
        let is_misdirected = match (self.tls(), &self.settings.tls) {
            (None, _) => return false,
            (Some(tls), Some(host)) => !tls.is_for(host, self.request.head.host_without_port()),
            (Some(_), None) => true,
        };
        if is_misdirected {
            self.worker.shared().tls_counts().misdirected_request();
            let cause = format_args!(
                "the client has begun TLS for a host with other certificates or rules for clients"
            );
            self.refuse_head(Stage::Parse, CauseCode::Misdirected, cause);
        }
        is_misdirected
    }

    /// The stage of the time since the last stamp, while hooks run.
    pub fn stage(&self) -> Stage {
        let waits_in = self.progress.waits_in;
        waits_in.unwrap_or_else(|| self.progress.stage())
    }

    /// Runs hooks until there is a response or a hook needs the whole request body.
    #[inline]
    pub fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Walked> {
        loop {
            match ready!(phase::walk(self, context)) {
                Walked::NeedBody if self.request.body.is_complete() => {}
                walked => return Poll::Ready(walked),
            }
        }
    }

    /// The next interim response. An owner that does not call this sends none.
    pub fn take_interim(&mut self) -> Option<Interim> {
        self.run_state.interim.pop_front()
    }
}

/// Receiving the request body.
impl ExchangeRun {
    /// Whether `server.max-request-size` allows a body of `length` bytes; if not, the request is refused. The
    /// owner calls it with the announced length or, if there is none, with the number of bytes that have
    /// arrived.
    pub fn allows_body(&mut self, length: u64) -> bool {
        let bytes_max = self.settings.core.body_bytes_max;
        let is_allowed = bytes_max.is_none_or(|bytes_max| length <= bytes_max);
        if !is_allowed {
            let cause = format_args!("the body of {length} bytes is over server.max-request-size");
            self.refuse(Stage::Parse, CauseCode::BodyTooLarge, cause);
        }
        is_allowed
    }

    /// Stores decoded bytes of the body if a hook wants them. The owner waits for [`ExchangeRun::poll_room`]
    /// before it receives more.
    pub fn receive(&mut self, bytes: &[u8]) {
        let exchange = &mut *self.0;
        if !exchange.is_tunnel() {
            exchange.request.body_bytes += bytes.len() as u64;
        }
        exchange.request.body.receive(
            bytes,
            &exchange.worker.process().upload_directories,
            exchange.connection.client_key(),
        );
    }

    /// The body is complete, or there is none.
    #[inline]
    pub fn complete_body(&mut self) {
        self.request.body.complete();
    }

    /// The body is complete, and `trailers` follow it.
    pub fn complete_body_with(&mut self, trailers: HeaderBlock) {
        self.request.body.complete_with(trailers);
    }

    /// Waits until more of the body may be received. Also ready if the body cannot be stored;
    /// [`ExchangeRun::body_refusal`] tells.
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.request.body.poll_room(context)
    }

    /// Waits until the disk has taken enough of the body that more can be received, or all of a body that
    /// `is_received`. The client is not to blame for this part of the wait.
    pub(crate) fn poll_disk(&mut self, is_received: bool, context: &mut Context<'_>) -> Poll<()> {
        let body = &mut self.request.body;
        let waited = body.waits_for_disk();
        let polled = match is_received {
            true => body.poll_written(context),
            false => body.poll_room(context),
        };
        body.set_waits_for_disk(polled.is_pending());
        match (waited, polled.is_pending()) {
            (false, true) => {
                self.stamp_wait(Stage::RequestBody, holders::of_request_body);
            }
            (true, false) => {
                self.stamp_wait(Stage::RequestBody, holders::of_upload);
            }
            _ => {}
        }
        polled
    }

    /// Whether the rest of the body is received while the exchange continues.
    pub fn takes_stream(&self) -> bool {
        let body = &self.request.body;
        body.is_streamed() && body.failure().is_none()
    }

    /// Whether the run waits for the client to send more of a streamed body.
    pub fn waits_for_client(&self) -> bool {
        let body = &self.request.body;
        let wants_more = body.is_streamed() && body.is_wanted() && body.has_room();
        wants_more && !self.is_tunnel() && !body.is_complete()
    }

    /// The cause for refusing the request because its body cannot be stored, and the reason.
    pub fn body_refusal(&self) -> Option<(ErrorCause, String)> {
        let failure = self.request.body.failure()?;
        let code = match failure.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => CauseCode::BodyDiskFull,
            io::ErrorKind::TimedOut => CauseCode::BodyDiskTimeout,
            // There is no descriptor left for a temporary file.
            io::ErrorKind::ResourceBusy => CauseCode::BodyShortage,
            _ => CauseCode::BodyNotKept,
        };
        let what = format!("the request body cannot be kept: {failure}");
        Some((ErrorCause::from(code).with_error(failure), what))
    }

    /// Counts bytes that the client has sent for the body, framing included.
    pub fn body_moved(&mut self, bytes: u64) {
        self.run_state.body_pace.moved(bytes);
    }

    /// The client has sent more of a streamed body: restarts its timeout.
    pub fn renew_body_time(&mut self) {
        self.run_state.body_due_s = self.worker.clock().after(self.settings.core.read_idle_s);
    }

    /// The run waits for a body that a hook needs as a whole. Returns the second in which the patience with
    /// the client is over (`server.min-read-rate`).
    pub fn wait_for_body(&mut self) -> Option<u32> {
        let now_s = self.worker.clock().seconds();
        let rate = self.settings.core.read_rate_min;
        self.run_state.body_pace.wait(now_s, rate)
    }

    /// Stops measuring the client's pace: it is not known yet whether the run will wait for the client.
    #[inline]
    pub fn stop_body_pace(&mut self) {
        let now_s = self.worker.clock().seconds();
        self.run_state.body_pace.stop(now_s);
    }

    /// Whether the client should have sent more of a streamed body by now.
    pub fn is_body_late(&self) -> bool {
        let due_s = self.run_state.body_due_s;
        let is_late = due_s != 0 && due_s <= self.worker.clock().seconds();
        self.waits_for_client() && (is_late || self.is_body_slow())
    }

    /// The reason, for the log, for not waiting any longer for the request body.
    pub fn lateness_of_body(&self) -> String {
        match self.is_body_slow() {
            true => format!(
                "the client sent its request body at {} bytes a second, below server.min-read-rate = {};",
                self.run_state.body_pace.rate(self.worker.clock().seconds()),
                self.settings.core.read_rate_min.bytes_per_second
            ),
            false => "the request body came too slowly".to_owned(),
        }
    }

    /// Whether the run waits for the client, and the client is below `server.min-read-rate`.
    pub fn is_body_slow(&self) -> bool {
        let now_s = self.worker.clock().seconds();
        let rate = self.settings.core.read_rate_min;
        self.run_state.body_pace.is_over(now_s, rate)
    }

    /// The second in which the client must have sent more of a streamed body. The time runs only while the
    /// run waits for the client, and not while there is no room for what it could send.
    fn body_due_s(&mut self) -> u32 {
        if !self.waits_for_client() {
            self.run_state.body_due_s = 0;
            return Deadlines::NEVER;
        }
        if self.run_state.body_due_s == 0 {
            self.renew_body_time();
        }
        let slow_s = self.wait_for_body().unwrap_or(Deadlines::NEVER);
        slow_s.min(self.run_state.body_due_s)
    }
}

/// Sending the response.
impl ExchangeRun {
    /// What the response head has besides its fields. The owner calls this once for each response, before it
    /// takes pieces of the body; a body that is not sent is dropped. As long as the owner can take the head
    /// back, it does not account for it. From then on the response cannot be replaced.
    #[inline]
    pub fn answer_head(&mut self) -> AnswerHead {
        let (length, has_body) = self.settle_body();
        let exchange = &mut *self.0;
        if exchange.settings.core.error_cause_header
            && let Some(cause) = exchange.response.cause()
        {
            exchange
                .response
                .set("Petrel-Cause", cause.code.name().as_bytes());
        }
        let (status, own) = (exchange.response.status, exchange.response.own());
        let server_timing = match exchange.settings.core.server_timing {
            true => Some(server_timing(exchange)),
            false => None,
        };
        AnswerHead {
            status,
            length: length.filter(|_| !status.is_bodiless()),
            has_body,
            adds_date: !own.date,
            adds_server: !own.server,
            server_timing,
        }
    }

    /// The length of the body, and whether it is sent. Drops a body that is not.
    #[inline]
    pub(crate) fn settle_body(&mut self) -> (Option<u64>, bool) {
        let exchange = &mut *self.0;
        let response = &mut exchange.response;
        let is_head = exchange.request.head.method() == Method::Head;
        let length = match response.announced_length {
            Some(length) => Some(length),
            None => response.body.length(),
        };
        let is_made_up = is_head && response.is_length_unknown && length == Some(0);
        let length = length.filter(|_| !is_made_up);
        if is_head {
            // The access log shows this length when the body is gone.
            response.announced_length = length;
        }
        let has_body = !is_head && !response.status.is_bodiless();
        if !has_body && !exchange.run_state.is_tunnel {
            response.body = Body::Empty;
        }
        (length, has_body)
    }

    /// Lets the source of the body work: it passes on a streamed request body, or reads ahead. The owner
    /// calls this before each wait.
    #[inline]
    pub fn work(&mut self, context: &mut Context<'_>) {
        let Exchange {
            request, response, ..
        } = &mut *self.0;
        response.body.work(&mut request.body, context);
    }

    /// The next piece of the body; `None` is its end.
    #[inline]
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        match self.response.body {
            // Every body that was in memory ends here.
            Body::Empty => Poll::Ready(None),
            _ => self.pull(|body| body.poll_piece(context)),
        }
    }

    /// The trailers after the last piece. The owner calls this at the end of the body. Empty if there are
    /// none, or if the client cannot use them (RFC 9110 6.5.1).
    pub fn take_trailers(&mut self) -> HeaderBlock {
        let trailers = self.response.body.take_trailers();
        match trailers.is_empty() || self.request.head.takes_trailers() {
            true => trailers,
            false => HeaderBlock::new(),
        }
    }

    /// Like [`ExchangeRun::poll_piece`], with pieces in memory, for an owner that encodes or encrypts what it
    /// sends.
    pub fn poll_in_memory(
        &mut self,
        memory: &mut InMemory,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        self.pull(|body| body.poll_in_memory(memory, context))
    }

    #[inline]
    fn pull<T>(&mut self, poll: impl FnOnce(&mut Body) -> T) -> T {
        let (is_made_now, is_work) = match &self.response.body {
            Body::Source(source) => (true, source.is_work()),
            _ => (false, false),
        };
        if is_work && self.sent.bytes > 0 {
            self.stamp(Stage::Send);
        }
        let polled = poll(&mut self.response.body);
        // Only the first piece reads the clock here; later the owner does so after it has waited.
        if is_made_now && (self.sent.bytes == 0 || is_work) {
            let stage = self.response.body.stage();
            self.stamp(stage);
        }
        polled
    }

    /// Whether nothing of the response was sent and its body waits for a disk. If the disk fails, another
    /// response can still take its place, so the head waits as well.
    pub fn may_still_fail(&self) -> bool {
        self.sent.bytes == 0 && self.response.body.waits_for_disk()
    }

    /// How many bytes the bandwidth limits allow now, of `wanted` or more that the owner has ready. `None`: none;
    /// the task is woken to ask again.
    #[inline]
    pub fn poll_allowance(&mut self, wanted: u64, context: &mut Context<'_>) -> Option<u64> {
        match self.is_bandwidth_limited() {
            true => self.poll_throttle(wanted, context),
            false => Some(u64::MAX),
        }
    }

    #[cold]
    fn poll_throttle(&mut self, wanted: u64, context: &mut Context<'_>) -> Option<u64> {
        let now = self.worker.clock().now();
        self.throttle().poll_allowance(wanted, now, context)
    }

    /// Whether a bandwidth limit counts for the answer.
    #[inline]
    pub(crate) fn is_bandwidth_limited(&self) -> bool {
        let core = &self.settings.core;
        let own = core.connection_bytes_per_second | self.response.bytes_per_second_max;
        own > 0 || core.scope_throttle.is_some() || !self.run_state.client_buckets.is_empty()
    }

    /// The throttle of a response with a limit.
    #[cold]
    fn throttle(&mut self) -> &mut Throttle {
        let exchange = &mut *self.0;
        exchange.run_state.throttle.get_or_insert_with(|| {
            let core = &exchange.settings.core;
            let own = [
                (
                    "connection.kbytes-per-second",
                    core.connection_bytes_per_second,
                ),
                (
                    "X-LIGHTTPD-KBytes-per-second",
                    exchange.response.bytes_per_second_max,
                ),
            ];
            let own = own.into_iter().filter(|(_, limit)| *limit > 0);
            let own = own.map(|(name, limit)| Bucket::new(name, limit));
            let shared = exchange.worker.shared();
            let scope = core.scope_throttle.map(|scope| shared.scope_bucket(scope));
            let of_client = exchange.run_state.client_buckets.iter().cloned();
            Box::new(Throttle::new(own.chain(scope).chain(of_client)))
        })
    }

    /// [`ExchangeRun::account`] for a head that did not wait for an allowance. The bandwidth limits count it.
    #[inline]
    pub(crate) fn account_head(&mut self, bytes: u64) {
        if self.is_bandwidth_limited() {
            self.throttle();
        }
        self.account(bytes, 0);
    }

    /// The owner has sent `bytes` bytes that it cannot take back; `body_bytes` of them were of the body.
    /// After the first byte the response cannot be replaced ([`ExchangeRun::replace_answer`]).
    #[inline]
    pub fn account(&mut self, bytes: u64, body_bytes: u64) {
        self.sent.bytes += bytes;
        self.sent.body_bytes += body_bytes;
        let exchange = &mut *self.0;
        if let Some(throttle) = &mut exchange.run_state.throttle {
            throttle.sent(bytes, exchange.worker.clock().latest());
        }
    }

    /// The second of the worker's clock in which the owner has to call again at the latest: for a pending
    /// hook, for the source of the response body, and for the deadline of the request body.
    pub fn due_s(&mut self) -> u32 {
        let own_s = match self.progress.is_over() {
            true => self.response.body.wake_at_s().unwrap_or(Deadlines::NEVER),
            false => self.wake_at_s,
        };
        own_s.min(self.body_due_s())
    }
}

/// The value of Server-Timing. The time since the last stamp counts for the transform phase.
#[cold]
fn server_timing(exchange: &mut Exchange) -> Vec<u8> {
    exchange.stamp(Stage::Transform);
    exchange.ledger.server_timing()
}

/// The end of the exchange.
impl ExchangeRun {
    /// Refuses the request at any point before the response: the response is an error, and the rest of the
    /// request is not needed. The time since the last stamp belongs to `stage`.
    pub fn refuse(&mut self, stage: Stage, cause: impl Into<ErrorCause>, what: Arguments<'_>) {
        let cause = cause.into();
        self.log_failure(Stage::ReadHead.name(), cause, what);
        self.refuse_quietly(stage, cause);
    }

    /// Refuses the request because of its head, before any hook has run.
    pub fn refuse_head(&mut self, stage: Stage, cause: impl Into<ErrorCause>, what: Arguments<'_>) {
        self.refuse(stage, cause, what);
        phase::refused(self);
    }

    /// Like [`ExchangeRun::refuse`], without a line in the log; the owner has written one.
    pub fn refuse_quietly(&mut self, stage: Stage, cause: impl Into<ErrorCause>) {
        self.stamp(stage);
        phase::refuse(self, cause.into());
    }

    /// Replaces a response of which nothing was sent by an error; this works once. Returns false if it is too
    /// late.
    pub fn replace_answer(&mut self, cause: impl Into<ErrorCause>) -> bool {
        if self.sent.bytes > 0 || self.run_state.is_replacement || self.is_tunnel() {
            return false;
        }
        self.run_state.is_replacement = true;
        phase::refuse(self, cause.into());
        true
    }

    /// Replaces the response because the disk or the source of the body has failed with `error`. The new
    /// response may have a file, too, for example from a script.
    pub fn fail_answer(&mut self, error: &io::Error) -> bool {
        self.replace_answer(match error.kind() {
            // The backend has sent something that is no response.
            io::ErrorKind::InvalidData if ErrorCause::carried_by(error).is_none() => {
                CauseCode::GwReplyInvalid.into()
            }
            _ => cause_of_error(error),
        })
    }

    /// Whether the request was refused or its response replaced. Then the rest of its body is not needed.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.run_state.is_refused
    }

    /// What a failure means for the response, for the log.
    pub fn loss(&self) -> &'static str {
        match self.sent.bytes {
            0 => "the answer cannot be sent",
            _ => "the answer was cut short",
        }
    }

    /// All of the response was sent.
    #[inline]
    pub fn finish(&mut self) {
        self.finish_at(self.worker.clock().now());
    }

    /// The same for several exchanges that are complete at one time, `now`.
    pub(crate) fn finish_at(&mut self, now: Nanos) {
        self.sent.is_complete = true;
        self.run_state.throttle = None;
        self.ledger.stamp(Stage::Send, now);
        self.worker.count_request();
        phase::log(self);
    }

    /// Notes how fast the client took the response, if the worker had to wait for it on this way.
    #[inline]
    pub(crate) fn note_slow_client(&mut self, path: impl FnOnce() -> Option<TcpPath>) {
        if (self.ledger).was_in(&[Stage::ClientDrain, Stage::Throttle]) {
            self.note_waits_of_sending(path);
        }
    }

    #[cold]
    fn note_waits_of_sending(&mut self, path: impl FnOnce() -> Option<TcpPath>) {
        let waited = self.ledger.stage(Stage::ClientDrain);
        if waited >= limits::NOTED_WAIT_NANOS {
            let path = path();
            self.note_wait(Stage::ClientDrain, waited, |exchange, text| {
                waits::tell_slow_client(text, exchange.sent.bytes, waited, path);
            });
        }
        let throttled = self.ledger.stage(Stage::Throttle);
        if throttled >= limits::NOTED_WAIT_NANOS {
            self.note_wait(Stage::Throttle, throttled, |exchange, text| {
                if let Some(throttle) = &exchange.run_state.throttle {
                    write!(text, "a bandwidth limit: {}", throttle.holders());
                }
            });
        }
    }

    /// The client does not wait any longer: the time since the last stamp, with what the request waited for.
    /// `for_maker`: it waited for the source of its body. What belongs to no wait is of `stage`.
    pub fn abandon(&mut self, stage: Stage, for_maker: bool) {
        self.abandon_pending();
        if for_maker {
            self.stamp_wait(stage, holders::of_content);
        }
        self.stamp(stage);
    }

    fn abandon_pending(&mut self) {
        let Some(mut pending) = self.progress.pending.take() else {
            return;
        };
        let waited_in = self.progress.waits_in.take();
        if let Some(noted) = waited_in.and_then(|stage| self.stamp_pending(stage)) {
            self.note_wait(noted.stage, noted.nanos, |exchange, text| {
                pending.holder(exchange, noted.since, text);
            });
        }
        pending.abandon(self);
    }

    /// The response cannot be completed: logs the part that was sent. The time since the last stamp belongs
    /// to `stage`.
    pub fn abort(&mut self, stage: Stage, cause: Arguments<'_>) {
        self.stamp(stage);
        if self.settings.core.debug.state_handling {
            self.log_error(Stage::Send.name(), cause);
        }
        self.sent.keep_alive = false;
        phase::log(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use crate::testing::Site;

    const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

    fn answered(site: &Site) -> ExchangeRun {
        let mut run = site.unanswered(GET);
        run.refuse_quietly(Stage::Content, CauseCode::FileMissing);
        run
    }

    #[test]
    fn an_answer_is_replaced_once_and_not_behind_a_head_that_is_accounted_for() {
        let site = Site::new("", &[]);
        let broken = || io::Error::from(io::ErrorKind::InvalidData);
        let mut run = answered(&site);
        run.answer_head();
        assert!(run.fail_answer(&broken()), "its head can be taken back");
        assert_eq!(run.response.status, Status::BAD_GATEWAY);
        run.answer_head();
        assert!(!run.fail_answer(&broken()), "it is a replacement");
        let mut run = answered(&site);
        run.answer_head();
        run.account(9, 0);
        assert!(!run.fail_answer(&broken()), "its head has gone");
        assert_eq!(run.response.status, Status::NOT_FOUND);
    }

    #[tokio::test(flavor = "local")]
    async fn the_bandwidth_limit_of_an_answer_that_is_replaced_is_named() {
        let site = Site::new("", &[]);
        let mut run = answered(&site);
        let bucket = Bucket::new("few", 1024);
        bucket.take(10_000, run.worker.clock().now());
        run.limit_bandwidth(bucket);
        let allowed = std::future::poll_fn(|context| Poll::Ready(run.poll_allowance(9, context)));
        assert_eq!(allowed.await, None);
        assert!(run.fail_answer(&io::Error::from(io::ErrorKind::InvalidData)));
        assert_eq!(run.throttle().holders().to_string(), "few (1 KiB a second)");
    }

    #[test]
    fn an_answer_that_is_finished_is_complete_in_the_log() {
        let mut run = answered(&Site::new("", &[]));
        run.finish();
        assert!(run.sent.is_complete);
        let mut run = answered(&Site::new("", &[]));
        run.abort(Stage::Send, format_args!("the client left"));
        assert!(!run.sent.is_complete);
    }

    #[test]
    fn a_request_begins_once_when_its_head_is_complete_or_refused() {
        let site = Site::new("", &[]);
        let begun = || {
            site.worker().publish_metrics();
            site.worker().shared().metrics().workers()[0]
                .gauges
                .begun_per_s
        };
        let mut run = answered(&site);
        assert_eq!(begun(), 1);
        run.finish();
        assert_eq!(begun(), 0, "its connection is being closed");
        let facts = run.connection.clone();
        drop(run);
        let mut run = ExchangeRun::new(site.worker(), facts);
        assert_eq!(begun(), 0, "its head is incomplete");
        run.refuse_head(
            Stage::Parse,
            CauseCode::HeadMalformed,
            format_args!("it is wrong"),
        );
        run.finish();
        assert_eq!(begun(), 1);
    }

    #[test]
    fn interim_responses_without_fields_count_too() {
        let mut run = Site::new("", &[]).unanswered(GET);
        for _ in 0..limits::INTERIM_BYTES_MAX {
            run.inform(Status::PROCESSING, HeaderBlock::new());
        }
        let mut early = HeaderBlock::new();
        early.append("Link", b"</a.css>");
        run.inform(Status::EARLY_HINTS, early);
        let mut count = 0;
        while let Some(interim) = run.take_interim() {
            assert!(interim.fields.as_bytes().is_empty());
            count += 1;
        }
        assert!((100..1000).contains(&count), "{count}");
    }
}
