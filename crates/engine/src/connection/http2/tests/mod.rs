mod client;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::ready;
use std::time::Duration;

use bytes::Bytes;
use petrel_proto::http2::{AfterFrame, ErrorCode, Setting};
use petrel_proto::method::Method;
use petrel_proto::status::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::body::{Body, BodySource, Piece, ReadAhead, RequestBody};
use crate::exchange::Exchange;
use crate::file_cache::FileEntry;
use crate::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use crate::testing::Site;
use crate::worker::{Cut, Drain, Worker};
use client::Client;

const MORE: AfterFrame = AfterFrame::More;
const END: AfterFrame = AfterFrame::EndOfStream;

/// Answers by the path: `/echo` with the body of the request, `/stream` with the same and its trailers while
/// it comes, `/bytes/N` with so many bytes, `/numbers/N` with so many that tell their place, `/pieces/N` with
/// so many pieces, `/file/N` with a file of so many zeroes, `/wait` and `/backend` never, `/hints` behind 103, `/tunnel` by what comes through it.
static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_paths",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        configure.add(Phase::Translate, Paths);
        configure.add(Phase::Log, Logs);
        Ok(())
    },
};

thread_local! {
    /// How many requests for `/wait` have been dropped.
    static DROPPED: Cell<u32> = const { Cell::new(0) };
    /// Path, status, whether the answer is complete, of each request in the order of the log.
    static LOGGED: RefCell<Vec<(String, u16, bool)>> = RefCell::default();
}

struct Paths;

struct Logs;

impl Hook for Logs {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = String::from_utf8_lossy(exchange.request.url.path()).into_owned();
        let (status, is_complete) = (exchange.response.status.0, exchange.sent.is_complete);
        LOGGED.with_borrow_mut(|logged| logged.push((path, status, is_complete)));
        Outcome::Next
    }
}

impl Hook for Paths {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let path = String::from_utf8_lossy(exchange.request.url.path()).into_owned();
        let mut parts = path.split('/').skip(1);
        let (what, number) = (parts.next().unwrap_or_default(), parts.next());
        let number: usize = number.and_then(|number| number.parse().ok()).unwrap_or(0);
        let body = match what {
            "echo" if !exchange.request.body.is_complete() => return Outcome::NeedBody,
            "echo" => Body::from(exchange.request.body.bytes().unwrap_or_default().to_vec()),
            "bytes" => Body::from(vec![b'x'; number]),
            "numbers" => Body::from(numbers(number)),
            "file" => {
                let file = file_of(number);
                let range = 0..number as u64;
                Body::Piece(Piece::File { file, range })
            }
            "pieces" => Body::Source(Box::new(Pieces { left: number })),
            "stream" => {
                exchange.request.body.stream(ReadAhead::Bounded);
                Body::Source(Box::<Through>::default())
            }
            "tunnel" => {
                exchange.response.answer(Status::SWITCHING_PROTOCOLS);
                exchange.response.body = Body::Source(Box::<Through>::default());
                exchange.become_tunnel(ReadAhead::Bounded);
                return Outcome::Answer;
            }
            "half-tunnel" => {
                exchange.response.answer(Status::SWITCHING_PROTOCOLS);
                let clock = exchange.worker.clock();
                exchange.response.body = Body::Source(Box::new(HalfTunnel {
                    due_s: clock.after(number as u32),
                    worker: Rc::clone(&exchange.worker),
                }));
                exchange.become_tunnel(ReadAhead::Bounded);
                return Outcome::Answer;
            }
            "early" => {
                exchange.request.body.stream(ReadAhead::Bounded);
                Body::from(vec![b'x'; number])
            }
            "hints" => {
                let mut fields = HeaderBlock::new();
                fields.append("Link", b"</a.css>");
                exchange.inform(Status::EARLY_HINTS, fields);
                return Outcome::Later(Box::new(Later(Box::pin(tokio::time::sleep(
                    Duration::from_millis(5),
                )))));
            }
            "gives-up" => {
                exchange.request.body.stream(ReadAhead::Bounded);
                let clock = exchange.worker.clock();
                Body::Source(Box::new(GivesUp(HalfTunnel {
                    due_s: clock.after(number as u32),
                    worker: Rc::clone(&exchange.worker),
                })))
            }
            "wait" => return Outcome::Later(Box::new(Waits)),
            "backend" => {
                let reader = ReadsAtItsEnd(Rc::clone(&exchange.worker));
                if exchange.request.method == Method::Post {
                    exchange.request.body.stream(ReadAhead::Bounded);
                }
                return Outcome::Later(Box::new(reader));
            }
            _ => return Outcome::Next,
        };
        exchange.response.answer(Status::OK);
        exchange.response.append("Connection", b"close");
        exchange.response.body = body;
        Outcome::Answer
    }
}

struct Later(Pin<Box<tokio::time::Sleep>>);

impl Pending for Later {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        ready!(self.0.as_mut().poll(context));
        exchange.response.answer(Status::OK);
        Poll::Ready(Outcome::Answer)
    }
}

struct Waits;

impl Pending for Waits {
    fn poll(&mut self, _: &mut Exchange, _: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Pending
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        DROPPED.set(DROPPED.get() + 1);
    }
}

/// Like a request to a backend: it reads what the backend has sent before it gives the backend's connection
/// back.
struct ReadsAtItsEnd(Rc<Worker>);

impl Pending for ReadsAtItsEnd {
    fn poll(&mut self, _: &mut Exchange, _: &mut Context<'_>) -> Poll<Outcome> {
        Poll::Pending
    }
}

