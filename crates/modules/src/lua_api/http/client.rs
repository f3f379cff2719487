//! An HTTP/1.1 client of one worker: connections are kept, replies are read whole.
#![expect(clippy::disallowed_methods, reason = "one call of a script is timed")]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use petrel_engine::log::LogHandle;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{
    Asked as Expected, ResponseDecoder, ResponseEvent, ResponseLimits, write_content_length,
};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::worker::Worker;

use super::super::asked::WantedRequest;
use super::super::reply::Reply;
use super::target::HttpTarget;
use crate::gateway::replay::FailedAttempt;
use crate::gateway::resolve::FollowedNames;
use crate::gateway::stream::BackendStream;
use crate::remote_store::{StoreAddress, StorePlace};

/// Connections to one server that wait for the next request.
const IDLE_MAX: usize = 16;
/// How long they wait. Servers close theirs after five seconds or more.
const IDLE_TIME: Duration = Duration::from_secs(4);
/// Servers that are remembered. Names come from scripts, perhaps from clients.
const SERVERS_MAX: usize = 1024;
/// Room of an input buffer that is read into at once.
const READ_BYTES: usize = 16 << 10;

/// The client of a worker.
pub(super) struct HttpClient {
    servers: RefCell<HashMap<StoreAddress, Rc<Server>>>,
    /// Whether a task is there that closes connections nobody uses.
    is_swept: Cell<bool>,
    worker: Weak<Worker>,
    names: Arc<FollowedNames>,
    /// For what the look-up of names has to say.
    log: LogHandle,
}

struct Server {
    place: StorePlace,
    worker: Weak<Worker>,
    idle: RefCell<Vec<(BackendStream, Instant)>>,
}

/// Why there is no reply.
struct FetchFailure {
    text: String,
    /// How far the request had come; `None` when there was no connection.
    attempt: Option<FailedAttempt>,
}

impl HttpClient {
    /// The one of `worker`.
    pub(crate) fn of(worker: &Rc<Worker>) -> Rc<HttpClient> {
        worker.belonging(|| HttpClient {
            servers: RefCell::default(),
            is_swept: Cell::new(false),
            worker: Rc::downgrade(worker),
            names: FollowedNames::of(worker.shared()),
            log: worker.logs().error_log(None),
        })
    }

    /// Asks `target` and collects the reply.
    ///
    /// # Errors
    /// A sentence that names the server.
    pub(crate) async fn fetch(
        self: &Rc<HttpClient>,
        target: &HttpTarget,
        asked: &WantedRequest,
    ) -> Result<Reply, String> {
        let server = self.server(&target.address)?;
        let request = encode(target, asked)?;
        let fetched = tokio::time::timeout(asked.timeout, server.fetch(&request, asked)).await;
        self.sweep_later();
        let name = &target.address;
        match fetched {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(failure)) => Err(format!("{name}: {}", failure.text)),
            Err(_) => Err(format!(
                "{name}: no answer after {} s",
                asked.timeout.as_secs_f64()
            )),
        }
    }

    /// Sees to it that connections which nobody uses are closed, and servers forgotten that have none.
    fn sweep_later(self: &Rc<HttpClient>) {
        if self.is_swept.replace(true) {
            return;
        }
        let client = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(IDLE_TIME).await;
                match client.upgrade() {
                    Some(client) if client.sweep() => client.is_swept.set(false),
                    Some(_) => continue,
                    None => {}
                }
                return;
            }
        });
    }

    /// Whether nothing is left.
    fn sweep(&self) -> bool {
        let mut servers = self.servers.borrow_mut();
        servers.retain(|_, server| {
            server.close_old();
            // Somebody is asking it, or may again at once.
            Rc::strong_count(server) > 1 || !server.idle.borrow().is_empty()
        });
        servers.is_empty()
    }

    fn server(&self, address: &StoreAddress) -> Result<Rc<Server>, String> {
        let mut servers = self.servers.borrow_mut();
        if let Some(server) = servers.get(address) {
            return Ok(Rc::clone(server));
        }
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        let place = address
            .place(&self.names, &self.log)
            .map_err(|error| format!("{address}: {error}"))?;
        let server = Rc::new(Server {
            place,
            worker: Weak::clone(&self.worker),
            idle: RefCell::default(),
        });
        servers.insert(address.clone(), Rc::clone(&server));
        Ok(server)
    }
}

