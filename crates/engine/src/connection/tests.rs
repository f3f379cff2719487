use std::cell::{Cell, RefCell};
use std::task::ready;
use std::time::Duration;

use bytes::Bytes;
use petrel_proto::header_block::HeaderBlock;
use petrel_proto::status::Status;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::body::{Body, BodySource, Piece, ReadAhead, RequestBody};
use crate::exchange::{ConnectionFacts, Exchange, Scheme};
use crate::ledger::{Ledger, Nanos};
use crate::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use crate::testing::Site;

/// A module that asks for the body of the request after some work, and answers with it.
static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_half_way",
    doc: "For tests.",
    loaded: Loaded::Always,
    directives: &[],
    configure: |configure: &mut Configure<'_>| {
        configure.add(Phase::Translate, Translate);
        configure.add(Phase::Resolved, NeedsBody);
        configure.add(Phase::Transform, Transform);
        configure.add(Phase::Log, KeepsLedger);
        Ok(())
    },
};

thread_local! {
    /// How often the hook for `/`, which needs the body, was called.
    static BODIES_WANTED: Cell<u32> = const { Cell::new(0) };
    /// The ledger of the last logged request.
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

struct KeepsLedger;

impl Hook for KeepsLedger {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        LEDGER.replace(exchange.ledger.clone());
        Outcome::Next
    }
}

struct Translate;

struct NeedsBody;

struct Transform;

impl Hook for Translate {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match exchange.request.url.path() {
            b"/half-way" => Outcome::Later(Box::new(HalfWay::new(HalfWay::answer))),
            b"/need" if !exchange.request.body.is_complete() => Outcome::NeedBody,
            b"/need" => HalfWay::answer(exchange),
            b"/stream" => {
                exchange.request.body.stream(ReadAhead::Bounded);
                exchange.response.answer(Status::OK);
                exchange.response.body = Body::Source(Box::<Through>::default());
                Outcome::Answer
            }
            b"/pieces" => {
                exchange.response.answer(Status::OK);
                exchange.response.body = Body::Source(Box::new(Pieces::new()));
                Outcome::Answer
            }
            b"/bytes" => {
                exchange.response.answer(Status::OK);
                exchange.response.body = Body::Source(Box::new(SingleBytes));
                Outcome::Answer
            }
            _ => Outcome::Next,
        }
    }
}

impl Hook for NeedsBody {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        BODIES_WANTED.set(BODIES_WANTED.get() + 1);
        match exchange.request.body.is_complete() {
            false => Outcome::NeedBody,
            true => HalfWay::answer(exchange),
        }
    }
}

impl Hook for Transform {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match exchange.request.url.path() {
            b"/half-way" => Outcome::Later(Box::new(HalfWay::new(|_| Outcome::Next))),
            _ => Outcome::Next,
        }
    }
}

const PIECES: u32 = 100;

/// A body in pieces. All are ready at once but the middle one, which is ready after [`PAUSE`].
struct Pieces {
    left: u32,
    pause: Pin<Box<tokio::time::Sleep>>,
}

impl Pieces {
    fn new() -> Pieces {
        Pieces {
            left: PIECES,
            pause: Box::pin(tokio::time::sleep(PAUSE)),
        }
    }
}

impl BodySource for Pieces {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<std::io::Result<Piece>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.left == PIECES / 2 {
            ready!(self.pause.as_mut().poll(context));
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Piece::Bytes(Bytes::from_static(b"piece")))))
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

const SINGLE_BYTES: u64 = 5000;

thread_local! {
    static BYTES_MADE: Cell<u64> = const { Cell::new(0) };
}

/// A body in pieces of one byte, all of which are ready at once.
struct SingleBytes;

impl BodySource for SingleBytes {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Piece>>> {
        BYTES_MADE.set(BYTES_MADE.get() + 1);
        Poll::Ready(
            (BYTES_MADE.get() <= SINGLE_BYTES).then(|| Ok(Piece::Bytes(Bytes::from_static(b"x")))),
        )
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

/// Collects the body of the request and its trailers, and answers when both are complete.
#[derive(Default)]
struct Through {
    bytes: Vec<u8>,
    trailers: HeaderBlock,
    is_complete: bool,
}

impl BodySource for Through {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Piece>>> {
        if !self.is_complete {
            return Poll::Pending;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Piece::Bytes(bytes.into()))))
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        std::mem::take(&mut self.trailers)
    }