impl Drop for ReadsAtItsEnd {
    fn drop(&mut self) {
        assert_eq!(self.0.receive_buffer().len(), limits::RECEIVE_BUFFER_BYTES);
        DROPPED.set(DROPPED.get() + 1);
    }
}

/// So many bytes, in which neighbouring bytes cannot be swapped unnoticed.
fn numbers(count: usize) -> Vec<u8> {
    let numbers = (0_u32..).flat_map(u32::to_be_bytes);
    numbers.take(count).collect()
}

/// A file of so many zeroes, which has no name.
fn file_of(count: usize) -> Rc<FileEntry> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("petrel-http2-file-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = std::fs::File::create_new(&path).expect("a new file");
    file.set_len(count as u64).expect("it grows");
    let file = std::fs::File::open(&path).expect("it is there");
    std::fs::remove_file(&path).expect("it is there");
    FileEntry::from_file(file, b"/test").expect("a regular file")
}

struct Pieces {
    left: usize,
}

impl BodySource for Pieces {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        let Some(left) = self.left.checked_sub(1) else {
            return Poll::Ready(None);
        };
        // Every second poll is pending.
        self.left = left;
        if left % 2 == 1 {
            context.waker().wake_by_ref();
            self.left = left + 1 - usize::from(WOKEN.replace(!WOKEN.get()));
            if self.left > left {
                return Poll::Pending;
            }
        }
        Poll::Ready(Some(Ok(Piece::Bytes(Bytes::from_static(b"piece")))))
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

thread_local! {
    static WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// A backend that ends its side of a tunnel at once, and is given up in a certain second.
struct HalfTunnel {
    worker: Rc<Worker>,
    due_s: u32,
}

impl BodySource for HalfTunnel {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Poll::Ready(None)
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn wake_at_s(&self) -> Option<u32> {
        Some(self.due_s)
    }

    fn has_failed(&self) -> bool {
        self.due_s <= self.worker.clock().seconds()
    }
}

/// An answer without end whose source gives the request body up in a certain second.
struct GivesUp(HalfTunnel);

impl BodySource for GivesUp {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Poll::Pending
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn work(&mut self, request_body: &mut RequestBody, _: &mut Context<'_>) {
        if self.0.has_failed() {
            request_body.give_up();
        }
    }

    fn wake_at_s(&self) -> Option<u32> {
        Some(self.0.due_s)
    }
}

/// The request body, sent back while it comes.
#[derive(Default)]
struct Through {
    bytes: Vec<u8>,
    taken: u64,
    is_over: bool,
    trailers: HeaderBlock,
}

impl BodySource for Through {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        match std::mem::take(&mut self.bytes) {
            bytes if !bytes.is_empty() => Poll::Ready(Some(Ok(Piece::Bytes(bytes.into())))),
            _ if self.is_over => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        std::mem::take(&mut self.trailers)
    }

    fn work(&mut self, request_body: &mut RequestBody, _: &mut Context<'_>) {
        if self.bytes.is_empty()
            && let Some(bytes) = request_body.spool().in_memory(self.taken)
        {
            self.bytes = bytes.to_vec();
            self.taken += self.bytes.len() as u64;
            request_body.spool_mut().release(self.taken);
        }
        self.is_over = request_body.is_complete() && self.taken == request_body.received();
        self.trailers = request_body.trailers().clone();
    }
}

const H2C: &str = "server.h2c = \"enable\"\nserver.document-root = \"/\"\n";

fn site() -> Site {
    Site::new(H2C, &[&MODULE])
}

fn site_with(config: &str) -> Site {
    Site::new(&format!("{H2C}{config}"), &[&MODULE])
}

/// Puts the worker's clock forward, and wakes the connections whose deadlines have passed.
async fn skip(site: &Site, seconds: u64) {
    skip_time(site, Duration::from_secs(seconds)).await;
}

async fn skip_time(site: &Site, time: Duration) {
    let clock = site.worker().clock();
    clock.skip(time);
    site.worker().deadlines.sweep(clock.seconds());
    tokio::task::yield_now().await;
}

fn number(code: ErrorCode) -> u32 {
    code.number()
}

#[tokio::test(flavor = "local")]
async fn many_requests_are_answered_at_the_same_time() {
    let site = site();
    let mut client = Client::new(&site);
    for id in (1..100).step_by(2) {
        match id % 10 {
            1 => client.get(id, "/bytes/10"),
            3 => client.get(id, "/bytes/100000"),
            5 => client.get(id, "/pieces/50"),
            7 => {
                client.request(id, "POST", "/echo", MORE);
                client.data(id, b"abc", MORE);
                client.data(id, b"def", END);
            }
            _ => client.request(id, "HEAD", "/bytes/7", END),
        }
    }
    for id in (1..100).step_by(2) {
        let answer = client.answer(id).await;
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(answer.field("connection"), None, "{answer:?}");
        assert!(answer.field("date").is_some(), "{answer:?}");
        assert!(answer.field("server").is_some(), "{answer:?}");
        let length = match id % 10 {
            1 => 10,
            3 => 100_000,
            5 => 250,
            7 => 6,
            _ => 0,
        };
        assert_eq!(answer.body.len(), length, "{id}");
        assert_eq!(answer.reset, None, "{id}");
    }
    assert_eq!(client.answers[&9].field("content-length"), Some("7"));
    assert_eq!(client.answers[&7].body, b"abcdef");
}

#[tokio::test(flavor = "local")]
async fn what_comes_in_pieces_is_understood_as_what_comes_at_once() {
    let site = site();
    let mut whole = Client::new(&site);
    whole.get(1, "/bytes/3");
    whole.request_with(3, "POST", "/echo", &[("content-length", "5")], MORE);
    whole.data(3, b"hello", END);
    whole.get(5, "/nothing");
    whole.request(7, "POST", "/stream", MORE);
    whole.data(7, b"sum", MORE);
    whole.trailers(7, &[("x-sum", "1"), ("a_b", "2"), ("set-cookie", "x")]);
    let all = std::mem::take(&mut whole.out);
    for split in 1..all.len() {
        let mut client = Client::silent(&site);
        for part in [&all[..split], &all[split..]] {
            client.out.extend_from_slice(part);
            client.flush().await;
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(client.answer(1).await.body, b"xxx", "{split}");
        assert_eq!(client.answer(3).await.body, b"hello", "{split}");
        assert_eq!(client.answer(5).await.status(), 404, "{split}");
        let stream = client.answer(7).await;
        assert_eq!(
            (&stream.body[..], &*stream.trailers),
            (&b"sum"[..], "x-sum: 1\n")
        );
    }
}

#[tokio::test(flavor = "local")]
async fn trailers_end_an_answer_with_a_body_or_without() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(10)]);
    client.opens_windows = false;
    let trailers = [("x-sum", "1")];
    for (id, body) in [(1, &b""[..]), (3, b"0123456789"), (5, b"0123456789abc")] {
        client.request(id, "POST", "/stream", MORE);
        client.data(id, body, MORE);
        client.trailers(id, &trailers);
    }
    for (id, path) in [(7, "/echo"), (9, "/bytes/3")] {
        client.request(id, "POST", path, MORE);
        client.trailers(id, &trailers);
    }
    client.settle().await;
    for (id, body) in [(1, &b""[..]), (3, b"0123456789")] {
        let answer = &client.answers[&id];
        assert!(answer.is_over && answer.reset.is_none(), "{answer:?}");
        assert_eq!((&answer.body[..], &*answer.trailers), (body, "x-sum: 1\n"));
    }
    let held = &client.answers[&5];
    assert!(!held.is_over && held.trailers.is_empty(), "{held:?}");
    client.open_window(5, 10);
    let answer = client.answer(5).await;
    assert_eq!(answer.body, b"0123456789abc");
    assert_eq!(answer.trailers, "x-sum: 1\n");
    for id in [7, 9] {
        let answer = client.answer(id).await;
        assert_eq!(
            (answer.status(), &*answer.trailers),
            (200, ""),
            "{answer:?}"
        );
    }
}

