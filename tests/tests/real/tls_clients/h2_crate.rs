//! The client of the `h2` crate: many streams with small windows, uploads, resets in between, and a server that stops.
//! Every byte of what is not reset arrives where it belongs.
//!
//! What is asked is pseudo-random, and the same each time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use petrel_tests::{Authority, Backend, PATIENCE, Server, Speaks, free_port};
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

/// Requests of a connection. The server allows a hundred at a time.
const REQUESTS: u32 = 300;

/// Files of the site, by their lengths.
const FILES: [usize; 5] = [0, 5, 4096, 40_000, 300_000];

/// What a client begins with that takes a frame of 4 KiB on a stream.
const SMALL_WINDOW: u32 = 4096;

/// A server that speaks HTTP/2 at two ports, the first by TLS and the second in the clear, in front of `backend`.
struct Site {
    server: Server,
    authority: Authority,
    _backend: Backend,
    in_the_clear: u16,
}

impl Site {
    fn start() -> Site {
        let authority = Authority::new();
        let backend = Backend::start(Speaks::FastCgi, |exchange| {
            let body = exchange.read_body();
            exchange.answer(200, &[], body);
        });
        let in_the_clear = free_port();
        let mut server = Server::build();
        for length in FILES {
            server = server.file(&format!("www/{length}"), content(length as u32, length));
        }
        let server = server
            .config(&backend.directive("/echo", "\"check-local\" => \"disable\""))
            .config(&format!(
                "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\n{}\
                 $HTTP[\"url\"] =~ \"[02468]$\" {{ server.stream-request-body = 2 }}\n\
                 $SERVER[\"socket\"] == \"127.0.0.1:{in_the_clear}\" {{ ssl.engine = \"disable\" }}\n\
                 server.h2c = \"enable\"\n\
                 server.feature-flags = (\"server.graceful-shutdown-timeout\" => 0)\n",
                authority.identity("petrel.test").directives()
            ))
            .start();
        Site {
            server,
            authority,
            _backend: backend,
            in_the_clear,
        }
    }

    async fn socket(&self, port: u16) -> TcpStream {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        TcpStream::connect(address).await.expect("it listens")
    }

    async fn over_tls(&self, window: u32) -> Client {
        let config = Arc::new(self.authority.client_config(&["h2"]));
        let name = ServerName::try_from("petrel.test").expect("a name");
        let socket = self.socket(self.server.port()).await;
        let stream = TlsConnector::from(config).connect(name, socket).await;
        Client::begin(stream.expect("a handshake"), window).await
    }

    async fn in_the_clear(&self, window: u32) -> Client {
        Client::begin(self.socket(self.in_the_clear).await, window).await
    }
}

