//! A connection of a web server: records in, work done, records out.
//!
//! One hand-written future, which polls all its requests itself. One read takes all that has
//! arrived, one write sends all answers that are ready; where nothing waits there is no timer.

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

/// A connection. It is over when the future is.
pub(crate) struct Connection<P: FcgiProgram> {
    program: Rc<P>,
    socket: Socket,
    decoder: RequestDecoder,
    /// The beginning of a record, to be gone on with. Shorter than a management record may be.
    rest: Vec<u8>,
    slots: Vec<Slot<P::FcgiRequest>>,
    /// What is to be sent.
    out: Vec<u8>,
    is_counted_unsent: bool,
    /// Nothing more is read, and the end of what is to be sent is the end.
    is_closing: bool,
    /// When the peer last took something, or there was something new for it.
    moved: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A request of the connection.
struct Slot<R> {
    id: u16,
    /// What becomes of the connection afterwards.
    after: AfterRequest,
    request: R,
}

/// Why a connection is over.
#[derive(Debug)]
enum ConnectionEnd {
    /// Everything was done, or the peer has closed it.
    Done,
    /// The peer does not keep to the protocol.
    Protocol(RecordError),
    /// It takes nothing of what is sent to it.
    Stalled,
    /// The kernel says so.
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

/// The only thing in it that is ever pinned is the timer, which has a box of its own.
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
    /// Takes a connected socket.
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

    /// Does what can be done without waiting.
    fn drive(&mut self, context: &mut Context<'_>) -> Result<(), ConnectionEnd> {
        loop {
            let has_received = self.receive(context)?;
            let effort = self.work(context);
            let has_sent = self.send(context)?;
            if self.is_closing && self.slots.is_empty() && self.out.is_empty() {
                return Err(ConnectionEnd::Done);
            }
            if effort == Effort::Great {
                // It has kept the others waiting for long enough.
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

    /// Reads once. False if nothing has arrived, or nothing is wanted by now.
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

    /// FCGI_GET_VALUES: what is asked for and known.
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

    /// Goes on with the requests that can go on, and takes their output. The greatest effort of them.
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

    /// Half an answer must not look like a whole one. Without END_REQUEST the web server knows; where
    /// others share the connection it is told by a status.
    fn cut_short(&mut self, index: usize) {
        let slot = self.slots.swap_remove(index);
        match self.slots.is_empty() {
            true => self.is_closing = true,
            false => write_end_request(&mut self.out, slot.id, 1, ProtocolStatus::RequestComplete),
        }
    }

    /// Sends what there is. False if nothing could be sent.
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

    /// Ends what takes too long, and sets the timer for what may. True if something has ended.
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
                    // What has nothing to do but wait for room is looked at again when there is some.
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

    /// When something has to be looked at again, at the latest.
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
                format!("is closed, nothing was taken for {} s", STALL_MAX.as_secs())
            }
            ConnectionEnd::Broken(error) => format!("is lost: {error}"),
        };
        common.log(&format!("a connection {why}"));
    }
}

/// Memory that a connection keeps for what is to be sent.
const KEPT_BYTES_MAX: usize = 16 * 1024;

const _: () = assert!(proto::fastcgi::VALUES_BYTES_MAX + 64 < RECEIVE_BYTES);
const _: () = assert!(STALL_MAX.as_millis() >= Duration::from_secs(1).as_millis());