    fn work(&mut self, request_body: &mut RequestBody, _: &mut Context<'_>) {
        if request_body.is_complete() && !self.is_complete {
            self.bytes = request_body.bytes().unwrap_or_default().to_vec();
            self.trailers = request_body.trailers().clone();
            self.is_complete = true;
        }
    }
}

/// Sleeps, then waits for the body, and continues without beginning anew.
struct HalfWay {
    sleep: Pin<Box<tokio::time::Sleep>>,
    has_slept: bool,
    then: fn(&mut Exchange) -> Outcome,
}

impl HalfWay {
    fn new(then: fn(&mut Exchange) -> Outcome) -> HalfWay {
        HalfWay {
            sleep: Box::pin(tokio::time::sleep(Duration::from_millis(5))),
            has_slept: false,
            then,
        }
    }

    fn answer(exchange: &mut Exchange) -> Outcome {
        let body = exchange.request.body.bytes().unwrap_or_default().to_vec();
        exchange.response.answer(Status::OK);
        exchange.response.body = Body::from(body);
        Outcome::Answer
    }
}

impl Pending for HalfWay {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        if !self.has_slept {
            ready!(self.sleep.as_mut().poll(context));
            self.has_slept = true;
            exchange.request.body.want();
        }
        match exchange.request.body.is_complete() {
            true => Poll::Ready((self.then)(exchange)),
            false => Poll::Pending,
        }
    }
}

/// A client's socket, and the task of the connection to it.
fn connect(site: &Site) -> (UnixStream, tokio::task::JoinHandle<()>) {
    let worker = site.worker();
    worker.shared().take_permit_over_limit();
    let (client, server) = UnixStream::pair().expect("two sockets");
    let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
    let connection = Connection::new(worker, ClientSocket::unix(server), Peer::Unix, &listener);
    (client, tokio::task::spawn_local(connection))
}

/// The response to `parts`, which are sent with a pause between them.
async fn talk(config: &str, parts: &[&str]) -> String {
    talk_after(config, parts, "").await
}

