//! A connection from a web server: reads records, works on the requests, writes records.
//!
//! One hand-written future, which polls all its requests itself. One read takes everything that has arrived,
//! and one write sends all replies that are ready. There is a timer only while a request or a write is
//! waiting.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::socket::Socket;
use proto::fastcgi::{
    AfterRequest, Pairs, ProtocolStatus, RecordError, RequestDecoder, RequestEvent, Role,
    write_end_request, write_unknown_type, write_values_result,
};
use tokio::time::Sleep;

use super::limits::{
    CONNECTIONS_PER_WORKER_MAX, RECEIVE_BYTES, REQUESTS_PER_CONNECTION_MAX, STALL_MAX,
    UNSENT_BYTES_MAX,
};
use super::{Common, Delivery, Effort, FcgiProgram, FcgiRequest};

/// A connection. Its future ends when the connection does.
pub(crate) struct Connection<P: FcgiProgram> {
    program: Rc<P>,
    socket: Socket,
    decoder: RequestDecoder,
    /// The incomplete record at the end of what was read. It is shorter than the longest management record.
    rest: Vec<u8>,
    slots: Vec<Slot<P::FcgiRequest>>,
    /// Bytes waiting to be sent.
    out: Vec<u8>,
    is_counted_unsent: bool,
    /// Nothing more is read; the connection ends when everything was sent.
    is_closing: bool,
    /// When the web server last took some of the output, or when output began to wait.
    moved: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A request on the connection.
struct Slot<R> {
    id: u16,
    /// Whether the connection is closed after this request.
    after: AfterRequest,
    request: R,
}

/// Why a connection is over.
#[derive(Debug)]
enum ConnectionEnd {
    /// All requests were answered, or the web server closed the connection.
    Done,
    /// The web server violated the protocol.
    Protocol(RecordError),
    /// The web server does not read what is sent to it.
    Stalled,
    /// The kernel reported an error.
    Broken(io::Error),
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> ConnectionEnd {
        ConnectionEnd::Broken(error)
    }
}

impl From<RecordError> for ConnectionEnd {
    fn from(error: RecordError) -> ConnectionEnd {
        ConnectionEnd::Protocol(error)
    }
}

/// Only the timer is ever pinned, and it has a box of its own.
impl<P: FcgiProgram> Unpin for Connection<P> {}

impl<P: FcgiProgram> Future for Connection<P> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.drive(context) {
            Ok(()) => Poll::Pending,
            Err(end) => {
                end.log(self.program.common());
                Poll::Ready(())
            }
        }
    }
}

impl<P: FcgiProgram> Connection<P> {
    /// Starts to serve a connected socket.
    pub(crate) fn new(program: &Rc<P>, socket: Socket) -> Connection<P> {
        Connection {
            program: Rc::clone(program),
            socket,
            decoder: RequestDecoder::new(),
            rest: Vec::new(),
            slots: Vec::new(),
            out: Vec::new(),
            is_counted_unsent: false,
            is_closing: false,
            moved: Instant::now(),
            timer: None,
        }
    }

    /// Does everything that is possible without waiting.
    fn drive(&mut self, context: &mut Context<'_>) -> Result<(), ConnectionEnd> {
        loop {
            let has_received = self.receive(context)?;
            let effort = self.work(context);
            let has_sent = self.send(context)?;
            if self.is_closing && self.slots.is_empty() && self.out.is_empty() {
                return Err(ConnectionEnd::Done);
            }
            if effort == Effort::Great {
                // This connection has used the thread for long enough: the other ones get their turn first.
                context.waker().wake_by_ref();
                return Ok(());
            }
            if !has_received
                && !has_sent
                && effort == Effort::None
                && !self.look_at_time(context)?
            {
                return Ok(());
            }
        }
    }

