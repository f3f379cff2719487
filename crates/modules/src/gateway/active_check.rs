//! Health checks: asks backends whether they work, so that no request has to find out.
//!
//! A [`Checker`] is a thread with a small runtime and one task for each backend that has a `health-check`, and
//! one for each php-fpm with a `status-path` ([`fpm`](super::fpm)). A check reports to the backend's `health`,
//! which all workers read: one success brings a backend back, [`FAILURES_MAX`] failures in a row take it out
//! until the next success. A task ends when its backend is gone; the thread ends with the process.
//!
//! HTTP backends are sent a GET and must answer 2xx or 3xx. AJP13 has a request of its own for this (CPing).
//! For FastCGI, SCGI and uwsgi an accepted connection is enough: a real request would need a script that does
//! nothing, and would occupy one of few processes.

use std::io;
use std::pin::Pin;
use std::sync::Weak;
use std::task::Context;
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::proto::http1::{ResponseDecoder, ResponseEvent, ResponseLimits};
use petrel_engine::tls::TlsServer;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time;

use super::balance::stable_hash;
use super::health::Health;
use super::limits::CHECK_REPLY_BYTES_MAX;
use super::options::{BackendHost, HealthCheck, HostAddress, Protocol};
use super::stream::{BackendStream, HandshakeFailure, SocketAddress, is_own_shortage};

/// A backend that results are reported to. (A trait, so that tests need no whole backend.)
pub(crate) trait Checked: Send + Sync {
    /// Its health.
    fn health(&self) -> &Health;
}

/// A backend to be checked.
pub(crate) struct CheckTarget {
    /// The backend that results are reported to. When it is gone, the checks end.
    pub(crate) backend: Weak<dyn Checked>,
    /// Where it listens.
    pub(crate) address: SocketAddress,
    /// How to speak TLS with it; `None` in the clear.
    pub(crate) tls: Option<TlsServer>,
    /// Its protocol.
    pub(crate) protocol: Protocol,
    /// The URL path to ask for, and how often.
    pub(crate) check: HealthCheck,
    /// The Host field of the request.
    pub(crate) host: Vec<u8>,
    /// PROXY protocol version in front of the request: 0, 1 or 2.
    pub(crate) proxy_protocol: u8,
    /// The log that is told when the backend fails and when it is back.
    pub(crate) log: LogHandle,
}

/// The thread that checks backends, for all workers of a process.
pub(crate) struct Checker {
    /// Closing this channel ends the thread.
    tasks: mpsc::UnboundedSender<CheckerTask>,
}

/// Makes a task for the thread.
pub(crate) type CheckerTask = Box<dyn FnOnce() -> Pin<Box<dyn Future<Output = ()>>> + Send>;

impl Checker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start() -> io::Result<Checker> {
        let (tasks, mut received) = mpsc::unbounded_channel::<CheckerTask>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let thread = std::thread::Builder::new().name("petrel-health".to_owned());
        thread.spawn(move || {
            LocalSet::new().block_on(&runtime, async move {
                while let Some(task) = received.recv().await {
                    tokio::task::spawn_local(task());
                }
            });
        })?;
        Ok(Checker { tasks })
    }

    /// Runs `task` until it ends.
    pub(crate) fn run(&self, task: CheckerTask) {
        // Only a panic in the thread can have ended it. Then requests find out whether the backend works.
        let _ = self.tasks.send(task);
    }
}

impl CheckTarget {
    /// The health check of `host` at `address`, if it has one.
    pub(crate) fn of(
        host: &BackendHost,
        address: SocketAddress,
        tls: Option<TlsServer>,
        backend: Weak<dyn Checked>,
        log: LogHandle,
    ) -> Option<CheckTarget> {
        Some(CheckTarget {
            backend,
            address,
            protocol: host.protocol,
            check: host.health_check.clone()?,
            host: host_field(&host.address, tls.is_some()).into_bytes(),
            tls,
            proxy_protocol: host.proxy_protocol,
            log,
        })
    }

    /// The task that checks the backend until it is gone. To be run once for each backend.
    pub(crate) fn task(self) -> CheckerTask {
        Box::new(|| Box::pin(check_on(self)))
    }

    fn first_bytes(&self) -> &'static [u8] {
        first_bytes(self.tls.as_ref(), self.proxy_protocol)
    }
}

/// The PROXY header in front of the request. With TLS it was sent before the handshake.
pub(super) fn first_bytes(tls: Option<&TlsServer>, proxy_protocol: u8) -> &'static [u8] {
    match tls {
        Some(_) => b"",
        None => proxy_prefix(proxy_protocol),
    }
}