#[tokio::test(flavor = "local")]
async fn an_answer_is_sent_as_far_as_the_windows_are_open() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(10)]);
    client.opens_windows = false;
    client.get(1, "/bytes/25");
    client.get(3, "/bytes/0");
    client.settle().await;
    assert_eq!(client.answers[&1].body.len(), 10);
    assert!(client.answers[&3].is_over, "it needs no window");
    client.open_window(1, 7);
    client.settle().await;
    assert_eq!(client.answers[&1].body.len(), 17);
    client.open_window(1, 8);
    assert_eq!(client.answer(1).await.body.len(), 25);
}

#[tokio::test(flavor = "local")]
async fn the_window_of_the_connection_holds_back_what_is_urgent_as_well() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(1 << 20)]);
    client.opens_windows = false;
    client.get(1, "/bytes/65535");
    client.answer(1).await;
    client.request_with(3, "GET", "/bytes/10", &[("priority", "u=5")], END);
    client.request_with(5, "GET", "/bytes/10", &[("priority", "u=0")], END);
    client.settle().await;
    assert!([3, 5].iter().all(|id| client.answers[id].body.is_empty()));
    client.open_window(0, 10);
    client.settle().await;
    assert!(client.answers[&5].is_over && !client.answers[&3].is_over);
    client.open_window(0, 10);
    client.answer(3).await;
}

#[tokio::test(flavor = "local")]
async fn a_reset_drops_the_request_and_what_works_for_it() {
    let site = site();
    let before = DROPPED.get();
    let mut client = Client::new(&site);
    client.get(1, "/wait");
    client.get(3, "/bytes/1");
    client.answer(3).await;
    assert_eq!(DROPPED.get(), before);
    client.reset(1);
    client.get(5, "/bytes/1");
    client.answer(5).await;
    assert_eq!(DROPPED.get(), before + 1);
    LOGGED.with_borrow(|logged| assert!(logged.contains(&("/wait".to_owned(), 0, false))));
}

