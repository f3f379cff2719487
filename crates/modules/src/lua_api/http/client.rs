//! The HTTP/1.1 client of one worker: connections are persistent, and replies are read as a whole.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_engine::log::LogHandle;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{
    Asked as Expected, ResponseDecoder, ResponseEvent, ResponseLimits, write_content_length,
};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::syntax::is_token;
use petrel_engine::worker::Worker;

use super::super::asked::WantedRequest;
use super::super::reply::Reply;
use super::target::{HttpTarget, ServerKey};
use crate::gateway::replay::FailedAttempt;
use crate::gateway::resolve::FollowedNames;
use crate::gateway::stream::BackendStream;
use crate::gateway::trust::LoadedTrusts;
use crate::remote_store::{Link, RemoteServer};

/// The largest number of idle connections to one server.
const IDLE_MAX: usize = 16;
/// How long they are kept, in milliseconds. Servers close idle connections after five seconds or more.
const IDLE_MS_MAX: u64 = 4000;
/// The largest number of servers that are remembered. Scripts choose their names, perhaps from what clients
/// send.
const SERVERS_MAX: usize = 1024;
/// How many bytes are read at once.
const READ_BYTES: usize = 16 << 10;

/// The client of a worker.
pub(super) struct HttpClient {
    servers: RefCell<HashMap<ServerKey, Rc<RemoteServer>>>,
    worker: Weak<Worker>,
    trusts: Arc<LoadedTrusts>,
    names: Arc<FollowedNames>,
    /// The log for errors in looking names up.
    log: LogHandle,
}

/// Why there is no reply.
struct FetchFailure {
    text: String,
    /// What is known about the attempt; `None` if there was no connection.
    attempt: Option<FailedAttempt>,
}

impl HttpClient {
    /// The client of `worker`.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<HttpClient> {
        worker.belonging(|| {
            worker.each_second(|worker| HttpClient::of(worker).look_after(worker));
            HttpClient {
                servers: RefCell::default(),
                worker: Rc::downgrade(worker),
                trusts: LoadedTrusts::of(worker),
                names: FollowedNames::of(worker.shared()),
                log: worker.logs().error_log(None),
            }
        })
    }

    /// Sends a request to `target` and collects the reply.
    ///
    /// # Errors
    /// A sentence that names the server.
    pub(crate) async fn fetch(
        &self,
        target: &HttpTarget,
        asked: &WantedRequest,
    ) -> Result<Reply, String> {
        let server = self.server(&target.server)?;
        let request = encode(target, asked)?;
        let fetched = tokio::time::timeout(asked.timeout, fetch(&server, &request, asked)).await;
        let name = &target.server.address;
        match fetched {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(failure)) => Err(format!("{name}: {}", failure.text)),
            Err(_) => Err(format!(
                "{name}: no answer after {} s",
                asked.timeout.as_secs_f64()
            )),
        }
    }

    /// Closes connections that were idle for too long, and forgets servers that were not used.
    fn look_after(&self, worker: &Rc<Worker>) {
        self.servers.borrow_mut().retain(|_, server| {
            let was_used_lately = server.look_after(worker);
            was_used_lately || Rc::strong_count(server) > 1
        });
    }

    fn server(&self, key: &ServerKey) -> Result<Rc<RemoteServer>, String> {
        let mut servers = self.servers.borrow_mut();
        if let Some(server) = servers.get(key) {
            return Ok(Rc::clone(server));
        }
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        let address = &key.address;
        let tls = key.tls_name.as_ref().map(|name| self.trusts.server(name));
        let tls = tls.transpose().map_err(|why| format!("{address}: {why}"))?;
        let place = address
            .place(&self.names, &self.log)
            .map_err(|error| format!("{address}: {error}"))?;
        let server = RemoteServer::new(place, &self.worker, IDLE_MAX, IDLE_MS_MAX);
        let server = Rc::new(server.with_tls(tls));
        servers.insert(key.clone(), Rc::clone(&server));
        Ok(server)
    }
}

async fn fetch(
    server: &RemoteServer,
    request: &[u8],
    asked: &WantedRequest,
) -> Result<Reply, FetchFailure> {
    // A request that must not be sent twice needs a connection that is certainly open, so the kernel is
    // asked.
    let kept = match asked.method.is_idempotent() {
        true => server.take(),
        false => server.take_open(),
    };
    if let Some(link) = kept {
        match exchange(server, link, request, asked).await {
            // The server had closed the connection while it was idle.
            Err(failure) if failure.may_be_repeated(asked.method) => {}
            result => return result,
        }
    }
    let unconnected = |(_, text)| FetchFailure {
        text,
        attempt: None,
    };
    let link = server.connect().await.map_err(unconnected)?;
    exchange(server, link, request, asked).await
}