/// The Host field, as a client would send it.
fn host_field(address: &HostAddress, is_tls: bool) -> String {
    match address {
        HostAddress::Unix(_) => "localhost".to_owned(),
        HostAddress::Tcp(name, port) => {
            let is_bare_ipv6 = name.contains(':') && !name.starts_with('[');
            let name = if is_bare_ipv6 {
                &format!("[{name}]")
            } else {
                name
            };
            match port {
                80 if !is_tls => name.to_owned(),
                443 if is_tls => name.to_owned(),
                _ => format!("{name}:{port}"),
            }
        }
        // Leaves out the labels of service and protocol: `_http._tcp.example.org` becomes `example.org`.
        HostAddress::Srv(name) => {
            let labels = name.split('.').skip_while(|label| label.starts_with('_'));
            labels.collect::<Vec<_>>().join(".")
        }
    }
}

/// Checks one backend until it is gone.
async fn check_on(target: CheckTarget) {
    let interval = target.check.interval.max(INTERVAL_MIN);
    time::sleep(first_pause(&target, interval)).await;
    let mut failures = 0u32;
    let mut is_shortage_told = false;
    loop {
        let asked = time::timeout(interval.min(CHECK_TIME_MAX), ask(&target)).await;
        let result = asked.unwrap_or_else(|_| Err("it did not answer in time".into()));
        let Some(backend) = target.backend.upgrade() else {
            return;
        };
        match result {
            Ok(()) => {
                failures = 0;
                is_shortage_told = false;
                answered(&target, backend.health());
            }
            Err(CheckFailure::OwnShortage(error)) => {
                if !std::mem::replace(&mut is_shortage_told, true) {
                    tell_shortage(&target, &error);
                }
            }
            Err(CheckFailure::Backend(reason)) => {
                failures = failures.saturating_add(1);
                if failures >= FAILURES_MAX {
                    failed(&target, backend.health(), &reason);
                }
            }
        }
        drop(backend);
        time::sleep(interval).await;
    }
}

/// A fraction of the interval, so that not all backends are checked at the same time, and one backend not by
/// several servers at once.
fn first_pause(target: &CheckTarget, interval: Duration) -> Duration {
    let server = std::process::id().to_le_bytes();
    let hash = stable_hash(&[target.address.to_string().as_bytes(), &server]);
    interval * (hash % 1000) as u32 / 1000
}

fn answered(target: &CheckTarget, health: &Health) {
    if health.check_answered(now_ms()) {
        let address = &target.address;
        target.log.error(format_args!(
            "backend {address} answers its health check again"
        ));
    }
}

fn failed(target: &CheckTarget, health: &Health, reason: &str) {
    if health.check_failed() {
        let address = &target.address;
        target.log.error(format_args!(
            "backend {address} fails its health check and gets no requests until it answers: {reason}"
        ));
    }
}

fn tell_shortage(target: &CheckTarget, error: &io::Error) {
    let address = &target.address;
    target.log.error(format_args!(
        "(backend-connect) health checks of backend {address} are skipped until one can be made again: this server, not the backend, has no descriptors, memory or ports left: {error}"
    ));
}

/// Why a check failed.
enum CheckFailure {
    /// By the backend's fault: a sentence.
    Backend(String),
    /// This server has no descriptor, memory or port for a connection.
    OwnShortage(io::Error),
}

impl<S: Into<String>> From<S> for CheckFailure {
    fn from(sentence: S) -> CheckFailure {
        CheckFailure::Backend(sentence.into())
    }
}

/// Makes one check.
async fn ask(target: &CheckTarget) -> Result<(), CheckFailure> {
    let prefix = proxy_prefix(target.proxy_protocol);
    let tls = target.tls.as_ref();
    let stream = match target.address.connect_to(tls, prefix.to_vec()).await {
        Ok(stream) => stream,
        // A full queue is no failure: the backend is busy, and taking it out would lose the requests it works
        // on.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) if is_own_shortage(&error) => return Err(CheckFailure::OwnShortage(error)),
        Err(error) if HandshakeFailure::is(&error) => {
            return Err(format!("the TLS handshake failed: {error}").into());
        }
        Err(error) => return Err(error.to_string().into()),
    };
    match target.protocol {
        Protocol::Http => ask_http(stream, target).await?,
        Protocol::Ajp13 => ask_ajp13(stream, target).await?,
        Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi => {}
    }
    Ok(())
}