#[tokio::test(flavor = "local")]
async fn a_request_that_ends_while_input_is_taken_may_read_what_its_backend_has_sent() {
    let site = site_with("server.max-request-size = 1");
    // The client resets the stream, makes a stream error, sends a body that is too long, makes a connection
    // error.
    let by_reset = |client: &mut Client| client.reset(1);
    let by_window = |client: &mut Client| client.open_window(1, 0x7fff_ffff);
    let by_length = |client: &mut Client| client.data(1, &[b'x'; 2000], MORE);
    let by_fault = |client: &mut Client| client.data(0, b"x", MORE);
    let ends: [fn(&mut Client); 4] = [by_reset, by_window, by_length, by_fault];
    for (case, end) in ends.into_iter().enumerate() {
        let before = DROPPED.get();
        let mut client = Client::new(&site);
        client.request(1, "POST", "/backend", MORE);
        client.get(3, "/bytes/1");
        client.answer(3).await;
        assert_eq!(DROPPED.get(), before, "{case}");
        end(&mut client);
        client.get(5, "/bytes/1");
        if case == 3 {
            client.until_closed().await;
        } else {
            client.answer(5).await;
        }
        assert_eq!(DROPPED.get(), before + 1, "{case}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_bandwidth_limit_leaves_no_hole_in_an_answer() {
    for limit in ["connection", "server"] {
        let site = site_with(&format!("{limit}.kbytes-per-second = 400"));
        let mut client = Client::new(&site);
        let length = 150_000;
        client.get(1, &format!("/numbers/{length}"));
        site.with_clock(client.answer(1)).await;
        assert!(client.answers[&1].body == numbers(length), "{limit}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_client_that_leaves_ends_all_of_its_requests() {
    let site = site();
    let before = DROPPED.get();
    let mut client = Client::new(&site);
    client.get(1, "/wait");
    client.get(3, "/wait");
    client.settle().await;
    let Client { socket, served, .. } = client;
    drop(socket);
    served.await.expect("the connection ends");
    assert_eq!(DROPPED.get(), before + 2);
}

#[tokio::test(flavor = "local")]
async fn a_body_is_passed_on_while_it_comes_and_one_stalled_upload_stops_no_other() {
    // All of the body is below the limit.
    let site = site_with("server.max-request-size = 1000");
    let mut client = Client::new(&site);
    // No hook takes this one.
    client.request(1, "POST", "/wait", MORE);
    for _ in 0..4 {
        client.data(1, &[b'x'; 16_000], MORE);
    }
    client.request(3, "POST", "/stream", MORE);
    client.settle().await;
    assert_eq!(client.answers[&3].heads.len(), 1, "its head goes ahead");
    for _ in 0..40 {
        client.data(3, &[b'y'; 16_000], MORE);
        client.settle().await;
    }
    client.data(3, b"", END);
    assert_eq!(client.answer(3).await.body.len(), 640_000);
}

#[tokio::test(flavor = "local")]
async fn uploads_that_wait_for_a_backend_stop_no_other() {
    let site = site();
    let mut client = Client::new(&site);
    client.settle().await;
    for id in (1..=39).step_by(2) {
        client.request(id, "POST", "/backend", MORE);
        while client.upload(id, 1_000_000) > 0 {
            client.settle().await;
        }
    }
    // No upload can go on, because the backends read nothing. The clients are not late.
    skip(&site, 65).await;
    client.settle().await;
    assert!(client.answers.is_empty(), "{:?}", client.answers);
    client.request(41, "POST", "/stream", MORE);
    let mut left = 1_000_000;
    while left > 0 {
        let sent = client.upload(41, left);
        assert!(sent > 0, "it has a window");
        left -= sent;
        client.settle().await;
    }
    client.data(41, b"", END);
    assert_eq!(client.answer(41).await.body.len(), 1_000_000);
}

#[tokio::test(flavor = "local")]
async fn what_is_held_of_a_body_that_is_given_up_opens_the_connections_window() {
    let site = site();
    let mut client = Client::new(&site);
    client.settle().await;
    let window = client.windows[&0];
    client.request(1, "POST", "/gives-up/5", MORE);
    while client.upload(1, 1_000_000) > 0 {
        client.settle().await;
    }
    assert!(client.windows[&0] <= window - 60_000, "it is held");
    skip(&site, 7).await;
    client
        .until(|client| client.windows[&0] > window - 32_768)
        .await;
    assert!(!client.answers.contains_key(&1) || !client.answers[&1].is_over);
}

#[tokio::test(flavor = "local")]
async fn a_client_that_waits_to_be_asked_is_asked_and_early_hints_go_ahead() {
    let site = site();
    let mut client = Client::new(&site);
    let expects = [("expect", "100-continue")];
    client.request_with(1, "POST", "/echo", &expects, MORE);
    client.request_with(3, "POST", "/bytes/2", &expects, MORE);
    client.get(5, "/hints");
    client.until(|client| client.answers.contains_key(&1)).await;
    assert_eq!(client.answers[&1].status(), 100);
    client.data(1, b"body", END);
    assert_eq!(client.answer(1).await.body, b"body");
    assert_eq!(client.answer(3).await.heads.len(), 1, "it was not asked");
    let hints = client.answer(5).await;
    assert_eq!(hints.heads.len(), 2);
    assert_eq!(hints.heads[0], ":status: 103\nlink: </a.css>\n");
}

#[tokio::test(flavor = "local")]
async fn a_body_that_is_too_long_is_refused() {
    let site = site_with("server.max-request-size = 1");
    let mut client = Client::new(&site);
    client.request_with(1, "POST", "/echo", &[("content-length", "2000")], MORE);
    client.request(3, "POST", "/echo", MORE);
    client.data(3, &[b'x'; 1000], MORE);
    client.settle().await;
    assert!(!client.answers.contains_key(&3));
    client.data(3, &[b'x'; 1000], MORE);
    for id in [1, 3] {
        assert_eq!(client.answer(id).await.status(), 413, "{id}");
    }
    // The server resets the stream a moment later.
    skip(&site, 5).await;
    client
        .until(|client| client.answers[&3].reset.is_some())
        .await;
    assert_eq!(client.answers[&3].reset, Some(number(ErrorCode::NoError)));
}

#[tokio::test(flavor = "local")]
async fn a_body_that_is_too_long_behind_the_head_of_its_answer_costs_the_stream() {
    let site = site_with("server.max-request-size = 1");
    let mut client = Client::new(&site);
    client.request(1, "POST", "/stream", MORE);
    client.data(1, &[b'x'; 1000], MORE);
    client.settle().await;
    assert_eq!(client.answers[&1].body.len(), 1000);
    client.data(1, &[b'x'; 100], MORE);
    client
        .until(|client| client.answers[&1].reset.is_some())
        .await;
    assert_eq!(client.answers[&1].reset, Some(number(ErrorCode::Cancel)));
}

#[tokio::test(flavor = "local")]
async fn a_body_that_the_method_does_not_allow_is_refused_whenever_it_comes() {
    let site = site();
    for method in ["GET", "HEAD"] {
        let mut client = Client::new(&site);
        client.request(1, method, "/bytes/1", MORE);
        client.data(1, b"x", END);
        assert_eq!(client.answer(1).await.status(), 400);
        client.request(3, method, "/bytes/1", MORE);
        client.settle().await;
        assert!(!client.answers.contains_key(&3));
        client.data(3, b"x", END);
        assert_eq!(client.answer(3).await.status(), 400);
        client.request(5, method, "/bytes/1", MORE);
        client.settle().await;
        client.data(5, b"", END);
        assert_eq!(client.answer(5).await.status(), 200);
    }
    let site = site_with("server.http-parseopts = ( \"method-get-body\" => \"enable\" )");
    let mut client = Client::new(&site);
    client.request(1, "GET", "/echo", MORE);
    client.data(1, b"x", END);
    assert_eq!(client.answer(1).await.body, b"x");
}

#[tokio::test(flavor = "local")]
async fn a_body_that_comes_too_slowly_is_refused() {
    let site = site();
    let mut client = Client::new(&site);
    client.request(1, "POST", "/echo", MORE);
    client.get(3, "/wait");
    client.settle().await;
    skip(&site, 65).await;
    assert_eq!(client.answer(1).await.status(), 408);
    assert!(!client.answers.contains_key(&3));
}

/// It takes so long because the client waits for a moment after each byte.
#[tokio::test(flavor = "local")]
async fn a_body_that_trickles_is_refused_while_all_of_it_is_awaited() {
    for period_s in [1, 8] {
        let site = site_with("server.max-read-idle = 10");
        let mut client = Client::new(&site);
        client.request(1, "POST", "/echo", MORE);
        for _ in 0..20 {
            client.data(1, b"a", MORE);
            client.settle().await;
            if client.answers.contains_key(&1) {
                break;
            }
            skip(&site, period_s).await;
        }
        assert_eq!(client.answer(1).await.status(), 408, "{period_s}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_stream_without_a_window_is_lost_while_another_is_sent() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(0)]);
    client.opens_windows = false;
    client.open_window(0, 1 << 30);
    client.get(1, "/bytes/50000000");
    client.open_window(1, 1 << 30);
    client.get(3, "/bytes/25");
    client.until(|client| client.answers.contains_key(&3)).await;
    for _ in 0..15 {
        // The client goes on reading, slowly.
        let before = client.received();
        client
            .until(|client| client.received() > before + 500_000)
            .await;
        skip(&site, 4).await;
    }
    client
        .until(|client| client.answers[&3].reset.is_some())
        .await;
    assert_eq!(client.answers[&3].reset, Some(number(ErrorCode::Cancel)));
    assert_eq!(client.answer(1).await.reset, None);
}

#[tokio::test(flavor = "local")]
async fn a_stream_whose_answer_has_not_arrived_yet_is_not_lost() {
    let site = site_with("server.min-write-rate = 0");
    let mut client = Client::new(&site);
    client.open_window(0, 1 << 30);
    client.get(5, "/bytes/1");
    client.answer(5).await;
    client.get(7, "/bytes/50000000");
    client.open_window(7, 1 << 30);
    client.get(9, "/bytes/100000");
    client.flush().await;
    // What the first window of the stream allows stands behind much of the other answer. The client reads
    // little of that in ten minutes.
    for _ in 0..6 {
        client.settle_in_silence().await;
        skip(&site, 100).await;
        let before = client.received();
        client
            .until(|client| client.received() > before + 1000)
            .await;
    }
    assert_eq!(client.answer(9).await.body.len(), 100_000);
}

#[tokio::test(flavor = "local")]
async fn files_are_not_read_before_they_can_be_sent() {
    let site = site();
    let accounts = site.worker().shared().accounts();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(0)]);
    client.opens_windows = false;
    for id in (1..201).step_by(2) {
        client.get(id, "/file/300000");
    }
    client.until(|client| client.answers.len() == 100).await;
    assert_eq!(accounts.memory_in_use(), 0);
    // Windows of one byte, then windows for what the connection does not allow.
    for by in [1, 1 << 20] {
        for id in (1..201).step_by(2) {
            client.open_window(id, by);
        }
        client.settle().await;
        assert!(accounts.memory_in_use() <= 100 * 16_384);
    }
    client.opens_windows = true;
    client.open_window(0, 1 << 30);
    for id in (1..201).step_by(2) {
        assert_eq!(client.answer(id).await.body.len(), 300_000, "{id}");
    }
    assert_eq!(accounts.memory_in_use(), 0);
}

#[tokio::test(flavor = "local")]
async fn a_window_that_stays_nearly_empty_is_used_after_a_second() {
    let site = site();
    let mut client = Client::new(&site);
    client.opens_windows = false;
    client.get(1, "/bytes/70000");
    // The whole window is used, and no frame is tiny.
    client.until(|client| client.received() == 65_535).await;
    client.open_window(1, 100);
    client.open_window(0, 100);
    client.settle().await;
    assert_eq!(client.received(), 65_535);
    skip(&site, 2).await;
    client.until(|client| client.received() == 65_635).await;
}

#[tokio::test(flavor = "local")]
async fn a_client_that_opens_no_window_loses_the_stream() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(10)]);
    client.opens_windows = false;
    client.get(1, "/bytes/25");
    client.settle().await;
    skip(&site, 20).await;
    client.settle().await;
    assert_eq!(client.answers[&1].reset, None);
    skip(&site, 20).await;
    client
        .until(|client| client.answers[&1].reset.is_some())
        .await;
    assert_eq!(client.answers[&1].reset, Some(number(ErrorCode::Cancel)));
}

#[tokio::test(flavor = "local")]
async fn an_idle_connection_ends_in_good_order() {
    let site = site_with("server.max-keep-alive-idle = 7");
    let mut client = Client::new(&site);
    client.get(1, "/bytes/1");
    client.answer(1).await;
    skip(&site, 6).await;
    client.get(3, "/bytes/1");
    client.answer(3).await;
    skip(&site, 9).await;
    client.until_closed().await;
    let no_error = number(ErrorCode::NoError);
    assert_eq!(client.goaways, [(0x7fff_ffff, no_error), (3, no_error)]);
    drop(client.socket);
    client.served.await.expect("the connection ends");
}

#[tokio::test(flavor = "local")]
async fn a_client_that_never_acknowledges_settings_or_ends_a_block_is_given_up() {
    let site = site();
    let mut client = Client::new(&site);
    client.get(1, "/wait");
    client.settle().await;
    let mut block = Vec::new();
    petrel_proto::http2::write_frame_header(&mut block, 10, 1, 0, 3);
    client.out.extend_from_slice(&block);
    client.settle().await;
    skip(&site, 65).await;
    client.until_closed().await;
    let calm = number(ErrorCode::EnhanceYourCalm);
    assert_eq!(client.goaways, [(1, calm)]);

    let mut client = Client::silent(&site);
    client.out.extend_from_slice(petrel_proto::http2::PREFACE);
    petrel_proto::http2::write_settings(&mut client.out, &[]);
    client.get(1, "/wait");
    client.flush().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    skip(&site, 35).await;
    client.until_closed().await;
    let late = number(ErrorCode::SettingsTimeout);
    assert_eq!(client.goaways, [(1, late)]);
    let counts: Vec<_> = site.worker().shared().http2().read().collect();
    assert!(counts.contains(&("server.http2.ended.settings-timeout".to_owned(), 1)));
    assert!(counts.contains(&("server.http2.ended.block-too-slow".to_owned(), 1)));
}

#[tokio::test(flavor = "local")]
async fn a_worker_that_drains_loses_no_request() {
    for (how, answers_pings) in [
        (Drain::Successor, true),
        (Drain::Successor, false),
        (Drain::Stop, true),
    ] {
        let site = site();
        let mut client = Client::new(&site);
        client.answers_pings = answers_pings;
        client.get(1, "/hints");
        client.get(3, "/bytes/1");
        client.answer(3).await;
        site.worker().drain(how);
        client.until(|client| client.goaways.len() == 1).await;
        assert_eq!(client.goaways[0].0, 0x7fff_ffff);
        if !answers_pings {
            client.get(5, "/bytes/1");
            client.answer(5).await;
            skip(&site, 3).await;
        }
        client.answer(1).await;
        client.until_closed().await;
        let last = if answers_pings { 3 } else { 5 };
        assert_eq!(client.goaways[1..], [(last, 0)], "{how:?}");
    }
}

/// Chromium fails requests that wait for a free stream when GOAWAY comes.
#[tokio::test(flavor = "local")]
async fn a_client_with_many_requests_is_told_of_the_end_behind_them() {
    let crowd = limits::HTTP2_REQUESTS_CROWDED;
    for goes_on in [false, true] {
        let site = site();
        let mut client = Client::new(&site);
        let mut id = 1;
        let mut ask = |client: &mut Client| {
            for _ in 0..crowd {
                client.get(id, "/bytes/1");
                id += 2;
            }
            id - 2
        };
        let last = ask(&mut client);
        client.answer(last).await;
        site.worker().drain(Drain::Stop);
        let mut half_seconds = 0;
        loop {
            client.settle().await;
            if !client.goaways.is_empty() {
                break;
            }
            if goes_on {
                let last = ask(&mut client);
                client.answer(last).await;
            }
            skip_time(&site, Duration::from_millis(500)).await;
            half_seconds += 1;
        }
        // The clock goes on by itself, too.
        let max = 2 * limits::HTTP2_CROWDED_S_MAX;
        let expected = if goes_on { max - 2..=max + 2 } else { 2..=6 };
        assert!(expected.contains(&half_seconds), "{goes_on} {half_seconds}");
        client.until_closed().await;
        assert_eq!(client.goaways[1], (id - 2, 0));
    }
}

#[tokio::test(flavor = "local")]
async fn what_is_cut_off_gets_503_or_a_reset() {
    let site = site();
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(10)]);
    client.opens_windows = false;
    client.get(1, "/wait");
    client.get(3, "/bytes/25");
    client.settle().await;
    site.worker().cut_off(Cut::StopNow);
    client.until(|client| client.goaways.len() == 2).await;
    client.open_window(1, 1000);
    assert_eq!(client.answer(1).await.status(), 503);
    assert!(client.answers[&3].reset.is_some());
    client.until_closed().await;
}