/// Like `talk`. After the first part the client waits for `interim`, because otherwise it could arrive
/// together with the next part.
async fn talk_after(config: &str, parts: &[&str], interim: &str) -> String {
    let site = Site::new(config, &[&MODULE]);
    let (mut client, served) = connect(&site);
    let mut answer = String::new();
    for part in parts {
        client.write_all(part.as_bytes()).await.expect("it reads");
        if answer.len() < interim.len() {
            let mut said = vec![0; interim.len()];
            let all = client.read_exact(&mut said);
            let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
            in_time.expect("it says something").expect("all of it");
            answer = String::from_utf8(said).expect("text");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = client.read_to_string(&mut answer);
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    in_time.expect("an answer").expect("whole");
    drop(client);
    served.await.expect("the connection ends");
    answer
}

fn request(target: &str, fields: &str) -> String {
    format!("POST {target} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n\r\n")
}

#[tokio::test(flavor = "local")]
async fn a_body_is_received_when_a_hook_asks_for_it_in_whatever_way() {
    for target in ["/half-way", "/need", "/"] {
        let head = request(target, "Content-Length: 6");
        let root = "server.document-root = \"/\"";
        for parts in [
            vec![&*head, "abc", "def"],
            vec![&*[&head, "abcdef"].concat()],
            vec![&*[&head, "abc"].concat(), "def"],
        ] {
            let answer = talk(root, &parts).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{target}: {answer}");
            assert!(answer.ends_with("\r\n\r\nabcdef"), "{target}: {answer}");
        }
    }
}

/// The response to `request`, which is sent in two parts that are split at `split`.
async fn answer_in_two_parts(site: &Site, request: &str, split: usize) -> String {
    let (mut client, served) = connect(site);
    for part in [&request[..split], &request[split..]] {
        client.write_all(part.as_bytes()).await.expect("it reads");
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    let mut answer = String::new();
    let all = client.read_to_string(&mut answer);
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    in_time.expect("an answer").expect("whole");
    drop(client);
    served.await.expect("the connection ends");
    answer
}

#[tokio::test(flavor = "local")]
async fn trailers_come_and_go_behind_chunks_wherever_the_request_is_cut() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let fields = "Connection: x-hop\r\nTE: trailers\r\nTransfer-Encoding: chunked";
    let chunks = "3\r\nabc\r\n0\r\nX-Sum: 1\r\nHost: b\r\nX-Hop: 2\r\nB:\r\n\r\n";
    let request = request("/stream", fields) + chunks;
    for split in 1..request.len() {
        let answer = answer_in_two_parts(&site, &request, split).await;
        assert!(
            answer.ends_with("\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nB: \r\n\r\n"),
            "{split}: {answer}"
        );
    }
}

#[tokio::test(flavor = "local")]
async fn trailers_go_to_no_client_that_does_not_take_them() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let chunks = "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
    for (te, end) in [
        ("trailers", "3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n"),
        ("gzip", "3\r\nabc\r\n0\r\n\r\n"),
    ] {
        let head = format!(
            "POST /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
             TE: {te}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        );
        let answer = answer_in_two_parts(&site, &head, 1).await;
        assert!(answer.ends_with(&format!("\r\n\r\n{end}")), "{answer}");
    }
}

#[tokio::test(flavor = "local")]
async fn a_client_that_waits_to_be_asked_is_asked_when_a_pending_hook_wants_the_body() {
    let head = request("/half-way", "Content-Length: 3\r\nExpect: 100-continue");
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    let answer = talk_after("", &[&head, "abc"], interim).await;
    let expected = format!("{interim}HTTP/1.1 200 ");
    assert!(answer.starts_with(&expected), "{answer}");
    assert!(answer.ends_with("\r\n\r\nabc"), "{answer}");
}

#[tokio::test(flavor = "local")]
async fn a_hook_of_the_answer_does_not_wait_for_a_body_that_was_refused() {
    let head = request("/half-way", "Transfer-Encoding: chunked");
    let too_long = format!("800\r\n{}", "x".repeat(0x800));
    let config = "server.max-request-size = 1";
    for (body, status) in [(&*too_long, 413), ("3\r\nabcNO", 400)] {
        let answer = talk(config, &[&head, body]).await;
        let expected = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&expected), "{answer}");
    }
}

/// Sends `parts`. Before each it waits until `has_taken` says that the server has read the part before, and
/// then for [`PAUSE`]. Returns the ledger of the request.
async fn ledger_of(parts: [&str; 2], has_taken: impl Fn(&Site) -> bool) -> Ledger {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let worker = site.worker();
    worker.shared().take_permit_over_limit();
    let (mut client, server) = UnixStream::pair().expect("two sockets");
    let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
    // Puts one exchange into the pool: when it is gone, a head has begun.
    let facts = ConnectionFacts {
        peer: Peer::Unix,
        scheme: Scheme::Http,
        listener: Rc::clone(&listener),
        request_number: 0,
        id: 0,
        late: None,
    };
    // The worker counts exchanges in use, so one must be taken before one is given back.
    assert!(worker.take_exchange().is_none());
    worker.give_exchange(Box::new(Exchange::new(Rc::clone(worker), facts)));
    let connection = Connection::new(worker, ClientSocket::unix(server), Peer::Unix, &listener);
    let served = tokio::task::spawn_local(connection);
    client
        .write_all(parts[0].as_bytes())
        .await
        .expect("it reads");
    let taken = async {
        while !has_taken(&site) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), taken).await;
    in_time.expect("it takes the first part");
    tokio::time::sleep(PAUSE).await;
    client
        .write_all(parts[1].as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("an answer");
    drop(client);
    served.await.expect("the connection ends");
    LEDGER.take()
}