async fn ask_http(mut stream: BackendStream, target: &CheckTarget) -> Result<(), String> {
    let mut request = target.first_bytes().to_vec();
    request.extend_from_slice(b"GET ");
    request.extend_from_slice(&target.check.path);
    request.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    request.extend_from_slice(&target.host);
    request.extend_from_slice(b"\r\nUser-Agent: petrel-health-check\r\nConnection: close\r\n\r\n");
    let mut replies = ReceivedBytes::default();
    send(&mut stream, &request).await?;
    let mut decoder = ResponseDecoder::new(ResponseLimits {
        head_bytes_max: CHECK_REPLY_BYTES_MAX,
        ..ResponseLimits::default()
    });
    loop {
        let decoded = decoder
            .decode(replies.bytes())
            .map_err(|error| error.to_string())?;
        match decoded.event {
            ResponseEvent::Head => break,
            ResponseEvent::NeedMore if !replies.receive(&mut stream).await? => {
                let cut = decoder.end_of_input().err();
                return Err(cut.map_or_else(String::new, |error| error.to_string()));
            }
            _ => replies.consume(decoded.consumed),
        }
    }
    match decoder.head().status().0 {
        200..400 => Ok(()),
        code => Err(format!("it answers {code}")),
    }
}

/// CPing and CPong: AJP13's own check, one message in each direction.
async fn ask_ajp13(mut stream: BackendStream, target: &CheckTarget) -> Result<(), String> {
    let mut request = target.first_bytes().to_vec();
    request.extend_from_slice(&AJP13_PING);
    send(&mut stream, &request).await?;
    let mut replies = ReceivedBytes::default();
    while replies.bytes().len() < AJP13_PONG.len() {
        if !replies.receive(&mut stream).await? {
            return Err("it closed the connection".to_owned());
        }
    }
    if replies.bytes() == AJP13_PONG {
        Ok(())
    } else {
        Err("it does not answer an AJP13 ping".to_owned())
    }
}

/// The PROXY header of a connection that is made for no client: a form that the protocol has for health
/// checks.
pub(super) fn proxy_prefix(version: u8) -> &'static [u8] {
    match version {
        0 => b"",
        1 => b"PROXY UNKNOWN\r\n",
        // The signature, version 2 with command LOCAL, no addresses, no length.
        _ => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    }
}

/// What was received of a backend's reply and not consumed yet.
#[derive(Default)]
pub(super) struct ReceivedBytes {
    buffer: Vec<u8>,
}

impl ReceivedBytes {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.buffer.drain(..bytes.min(self.buffer.len()));
    }

    /// Reads once. False at the end of the reply.
    pub(super) async fn receive(&mut self, stream: &mut BackendStream) -> Result<bool, String> {
        let mut piece = [0; 4096];
        let read = std::future::poll_fn(|context| stream.poll_read(context, &mut piece));
        let received = read.await.map_err(|error| error.to_string())?;
        self.buffer
            .extend_from_slice(piece.get(..received).unwrap_or_default());
        Ok(received > 0)
    }
}

pub(super) async fn send(stream: &mut BackendStream, mut bytes: &[u8]) -> Result<(), String> {
    while !bytes.is_empty() {
        let write = |context: &mut Context<'_>| stream.poll_write(context, bytes);
        let sent = std::future::poll_fn(write).await;
        let sent = sent.map_err(|error| error.to_string())?;
        if sent == 0 {
            return Err("it takes nothing".to_owned());
        }
        bytes = bytes.get(sent..).unwrap_or_default();
    }
    Ok(())
}

/// Failures in a row that take a backend out. A single failure may be a restart of the backend.
pub(super) const FAILURES_MAX: u32 = 2;

/// The shortest interval between two checks, also if the configuration asks for a shorter one.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// A check that takes longer than this has failed, even if the interval is longer.
const CHECK_TIME_MAX: Duration = Duration::from_secs(10);

/// From this server: magic 0x1234; length 1; CPing.
const AJP13_PING: [u8; 5] = [0x12, 0x34, 0, 1, 10];

/// From the container: magic "AB"; length 1; CPong.
const AJP13_PONG: [u8; 5] = [b'A', b'B', 0, 1, 9];

/// Milliseconds of the monotonic clock, the same that the workers' clocks show.
#[expect(
    clippy::disallowed_methods,
    reason = "the thread that checks has no worker"
)]
pub(super) fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests;