    /// Reads once. Returns false if nothing has arrived, or if the connection takes no input now.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEnd> {
        if self.is_closing || self.out.len() >= 2 * UNSENT_BYTES_MAX {
            return Ok(false);
        }
        let program = Rc::clone(&self.program);
        let mut buffer = program.common().receive_buffer().borrow_mut();
        let (begin, free) = buffer
            .split_at_mut_checked(self.rest.len())
            .expect("what is left over of a record is shorter than the buffer");
        let Poll::Ready(count) = self.socket.poll_read(context, free) else {
            return Ok(false);
        };
        let count = count?;
        if count == 0 {
            return Err(ConnectionEnd::Done);
        }
        begin.copy_from_slice(&self.rest);
        let length = self.rest.len() + count;
        self.rest.clear();
        let input = buffer.get(..length).unwrap_or_default();
        self.decode(input)?;
        Ok(true)
    }

    fn decode(&mut self, mut input: &[u8]) -> Result<(), ConnectionEnd> {
        let now = Instant::now();
        loop {
            let step = self.decoder.decode(input)?;
            let is_all = step.event == RequestEvent::NeedMore;
            self.handle(step.event, input, now)?;
            input = input.get(step.consumed..).unwrap_or_default();
            if is_all {
                break;
            }
        }
        self.rest.extend_from_slice(input);
        Ok(())
    }

    fn handle(
        &mut self,
        event: RequestEvent,
        input: &[u8],
        now: Instant,
    ) -> Result<(), ConnectionEnd> {
        let part = |range| input.get(range).unwrap_or_default();
        match event {
            RequestEvent::NeedMore => {}
            RequestEvent::Begin { id, role, after } => self.begin(id, role, after, now)?,
            RequestEvent::Params(id, range) => {
                if let Some(slot) = self.slot(id) {
                    slot.add_params(part(range));
                }
            }
            RequestEvent::ParamsEnd(id) => {
                if self.slot(id).is_some_and(|slot| !slot.end_params()) {
                    return Err(ConnectionEnd::Protocol(RecordError::Pair));
                }
            }
            RequestEvent::Stdin(id, range) => {
                if let Some(slot) = self.slot(id) {
                    slot.add_body(part(range));
                }
            }
            RequestEvent::StdinEnd(id) => {
                if let Some(slot) = self.slot(id) {
                    slot.end_body();
                }
            }
            RequestEvent::Abort(id) => self.abort(id),
            RequestEvent::GetValues(range) => self.tell_values(part(range)),
            RequestEvent::UnknownManagement(kind) => write_unknown_type(&mut self.out, kind),
        }
        Ok(())
    }

    fn begin(
        &mut self,
        id: u16,
        role: Option<Role>,
        after: AfterRequest,
        now: Instant,
    ) -> Result<(), ConnectionEnd> {
        if self.slot(id).is_some() {
            return Err(ConnectionEnd::Protocol(RecordError::RequestId));
        }
        let refused = if role != Some(Role::Responder) {
            ProtocolStatus::UnknownRole
        } else if self.slots.len() < REQUESTS_PER_CONNECTION_MAX
            && let Some(request) = self.program.begin(now)
        {
            self.slots.push(Slot { id, after, request });
            return Ok(());
        } else {
            ProtocolStatus::Overloaded
        };
        write_end_request(&mut self.out, id, 0, refused);
        self.is_closing |= after == AfterRequest::Close;
        Ok(())
    }

    fn abort(&mut self, id: u16) {
        if let Some(index) = self.slots.iter().position(|slot| slot.id == id) {
            self.end_slot(index);
            write_end_request(&mut self.out, id, 0, ProtocolStatus::RequestComplete);
        }
    }

    /// Answers FCGI_GET_VALUES with those of the requested values that this program knows.
    fn tell_values(&mut self, asked: &[u8]) {
        let workers = self.program.common().workers;
        let connections = (CONNECTIONS_PER_WORKER_MAX * workers).to_string();
        let requests = (self.program.requests_max() * workers).to_string();
        let known: [(&[u8], &[u8]); 3] = [
            (b"FCGI_MAX_CONNS", connections.as_bytes()),
            (b"FCGI_MAX_REQS", requests.as_bytes()),
            (b"FCGI_MPXS_CONNS", b"1"),
        ];
        let is_asked = |name: &[u8]| Pairs::new(asked).flatten().any(|(asked, _)| asked == name);
        let told = known.into_iter().filter(|(name, _)| is_asked(name));
        write_values_result(&mut self.out, told);
    }

    /// Lets each request do what it can and takes its output. Returns the greatest effort of any of them.
    fn work(&mut self, context: &mut Context<'_>) -> Effort {
        let mut all = Effort::None;
        let mut index = 0;
        while let Some(slot) = self.slots.get_mut(index) {
            let effort = slot.request.work(context);
            let delivery = slot.request.deliver(slot.id, &mut self.out);
            all = match (effort, delivery, all) {
                (Effort::Great, _, _) | (_, _, Effort::Great) => Effort::Great,
                (Effort::None, Delivery::Waits, all) => all,
                _ => Effort::Usual,
            };
            match delivery {
                Delivery::Waits | Delivery::Moved => index += 1,
                Delivery::Ended => self.end_slot(index),
                Delivery::CutShort => self.cut_short(index),
            }
        }
        all
    }

    fn end_slot(&mut self, index: usize) {
        let slot = self.slots.swap_remove(index);
        self.is_closing |= slot.after == AfterRequest::Close;
    }

    /// Ends a request in the middle of its reply, so that the web server does not take the part for the
    /// whole. If the connection has no other request it is closed without END_REQUEST; else END_REQUEST
    /// carries an error status.
    fn cut_short(&mut self, index: usize) {
        let slot = self.slots.swap_remove(index);
        match self.slots.is_empty() {
            true => self.is_closing = true,
            false => write_end_request(&mut self.out, slot.id, 1, ProtocolStatus::RequestComplete),
        }
    }

    /// Sends what is waiting. Returns false if the socket took nothing.
    fn send(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEnd> {
        let mut sent = 0;
        while let Some(rest) = self.out.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.socket.poll_write(context, rest) {
                Poll::Ready(count) => sent += count?,
                Poll::Pending => break,
            }
        }
        if sent == self.out.len() {
            self.out.clear();
            self.out.shrink_to(KEPT_BYTES_MAX);
        } else {
            self.out.drain(..sent);
        }
        let is_unsent = !self.out.is_empty();
        if is_unsent != self.is_counted_unsent {
            let common = self.program.common();
            common.count_unsent(self.is_counted_unsent, is_unsent);
            self.is_counted_unsent = is_unsent;
            self.moved = Instant::now();
        } else if is_unsent && sent > 0 {
            self.moved = Instant::now();
        }
        Ok(sent > 0)
    }

    /// Ends what has taken too long, and sets the timer for the next deadline. Returns true if a deadline
    /// passed.
    fn look_at_time(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEnd> {
        let Some(next) = self.next_deadline() else {
            self.timer = None;
            return Ok(false);
        };
        let now = Instant::now();
        if next <= now {
            if !self.out.is_empty() && now.duration_since(self.moved) >= STALL_MAX {
                return Err(ConnectionEnd::Stalled);
            }
            let requests = self.slots.iter_mut().map(|slot| &mut slot.request);
            for request in requests.filter(|request| request.deadline() <= now) {
                request.expire(now);
                if request.deadline() <= now {
                    // The request waits only for room in the output. It continues when there is some, so its
                    // deadline moves.
                    request.put_off(now + STALL_MAX);
                }
            }
            return Ok(true);
        }
        let at = tokio::time::Instant::from_std(next);
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        Ok(timer.as_mut().poll(context).is_ready())
    }

    /// The next deadline of a request or of the output.
    fn next_deadline(&self) -> Option<Instant> {
        let requests = self.slots.iter().map(|slot| slot.request.deadline());
        let stalled = (!self.out.is_empty()).then(|| self.moved + STALL_MAX);
        requests.chain(stalled).min()
    }

    fn slot(&mut self, id: u16) -> Option<&mut P::FcgiRequest> {
        let slot = self.slots.iter_mut().find(|slot| slot.id == id);
        slot.map(|slot| &mut slot.request)
    }
}

impl<P: FcgiProgram> Drop for Connection<P> {
    fn drop(&mut self) {
        let common = self.program.common();
        common.count_unsent(self.is_counted_unsent, false);
    }
}

impl ConnectionEnd {
    fn log(&self, common: &Common) {
        let why = match self {
            ConnectionEnd::Done => return,
            ConnectionEnd::Protocol(error) => format!("is closed, the web server sent {error}"),
            ConnectionEnd::Stalled => {
                format!(
                    "is closed, the web server has read nothing for {} s",
                    STALL_MAX.as_secs()
                )
            }
            ConnectionEnd::Broken(error) => format!("is lost: {error}"),
        };
        common.log(&format!("a connection {why}"));
    }
}

/// Bytes of the output buffer that are kept when all was sent.
const KEPT_BYTES_MAX: usize = 16 * 1024;

const _: () = assert!(proto::fastcgi::VALUES_BYTES_MAX + 64 < RECEIVE_BYTES);
const _: () = assert!(STALL_MAX.as_millis() >= Duration::from_secs(1).as_millis());