#[tokio::test(flavor = "local")]
async fn the_last_request_of_a_connection_is_announced() {
    let site = site_with("server.max-keep-alive-requests = 2");
    let mut client = Client::new(&site);
    client.get(1, "/bytes/1");
    client.answer(1).await;
    assert!(client.goaways.is_empty());
    client.get(3, "/bytes/1");
    client.answer(3).await;
    client.until_closed().await;
    assert_eq!(client.goaways, [(0x7fff_ffff, 0), (3, 0)]);
}

#[tokio::test(flavor = "local")]
async fn requests_whose_heads_are_refused_count_for_the_last_request() {
    let site = site_with("server.max-keep-alive-requests = 3");
    let mut client = Client::new(&site);
    for id in [1, 3, 5] {
        client.request_with(id, "GET", "/", &[("host", "b.example")], END);
    }
    for id in [1, 3, 5] {
        assert_eq!(client.answer(id).await.status(), 400);
    }
    client.until_closed().await;
    assert_eq!(
        client.goaways.last(),
        Some(&(5, number(ErrorCode::NoError)))
    );
}

#[tokio::test(flavor = "local")]
async fn a_client_that_goes_too_far_is_sent_away_and_counted() {
    let site = site();
    let mut client = Client::new(&site);
    client.get(1, "/bytes/1");
    client.answer(1).await;
    for id in (3..1000).step_by(2) {
        client.get(id, "/wait");
        client.reset(id);
    }
    let before = DROPPED.get();
    client.until_closed().await;
    let calm = number(ErrorCode::EnhanceYourCalm);
    assert_eq!(client.goaways.len(), 1);
    assert_eq!(client.goaways[0].1, calm);
    let counts: Vec<_> = site.worker().shared().http2().read().collect();
    assert!(
        counts.contains(&("server.http2.ended.rapid-reset".to_owned(), 1)),
        "{counts:?}"
    );
    let _ = before;
}