/// Bytes that no other request has.
fn content(id: u32, length: usize) -> Vec<u8> {
    let mut state = u64::from(id + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A connection.
struct Client {
    requests: SendRequest<Bytes>,
    /// How it ends.
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    async fn begin<S>(stream: S, window: u32) -> Client
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let begun = Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(window.max(65_535))
            .handshake(stream)
            .await;
        let (requests, connection): (_, Connection<S, Bytes>) = begun.expect("a connection");
        Client {
            requests,
            connection: tokio::spawn(connection),
        }
    }
}

/// What one request is for, and when the client loses interest in it.
#[derive(Clone, Copy, Debug)]
struct Ask {
    id: u32,
    /// Bytes of the upload; `None`: a GET.
    upload: Option<usize>,
    length: usize,
    has_trailers: bool,
    /// The client resets the stream when it has sent or received so many bytes.
    reset_at: Option<usize>,
}

impl Ask {
    fn of(id: u32) -> Ask {
        let is_upload = id.is_multiple_of(2);
        let length = FILES[id as usize / 2 % FILES.len()];
        Ask {
            id,
            upload: is_upload.then_some(length),
            length,
            has_trailers: id.is_multiple_of(6),
            reset_at: id.is_multiple_of(7).then_some(length / 2),
        }
    }

    fn request(self) -> Request<()> {
        let (method, path) = match self.upload {
            Some(_) => ("POST", format!("/echo/{}", self.id)),
            None => ("GET", format!("/{}", self.length)),
        };
        Request::builder()
            .method(method)
            .uri(format!("https://petrel.test{path}"))
            .body(())
            .expect("a request")
    }

    fn expected(self) -> Vec<u8> {
        match self.upload {
            Some(length) => content(self.id, length),
            None => content(self.length as u32, self.length),
        }
    }

    /// Asks. What came is what was to come, or the stream was reset on purpose.
    async fn run(self, requests: SendRequest<Bytes>) -> Result<(), h2::Error> {
        let mut requests = requests.ready().await?;
        let (response, stream) = requests.send_request(self.request(), self.upload.is_none())?;
        if self.upload.is_some() && !self.send(stream).await? {
            return Ok(());
        }
        let response = response.await?;
        assert_eq!(response.status(), StatusCode::OK, "{self:?}");
        self.receive(response.into_body()).await
    }

    /// Sends the body as far as the server opens its window. False: the stream was reset.
    async fn send(self, mut stream: SendStream<Bytes>) -> Result<bool, h2::Error> {
        let mut rest = Bytes::from(self.expected());
        let stop = self.reset_at.unwrap_or(usize::MAX);
        let mut sent = 0;
        while !rest.is_empty() {
            stream.reserve_capacity(rest.len().min(10_000));
            let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
            let room = room.unwrap_or(Ok(0))?.min(rest.len());
            let is_last = room == rest.len() && !self.has_trailers;
            stream.send_data(rest.split_to(room), is_last)?;
            sent += room;
            if sent >= stop {
                stream.send_reset(Reason::CANCEL);
                return Ok(false);
            }
        }
        if self.has_trailers {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-checksum", HeaderValue::from(self.id));
            stream.send_trailers(trailers)?;
        } else if self.length == 0 {
            stream.send_data(Bytes::new(), true)?;
        }
        Ok(true)
    }

    async fn receive(self, mut body: RecvStream) -> Result<(), h2::Error> {
        let expected = self.expected();
        let stop = self.reset_at.unwrap_or(usize::MAX);
        let mut position = 0;
        while let Some(piece) = body.data().await {
            let piece = piece?;
            let end = position + piece.len();
            let is_same = expected.get(position..end) == Some(&piece[..]);
            assert!(is_same, "{self:?}: other bytes from {position} on");
            position = end;
            body.flow_control().release_capacity(piece.len())?;
            if position >= stop {
                // Dropping the body resets the stream.
                return Ok(());
            }
        }
        assert_eq!(position, expected.len(), "{self:?}");
        Ok(())
    }
}

/// All requests of a connection at once, as far as the server allows it.
async fn ask_all(client: Client) {
    let mut asks = JoinSet::new();
    for id in 0..REQUESTS {
        let (ask, requests) = (Ask::of(id), client.requests.clone());
        asks.spawn(async move { ask.run(requests).await.map_err(|error| (ask, error)) });
    }
    while let Some(ended) = asks.join_next().await {
        let ended = ended.expect("every byte is the right one");
        assert!(ended.is_ok(), "{ended:?}");
    }
    // Without requests the client says goodbye.
    drop(client.requests);
    client.connection.await.expect("it ends").expect("in order");
}

/// It takes so long because four connections carry 300 requests each, two of them in windows of 4 KiB.
#[tokio::test]
async fn many_streams_with_small_windows_and_resets_in_between() {
    let site = Site::start();
    let all = async {
        for window in [SMALL_WINDOW, 1 << 20] {
            ask_all(site.over_tls(window).await).await;
            ask_all(site.in_the_clear(window).await).await;
        }
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("something is never woken");
    // Temporary files and connections of what was reset are gone.
    let log = site.server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// Downloads are in their middle when the server is told to stop: it lets them come to their end.
/// It takes so long because forty downloads of 300 kB come in windows of 4 KiB.
#[tokio::test]
async fn what_is_under_way_ends_before_a_server_that_stops() {
    const DOWNLOADS: u32 = 20;
    let mut site = Site::start();
    for by_tls in [true, false] {
        let client = match by_tls {
            true => site.over_tls(SMALL_WINDOW).await,
            false => site.in_the_clear(SMALL_WINDOW).await,
        };
        let ask = Ask {
            id: 1,
            upload: None,
            length: 300_000,
            has_trailers: false,
            reset_at: None,
        };
        let mut bodies = Vec::new();
        for _ in 0..DOWNLOADS {
            let mut requests = client.requests.clone().ready().await.expect("it is open");
            let (response, _) = requests
                .send_request(ask.request(), true)
                .expect("it is open");
            bodies.push(response.await.expect("a head").into_body());
        }
        site.server.signal(Signal::INT);
        site.server.expect_log("graceful");
        let mut asks = JoinSet::new();
        for body in bodies {
            asks.spawn(ask.receive(body));
        }
        while let Some(ended) = asks.join_next().await {
            ended.expect("every byte is the right one").expect("whole");
        }
        client.connection.await.expect("it ends").expect("in order");
        let refused = client.requests.clone().ready().await;
        assert!(refused.is_err(), "the connection is over");
        let status = site.server.wait(Duration::from_secs(30));
        assert!(status.is_some_and(|status| status.success()));
        site = Site::start();
    }
}