impl Server {
    async fn fetch(&self, request: &[u8], asked: &WantedRequest) -> Result<Reply, FetchFailure> {
        if let Some(stream) = self.take_idle(asked.method) {
            match self.exchange(stream, request, asked).await {
                // The server closed the connection while it was idle.
                Err(failure) if failure.may_be_repeated(asked.method) => {}
                result => return result,
            }
        }
        let stream = self
            .place
            .connect()
            .await
            .map_err(|(_, text)| FetchFailure {
                text,
                attempt: None,
            })?;
        self.exchange(stream, request, asked).await
    }

    /// A connection for a request with `method`. One that must not be sent twice asks the kernel whether
    /// the server has closed the connection.
    fn take_idle(&self, method: Method) -> Option<BackendStream> {
        self.close_old();
        loop {
            let (stream, _) = self.idle.borrow_mut().pop()?;
            if method.is_idempotent() || !stream.is_stale_now() {
                return Some(stream);
            }
        }
    }

    fn close_old(&self) {
        let is_good = |(stream, since): &(BackendStream, Instant)| {
            since.elapsed() < IDLE_TIME && !stream.is_stale()
        };
        self.idle.borrow_mut().retain(is_good);
    }

    async fn exchange(
        &self,
        mut stream: BackendStream,
        request: &[u8],
        asked: &WantedRequest,
    ) -> Result<Reply, FetchFailure> {
        let mut progress = FetchProgress::new(asked);
        let reusable = poll_fn(|context| progress.poll(context, &mut stream, request)).await?;
        let mut idle = self.idle.borrow_mut();
        if reusable && idle.len() < IDLE_MAX && !self.is_draining() {
            idle.push((stream, Instant::now()));
        }
        Ok(progress.reply())
    }

    /// Whether the worker drains: a server process that a reload has replaced keeps no connection.
    fn is_draining(&self) -> bool {
        let worker = self.worker.upgrade();
        worker.is_none_or(|worker| worker.draining().is_some())
    }
}

/// One request and its reply on their way.
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

    /// Ready when the reply is whole: whether the connection can be used again.
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
                // It may have answered before it closed.
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
        return Err("host: it is not one".to_owned());
    }
    fields.append("Host", host);
    for (name, value) in &asked.fields {
        if is_ours(name) {
            return Err(format!("headers: {name} is not for a script to set"));
        }
        if name.is_empty() || !name.bytes().all(is_token) {
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

/// Fields that say who is asked, where the request ends and what becomes of the connection.
fn is_ours(name: &str) -> bool {
    let field = KnownField::from_name(name.as_bytes());
    field.is_some_and(|field| field == KnownField::Host || field.is_written_by_sender())
}

/// RFC 9110 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use petrel_engine::testing::Site;
    use petrel_engine::worker::Drain;
    use petrel_lua::mlua::{FromLua, Lua, Value};

    use super::*;

    /// A server that answers one request, and a request to it. The thread ends with the connection:
    /// with the count of bytes that its last read gave.
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
    async fn connections_that_nobody_uses_are_closed() {
        let (served, target, asked) = answering_once();
        let site = Site::new("", &[]);
        let client = HttpClient::of(site.worker());
        let reply = client.fetch(&target, &asked).await.expect("a reply");
        assert_eq!(reply.status, 200);
        assert_eq!(client.servers.borrow().len(), 1);
        let is_over = async {
            while !client.servers.borrow().is_empty() || client.is_swept.get() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(60), is_over).await;
        in_time.expect("the task has closed it and ended");
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
        assert!(
            servers
                .values()
                .all(|server| server.idle.borrow().is_empty())
        );
        assert_eq!(served.join().expect("no panic"), 0);
    }
}