#[tokio::test(flavor = "local")]
async fn bytes_go_through_a_tunnel_both_ways_until_each_side_ends() {
    let site = site();
    let mut client = Client::new(&site);
    let fields = [(":protocol", "websocket")];
    // The pseudo-field stands behind the others.
    client.request_with(1, "CONNECT", "/tunnel", &fields, MORE);
    client.until(|client| client.answers.contains_key(&1)).await;
    let answer = &client.answers[&1];
    assert_eq!(
        (answer.status(), answer.is_over),
        (200, false),
        "{answer:?}"
    );
    for number in 1..4 {
        client.data(1, b"message", MORE);
        client
            .until(|client| client.answers[&1].body.len() == number * 7)
            .await;
    }
    client.data(1, b"last", END);
    assert_eq!(client.answer(1).await.body.len(), 25);
    client.get(3, "/bytes/1");
    client.answer(3).await;
}

/// Whether a request for `path` was logged with such an end; the log is empty then.
fn was_logged(path: &str, status: u16, is_complete: bool) -> bool {
    LOGGED.take() == [(path.to_owned(), status, is_complete)]
}

#[tokio::test(flavor = "local")]
async fn a_tunnel_whose_backend_ends_first_ends_with_its_client_or_with_the_backends_time() {
    let site = site();
    let mut client = Client::new(&site);
    let fields = [(":protocol", "websocket")];
    client.request_with(1, "CONNECT", "/half-tunnel/100", &fields, MORE);
    client.answer(1).await;
    client.settle().await;
    assert_eq!(LOGGED.take(), [], "its client may go on");
    client.data(1, b"", END);
    client.settle().await;
    assert!(was_logged("/half-tunnel/100", 200, true));
    client.request_with(3, "CONNECT", "/half-tunnel/5", &fields, MORE);
    client.answer(3).await;
    skip(&site, 7).await;
    client.settle().await;
    assert!(was_logged("/half-tunnel/5", 200, true));
    skip(&site, 4).await;
    client.settle().await;
    assert_eq!(client.answers[&3].reset, Some(number(ErrorCode::NoError)));
    site.worker().drain(Drain::Stop);
    client.until_closed().await;
}