async fn exchange(
    server: &RemoteServer,
    mut link: Link,
    request: &[u8],
    asked: &WantedRequest,
) -> Result<Reply, FetchFailure> {
    let mut progress = FetchProgress::new(asked);
    let reusable = poll_fn(|context| progress.poll(context, &mut link.stream, request)).await?;
    if reusable {
        server.keep(link);
    }
    Ok(progress.reply())
}

/// One request and its reply, in progress.
struct FetchProgress {
    decoder: ResponseDecoder,
    bytes_max: usize,
    written: usize,
    input: Vec<u8>,
    has_begun: bool,
    has_head: bool,
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl FetchProgress {
    fn new(asked: &WantedRequest) -> FetchProgress {
        let mut decoder = ResponseDecoder::new(ResponseLimits::default());
        decoder.begin(Expected {
            method: asked.method,
            upgrade: false,
        });
        FetchProgress {
            decoder,
            bytes_max: asked.bytes_max,
            written: 0,
            input: Vec::new(),
            has_begun: false,
            has_head: false,
            status: 0,
            fields: Vec::new(),
            body: Vec::new(),
        }
    }

    fn reply(self) -> Reply {
        Reply {
            status: self.status,
            fields: self.fields,
            body: Bytes::from(self.body),
        }
    }

    /// Ready when the reply is complete. Returns whether the connection can be used again.
    fn poll(
        &mut self,
        context: &mut Context<'_>,
        stream: &mut BackendStream,
        request: &[u8],
    ) -> Poll<Result<bool, FetchFailure>> {
        while let Some(rest) = request.get(self.written..).filter(|rest| !rest.is_empty()) {
            match stream.poll_write(context, rest) {
                Poll::Ready(Ok(count)) if count > 0 => self.written += count,
                Poll::Pending => break,
                // The server may have answered before it closed the connection.
                Poll::Ready(_) => break,
            }
        }
        loop {
            let begin = self.input.len();
            self.input.resize(begin + READ_BYTES, 0);
            let room = self.input.get_mut(begin..).unwrap_or_default();
            let read = stream.poll_read(context, room);
            let count = match read {
                Poll::Ready(Ok(count)) => count,
                Poll::Pending => {
                    self.input.truncate(begin);
                    return Poll::Pending;
                }
                Poll::Ready(Err(error)) => {
                    self.input.truncate(begin);
                    return Poll::Ready(Err(self.failure(error.to_string())));
                }
            };
            self.input.truncate(begin + count);
            let step = match count {
                0 => self.end_of_input(),
                _ => self.decode(request.len()),
            };
            if let Some(result) = step {
                return Poll::Ready(result);
            }
        }
    }

    fn decode(&mut self, request_length: usize) -> Option<Result<bool, FetchFailure>> {
        self.has_begun = true;
        let mut used = 0;
        loop {
            let rest = self.input.get(used..).unwrap_or_default();
            let decoded = match self.decoder.decode(rest) {
                Ok(decoded) => decoded,
                Err(error) => return Some(Err(self.failure(error.sentence().to_owned()))),
            };
            match decoded.event {
                ResponseEvent::NeedMore => {
                    used += decoded.consumed;
                    break;
                }
                ResponseEvent::Interim => {}
                ResponseEvent::Head => self.take_head(),
                ResponseEvent::Body(range) => {
                    let bytes = rest.get(range).unwrap_or_default();
                    if self.body.len() + bytes.len() > self.bytes_max {
                        let text = format!("the answer is longer than {} bytes", self.bytes_max);
                        return Some(Err(self.failure(text)));
                    }
                    self.body.extend_from_slice(bytes);
                }
                ResponseEvent::End { reusable } => {
                    used += decoded.consumed;
                    let is_clean = used == self.input.len() && self.written == request_length;
                    return Some(Ok(reusable && is_clean));
                }
            }
            used += decoded.consumed;
        }
        self.input.drain(..used);
        None
    }

    fn end_of_input(&mut self) -> Option<Result<bool, FetchFailure>> {
        match self.decoder.end_of_input() {
            Ok(ResponseEvent::End { .. }) => Some(Ok(false)),
            Ok(_) => Some(Err(self.failure("it closed the connection".to_owned()))),
            Err(error) => Some(Err(self.failure(error.sentence().to_owned()))),
        }
    }

    fn take_head(&mut self) {
        if self.has_head {
            return;
        }
        self.has_head = true;
        let head = self.decoder.head();
        self.status = head.status().0;
        let fields = head.fields();
        self.fields = fields
            .map(|(name, value)| (name.to_owned(), value.to_vec()))
            .collect();
    }

    fn failure(&self, text: String) -> FetchFailure {
        FetchFailure {
            text,
            attempt: Some(FailedAttempt {
                reply_has_begun: self.has_begun,
                bytes_written: self.written as u64,
                body_is_held: true,
                is_refused: false,
            }),
        }
    }
}

impl FetchFailure {
    fn may_be_repeated(&self, method: Method) -> bool {
        self.attempt
            .is_some_and(|attempt| attempt.may_be_repeated(method))
    }
}

fn encode(target: &HttpTarget, asked: &WantedRequest) -> Result<Vec<u8>, String> {
    let mut fields = HeaderBlock::new();
    let host = asked.host.as_deref().unwrap_or(target.host.as_bytes());
    if host.iter().any(|byte| *byte <= b' ') {
        return Err("host: it is not a valid host".to_owned());
    }
    fields.append("Host", host);
    for (name, value) in &asked.fields {
        if is_ours(name) {
            return Err(format!("headers: a script cannot set {name}"));
        }
        if !is_token(name.as_bytes()) {
            return Err(format!("headers: {name:?} is no name of a field"));
        }
        fields.append(name, value);
    }
    let mut text = Vec::with_capacity(fields.as_bytes().len() + target.path.len() + 64);
    text.extend_from_slice(asked.method.as_str().as_bytes());
    text.push(b' ');
    text.extend_from_slice(&target.path);
    text.extend_from_slice(b" HTTP/1.1\r\n");
    text.extend_from_slice(fields.as_bytes());
    if !asked.body.is_empty() || matches!(asked.method, Method::Post | Method::Put) {
        write_content_length(&mut text, asked.body.len() as u64);
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(&asked.body);
    Ok(text)
}

/// Whether this client writes the field itself: the host, the end of the request, the connection.
fn is_ours(name: &str) -> bool {
    let field = KnownField::from_name(name.as_bytes());
    field.is_some_and(|field| field == KnownField::Host || field.is_written_by_sender())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use petrel_engine::testing::Site;
    use petrel_engine::worker::Drain;
    use petrel_lua::mlua::{FromLua, Lua, Value};

    use super::*;

    /// A server that answers one request, and a request for it. The thread ends with the connection, and
    /// returns how many bytes its last read returned.
    fn answering_once() -> (std::thread::JoinHandle<usize>, HttpTarget, WantedRequest) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let served = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("the client connects");
            let _ = socket.read(&mut [0; 4096]).expect("a request");
            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
            socket.write_all(reply).expect("it listens");
            let limit = Some(Duration::from_secs(60));
            socket.set_read_timeout(limit).expect("a limit");
            socket.read(&mut [0; 1]).expect("it is closed, not left")
        });
        let url = format!("http://127.0.0.1:{port}/");
        let target = HttpTarget::parse(url.as_bytes()).expect("a URL");
        let lua = Lua::new();
        let value = Value::String(lua.create_string(&url).expect("room"));
        let asked = WantedRequest::from_lua(value, &lua).expect("a URL");
        (served, target, asked)
    }

    #[tokio::test(flavor = "local")]
    async fn connections_that_are_not_used_are_closed() {
        let (served, target, asked) = answering_once();
        let site = Site::new("", &[]);
        let client = HttpClient::of(site.worker());
        site.worker().clock().skip(Duration::ZERO);
        let reply = client.fetch(&target, &asked).await.expect("a reply");
        assert_eq!(reply.status, 200);
        assert_eq!(client.servers.borrow().len(), 1);
        let look_after_ms = |ms| {
            site.worker().clock().skip(Duration::from_millis(ms));
            client.look_after(site.worker());
            client.servers.borrow().len()
        };
        assert_eq!(look_after_ms(IDLE_MS_MAX - 1), 1);
        assert_eq!(look_after_ms(1), 0);
        assert_eq!(served.join().expect("no panic"), 0);
    }

    #[tokio::test(flavor = "local")]
    async fn a_worker_that_drains_keeps_no_connection() {
        let (served, target, asked) = answering_once();
        let site = Site::new("", &[]);
        site.worker().drain(Drain::Successor);
        let client = HttpClient::of(site.worker());
        let reply = client.fetch(&target, &asked).await.expect("a reply");
        assert_eq!(reply.status, 200);
        let servers = client.servers.borrow();
        assert!(servers.values().all(|server| server.kept_count() == 0));
        assert_eq!(served.join().expect("no panic"), 0);
    }
}