const PAUSE: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "local")]
async fn the_time_between_two_pieces_of_a_request_is_that_of_receiving_it() {
    let head_has_begun = |site: &Site| match site.worker().take_exchange() {
        Some(unused) => {
            site.worker().give_exchange(unused);
            false
        }
        None => true,
    };
    let before = BODIES_WANTED.get();
    let body_is_wanted = move |_: &Site| BODIES_WANTED.get() > before;
    let head = request("/", "Content-Length: 3");
    let (first, rest) = head.split_at(20);
    let in_two_heads = ledger_of([first, &format!("{rest}abc")], head_has_begun).await;
    let in_two_bodies = ledger_of([&format!("{head}a"), "bc"], body_is_wanted).await;
    // With this second part the head is never complete.
    let broken = ledger_of([first, "\r\n : \r\n\r\n"], head_has_begun).await;
    let pause = PAUSE.as_nanos() as Nanos;
    for (ledger, stage) in [
        (&in_two_heads, Stage::ReadHead),
        (&in_two_bodies, Stage::RequestBody),
        (&broken, Stage::ReadHead),
    ] {
        // On a busy machine the pause may begin before the server has read the first part, and the server may have
        // no processor when the second one arrives.
        assert!(ledger.stage(stage) > 0, "{stage:?} of {ledger:?}");
        let paused = ledger.stage(stage) + ledger.stage(Stage::Lag);
        assert!(paused >= pause / 2, "{stage:?} of {ledger:?}");
        assert!(ledger.stage(Stage::Parse) > 0, "{ledger:?}");
        assert_eq!(ledger.unattributed(), 0, "{ledger:?}");
    }
    assert_eq!(
        in_two_bodies.stage(Stage::ReadHead),
        0,
        "its head came whole"
    );
    assert_eq!(
        in_two_heads.stage(Stage::RequestBody),
        0,
        "its body came at once"
    );
}

#[tokio::test(flavor = "local")]
async fn a_body_of_many_pieces_reads_the_clock_only_where_it_waits() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let (mut client, served) = connect(&site);
    let before = site.worker().clock().readings();
    let head = "GET /pieces HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    let all = client.read_to_string(&mut answer);
    let in_time = tokio::time::timeout(Duration::from_secs(60), all).await;
    in_time.expect("an answer").expect("whole");
    drop(client);
    served.await.expect("the connection ends");
    assert_eq!(answer.matches("piece\r\n").count(), 100, "{answer}");
    let readings = site.worker().clock().readings() - before;
    assert!(readings < 15, "{readings}");
    let ledger = LEDGER.take();
    // The pause begins when the body is made, a moment before the connection waits for it.
    let pause = PAUSE.as_nanos() as Nanos / 2;
    assert!(ledger.stage(Stage::Content) >= pause, "{ledger:?}");
    assert_eq!(ledger.unattributed(), 0, "{ledger:?}");
}

#[tokio::test(flavor = "local")]
async fn a_client_that_was_fast_may_pause_for_the_idle_times() {
    let set = "server.max-read-idle = 5\nserver.max-write-idle = 7";
    for (config, read_s, write_s) in [("", 60, 360), (set, 5, 7)] {
        let site = Site::new(config, &[]);
        let settings = site.worker().base_settings();
        assert_eq!(settings.core.read_rate_min.patience_s, read_s);
        assert_eq!(settings.core.write_rate_min.patience_s, write_s);
    }
}

#[test]
fn an_idle_connection_is_small() {
    // See the type. tokio's sockets have 32 bytes in the server, and 24 where cargo builds this crate alone.
    let bytes = size_of::<Connection>() - size_of::<tokio::net::TcpStream>() + 32;
    assert!(bytes <= 152, "{bytes}");
}

/// A connection that the test polls itself, and its client.
fn unattended(site: &Site) -> (UnixStream, Connection) {
    let worker = site.worker();
    worker.shared().take_permit_over_limit();
    let (client, server) = UnixStream::pair().expect("two sockets");
    let listener = Rc::new(ListenerFacts::new("/test.sock".to_owned(), 0));
    let connection = Connection::new(worker, ClientSocket::unix(server), Peer::Unix, &listener);
    (client, connection)
}