#[tokio::test(flavor = "local")]
async fn what_comes_of_a_body_behind_the_answer_is_thrown_away() {
    let site = site_with("server.max-request-size = 1");
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(1 << 20)]);
    client.open_window(0, 1 << 20);
    // The whole answer is in frames at the end of the turn's first send, which makes 128 KiB of frames at
    // most.
    let length = 131_000;
    client.request(1, "POST", &format!("/early/{length}"), MORE);
    // The bodies of the next streams fill the buffer of the turn's first read.
    for id in [3, 5] {
        client.request(id, "POST", "/wait", MORE);
        for _ in 0..3 {
            client.data(id, &[b'x'; 16_000], MORE);
        }
    }
    client.data(1, &[b'x'; 2000], END);
    let answer = client.answer(1).await;
    assert_eq!((answer.heads.len(), answer.status()), (1, 200));
    assert_eq!((answer.body.len(), answer.reset), (length, None));
    assert!(was_logged(&format!("/early/{length}"), 200, true));
}

#[tokio::test(flavor = "local")]
async fn an_upload_that_is_refused_ends_with_its_answer() {
    let site = site_with("server.max-request-size = 1");
    let mut client = Client::new(&site);
    client.request_with(1, "POST", "/echo", &[("content-length", "8000000")], MORE);
    // No time passes on the worker's clock.
    client
        .until(|client| {
            client
                .answers
                .get(&1)
                .is_some_and(|answer| answer.reset.is_some())
        })
        .await;
    let answer = &client.answers[&1];
    assert!(answer.is_over);
    assert_eq!(
        (answer.status(), answer.reset),
        (413, Some(number(ErrorCode::NoError)))
    );
    client.get(3, "/bytes/1");
    assert_eq!(client.answer(3).await.status(), 200);
}

#[tokio::test(flavor = "local")]
async fn a_client_that_does_not_read_is_given_up_once() {
    let site = site_with("server.min-write-rate = 0");
    let mut client = Client::with_settings(&site, &[Setting::InitialWindowSize(1 << 30)]);
    client.open_window(0, 1 << 30);
    client.get(1, "/bytes/10000000");
    client.flush().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    // It has not acknowledged SETTINGS.
    for _ in 0..5 {
        skip(&site, 31).await;
    }
    let counts: Vec<_> = site.worker().shared().http2().read().collect();
    assert!(counts.contains(&("server.http2.ended.settings-timeout".to_owned(), 1)));
}

#[tokio::test(flavor = "local")]
async fn each_header_block_has_its_whole_time() {
    let site = site();
    let mut client = Client::new(&site);
    client.get(1, "/wait");
    client.settle().await;
    let mut parts = [3, 5].map(|id| {
        client.get(id, "/wait");
        let all = std::mem::take(&mut client.out);
        (all[..12].to_vec(), all[12..].to_vec())
    });
    client.out.append(&mut parts[0].0);
    client.settle().await;
    skip(&site, 40).await;
    client.out.append(&mut parts[0].1);
    client.out.append(&mut parts[1].0);
    client.settle().await;
    skip(&site, 40).await;
    client.settle().await;
    assert_eq!(client.goaways, []);
    skip(&site, 40).await;
    client.until_closed().await;
    let calm = number(ErrorCode::EnhanceYourCalm);
    assert_eq!(client.goaways, [(3, calm)]);
}

/// A client that has sent a request for `path` with `Upgrade: h2c`, and has received 101.
async fn upgraded(site: &Site, path: &str) -> Client {
    let mut client = Client::silent(site);
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: a.example\r\nUpgrade: h2c\r\n\
         Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAQAAP__\r\n\r\n"
    );
    client
        .socket
        .write_all(head.as_bytes())
        .await
        .expect("it reads");
    let expected =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
    let mut said = vec![0; expected.len()];
    client
        .socket
        .read_exact(&mut said)
        .await
        .expect("an answer");
    assert_eq!(String::from_utf8_lossy(&said), expected);
    client
}

#[tokio::test(flavor = "local")]
async fn a_client_that_asks_for_the_change_and_is_silent_is_answered_before_the_end() {
    let path = "/bytes/5";
    for drain in [Some(Drain::Stop), Some(Drain::Successor), None] {
        let site = site_with("server.max-read-idle = 20");
        let mut client = upgraded(&site, path).await;
        if let Some(how) = drain {
            site.worker().drain(how);
            client.settle_in_silence().await;
            assert_eq!(LOGGED.take(), [], "it is about to say more");
        }
        skip(&site, if drain.is_some() { 3 } else { 22 }).await;
        let said = client.rest().await;
        assert!(said.windows(5).any(|part| part == b"xxxxx"), "{drain:?}");
        assert!(was_logged(path, 200, true), "{drain:?}");
    }
    let site = site();
    let mut client = upgraded(&site, path).await;
    site.worker().cut_off(Cut::StopNow);
    client.rest().await;
    assert!(was_logged(path, 503, true));
    let site = self::site();
    let client = upgraded(&site, path).await;
    site.worker().cut_off(Cut::StopNow);
    client.served.abort();
    assert!(client.served.await.is_err());
    assert!(was_logged(path, 0, false));
}

#[tokio::test(flavor = "local")]
async fn a_request_of_http_1_may_ask_for_the_change() {
    let site = site();
    let mut client = upgraded(&site, "/bytes/5").await;
    client.out.extend_from_slice(petrel_proto::http2::PREFACE);
    petrel_proto::http2::write_settings(&mut client.out, &[]);
    client.get(3, "/bytes/6");
    assert_eq!(client.answer(1).await.body.len(), 5);
    assert_eq!(client.answer(3).await.body.len(), 6);
}

#[tokio::test(flavor = "local")]
async fn without_the_directive_nothing_of_it_is_understood() {
    for config in [
        "",
        "server.h2c = \"enable\"\nserver.feature-flags = ( \"server.h2proto\" => \"disable\" )",
        "server.h2c = \"disable\"\nserver.feature-flags = ( \"server.h2c\" => \"enable\" )",
    ] {
        let site = Site::new(config, &[&MODULE]);
        let mut client = Client::new(&site);
        client.flush().await;
        let mut said = [0; 12];
        client
            .socket
            .read_exact(&mut said)
            .await
            .expect("an answer");
        assert_eq!(&said, b"HTTP/1.1 505", "{config}");
    }
    let flag = "server.feature-flags = ( \"server.h2c\" => \"enable\" )";
    let site = Site::new(flag, &[&MODULE]);
    let mut client = Client::new(&site);
    client.get(1, "/bytes/1");
    client.answer(1).await;
}