async fn poll_until(connection: &mut Connection, is_so: impl Fn(&Connection) -> bool) {
    let driven = std::future::poll_fn(|context| {
        let polled = Pin::new(&mut *connection).poll(context);
        match is_so(connection) || polled.is_ready() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let in_time = tokio::time::timeout(Duration::from_secs(60), driven).await;
    in_time.expect("it goes on");
    assert!(is_so(connection), "{}", connection.state.name());
}

/// A request with a body of 60 KiB.
fn long_request(fields: &str) -> String {
    let body = "x".repeat(60 * 1024);
    format!(
        "POST /need HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{fields}\r\n{body}",
        body.len()
    )
}

#[tokio::test(flavor = "local")]
async fn the_buffer_of_a_body_stays_neither_with_the_idle_connection_nor_in_the_pool() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let (mut client, mut connection) = unattended(&site);
    let request = long_request("");
    let send = tokio::task::spawn_local(async move {
        client
            .write_all(request.as_bytes())
            .await
            .expect("it reads");
        client
    });
    poll_until(&mut connection, |connection| {
        matches!(connection.state, ConnectionState::Idle(_))
            && connection.link.facts.request_number == 1
    })
    .await;
    let ConnectionState::Idle(input) = &connection.state else {
        unreachable!("it is idle");
    };
    assert_eq!(input.capacity(), 0);
    let wire: Box<serving::Wire> = site.worker().take_spare().expect("it went back");
    assert!(wire.input.capacity() <= limits::POOLED_BUFFER_BYTES_MAX);
    drop(send.await);
}

#[tokio::test(flavor = "local")]
async fn a_connection_that_waits_for_its_client_to_close_holds_nothing_it_has_received() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let (mut client, mut connection) = unattended(&site);
    let head = request("/need", "Content-Length: 3");
    let surplus = "x".repeat(30 * 1024);
    let bytes = format!("{head}abc{surplus}");
    let send = tokio::task::spawn_local(async move {
        client.write_all(bytes.as_bytes()).await.expect("it reads");
        client
    });
    let is_lingering =
        |connection: &Connection| matches!(connection.state, ConnectionState::Linger(_));
    poll_until(&mut connection, is_lingering).await;
    let serving = connection.state.serving().expect("it is told in traces");
    assert_eq!(serving.wire.input.capacity(), 0);
    // It is the first to go when new connections have no place.
    site.worker().deadlines.end_lingering();
    let is_over = |connection: &Connection| matches!(connection.state, ConnectionState::Over(_));
    poll_until(&mut connection, is_over).await;
    drop(send.await);
}

#[tokio::test(flavor = "local")]
async fn a_request_that_has_come_already_is_not_lost_when_the_server_ends() {
    let site = Site::new("server.document-root = \"/\"", &[&MODULE]);
    let (mut client, mut connection) = unattended(&site);
    let one = "GET /need HTTP/1.1\r\nHost: h\r\n\r\n";
    let all = one.repeat(limits::REQUESTS_PER_TURN as usize + 2);
    client.write_all(all.as_bytes()).await.expect("it reads");
    poll_until(&mut connection, |connection| {
        connection.link.facts.request_number > 0
    })
    .await;
    assert_eq!(
        connection.link.facts.request_number,
        limits::REQUESTS_PER_TURN
    );
    assert!(
        matches!(&connection.state, ConnectionState::Idle(input) if input.len() == 2 * one.len())
    );
    let held = std::mem::replace(&mut connection.state, ConnectionState::Over(None));
    let held = held.cut_off(Cut::StopNow, &mut connection.link);
    assert!(matches!(held, ConnectionState::Idle(input) if input.len() == 2 * one.len()));
}

/// Other connections run between the sends of one that always has more to send.
#[tokio::test(flavor = "local")]
async fn small_pieces_do_not_occupy_the_worker() {
    let site = Site::new("", &[&MODULE]);
    let (mut client, _served) = connect(&site);
    let request = b"GET /bytes HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    client.write_all(request).await.expect("it reads");
    // It runs in turn with the connection; `yield_now` would wait for events.
    let other_task = tokio::task::spawn_local(std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        match BYTES_MADE.get() {
            0 => Poll::Pending,
            made => Poll::Ready(made),
        }
    }));
    let turn = u64::from(limits::UNPROVEN_TURN_BYTES) / limits::SEND_COST_BYTES;
    let made = other_task.await.expect("it ends");
    assert!(made <= turn + 1, "{made} pieces in one turn");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("whole");
    assert_eq!(answer.matches('x').count() as u64, SINGLE_BYTES);
}
