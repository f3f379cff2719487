//! The server's side of a simulated connection with many streams, each with an [`ExchangeRun`] and a window.
//!
//! A stream is polled when its own waker was called, when its client has done something, or when its deadline
//! has come. So a waker that is never called makes the test fail.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use petrel_engine::body::{InMemory, Piece};
use petrel_engine::ledger::Stage;
use petrel_engine::proto::request_head::{BodyFraming, Version};
use petrel_engine::settings::ConnectionScope;
use petrel_engine::testing::{AnswerHead, ExchangeRun, Site, Walked};
use tokio::sync::Notify;

use crate::client::{Ask, Reader};

/// Bytes of a request body that a stream holds before its client may send more.
const UPLOAD_WINDOW: usize = 32 * 1024;

/// Bytes that an encoder adds to each piece (RFC 9113 4.1).
const FRAME_HEADER: usize = 9;

/// A request on the connection.
pub struct Stream {
    run: ExchangeRun,
    memory: InMemory,
    state: State,
    piece: Option<Piece>,
    /// Pieces of the request body that the exchange has not taken yet.
    inbox: VecDeque<Vec<u8>>,
    /// No more pieces will follow.
    is_upload_over: bool,
    /// How many bytes the client accepts.
    window: usize,
    alarm: Arc<Alarm>,
}

enum State {
    /// Hooks run.
    Walk,
    /// A hook needs the whole body.
    WantedBody,
    /// The answer is made and sent. The head waits as long as a disk error may still change the answer.
    Send(Option<AnswerHead>),
    Over,
}

/// Wakes one stream and the connection.
struct Alarm {
    is_called: AtomicBool,
    connection: Arc<Notify>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.is_called.store(true, Ordering::SeqCst);
        self.connection.notify_one();
    }
}

impl Stream {
    pub fn open(
        ask: &Ask,
        site: &Site,
        scope: &Rc<ConnectionScope>,
        connection: &Arc<Notify>,
    ) -> Stream {
        let facts = site.connection();
        let mut run = ExchangeRun::new(site.worker(), facts);
        run.ledger.start(site.worker().clock().now());
        let options = run.head_options();
        let mut head = run.request.head.build(Version::Http2, &options);
        let sound = "the request is sound";
        for (name, value) in [
            ("method", ask.method),
            ("scheme", "http"),
            ("authority", "a.example"),
            ("path", &ask.path),
        ] {
            head.pseudo_field(name.as_bytes(), value.as_bytes())
                .expect(sound);
        }
        let body = match ask.upload.len() {
            0 if ask.method != "POST" => BodyFraming::None,
            length if ask.tells_length => BodyFraming::Length(length as u64),
            _ => BodyFraming::Chunked,
        };
        head.finish(body).expect(sound);
        run.begin(scope).expect(sound);
        let has_upload = run.body_framing() != BodyFraming::None;
        if !has_upload {
            run.complete_body();
        }
        Stream {
            memory: InMemory::new(run.file_reader()),
            run,
            state: State::Walk,
            piece: None,
            inbox: VecDeque::new(),
            is_upload_over: !has_upload,
            window: 0,
            alarm: Arc::new(Alarm {
                is_called: AtomicBool::new(true),
                connection: Arc::clone(connection),
            }),
        }
    }

    /// The client accepts so many more bytes.
    pub fn widen(&mut self, bytes: usize) {
        self.window += bytes;
        self.alarm.is_called.store(true, Ordering::SeqCst);
    }

    /// How many bytes of its body the client may send now.
    pub fn room(&self) -> usize {
        UPLOAD_WINDOW.saturating_sub(self.inbox.iter().map(Vec::len).sum())
    }

    /// Whether the client has sent all of its body.
    pub fn is_upload_over(&self) -> bool {
        self.is_upload_over
    }

    /// The client sends a piece of its body.
    pub fn take_upload(&mut self, bytes: &[u8], is_last: bool) {
        self.inbox.push_back(bytes.to_vec());
        self.is_upload_over = is_last;
        self.alarm.is_called.store(true, Ordering::SeqCst);
    }

    /// The client has cancelled the request.
    pub fn reset(mut self) {
        if !self.is_over() {
            self.run
                .abort(Stage::Send, format_args!("the client has reset the stream"));
        }
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Polls the stream if something has happened. `credit` is the window of the connection. Returns whether
    /// it was polled.
    pub fn poll_if_called(&mut self, now_s: u32, credit: &mut usize, reader: &mut Reader) -> bool {
        let is_due = !self.is_over() && self.run.due_s() <= now_s;
        let is_called = self.alarm.is_called.swap(false, Ordering::SeqCst);
        if self.is_over() || !(is_called || is_due) {
            return false;
        }
        let waker = Waker::from(Arc::clone(&self.alarm));
        let mut context = Context::from_waker(&waker);
        while self.step(&mut context, credit, reader).is_continue() {}
        true
    }

    /// Whether the stream has something to send but the connection has no credit.
    pub fn wants_credit(&self) -> bool {
        self.piece.is_some() && self.window > 0
    }

    pub fn call(&self) {
        self.alarm.is_called.store(true, Ordering::SeqCst);
    }

    fn step(
        &mut self,
        context: &mut Context<'_>,
        credit: &mut usize,
        reader: &mut Reader,
    ) -> ControlFlow<()> {
        match &mut self.state {
            State::Walk => match self.run.poll_answer(context) {
                Poll::Ready(Walked::Answered) => {
                    self.state = State::Send(Some(self.run.answer_head()));
                }
                Poll::Ready(Walked::NeedBody) => self.state = State::WantedBody,
                Poll::Pending => {
                    while self.run.take_interim().is_some() {}
                    if !(self.run.takes_stream() && self.feed(context)) {
                        return ControlFlow::Break(());
                    }
                }
            },
            State::WantedBody => {
                self.feed(context);
                if !self.run.request.body.is_complete() {
                    return ControlFlow::Break(());
                }
                self.state = State::Walk;
            }
            State::Send(_) => return self.send(context, credit, reader),
            State::Over => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// Passes received pieces of the request body on, as far as there is room. Returns whether it did.
    fn feed(&mut self, context: &mut Context<'_>) -> bool {
        let body_bytes = self.run.request.body_bytes;
        while !self.inbox.is_empty() && self.run.poll_room(context).is_ready() {
            let piece = self.inbox.pop_front().unwrap_or_default();
            self.run.body_moved(piece.len() as u64);
            self.run.receive(&piece);
            self.run.renew_body_time();
        }
        let is_received = self.inbox.is_empty() && self.is_upload_over;
        let is_complete = self.run.request.body.is_complete();
        let body = &mut self.run.request.body;
        if is_received && !is_complete && body.poll_written(context).is_ready() {
            self.run.complete_body();
            return true;
        }
        self.run.request.body_bytes > body_bytes
    }

    fn send(
        &mut self,
        context: &mut Context<'_>,
        credit: &mut usize,
        reader: &mut Reader,
    ) -> ControlFlow<()> {
        self.run.work(context);
        while self.run.takes_stream() && self.feed(context) {
            self.run.work(context);
        }
        if self.piece.is_none() {
            match self.run.poll_in_memory(&mut self.memory, context) {
                Poll::Ready(Some(Ok(piece))) => self.piece = Some(piece),
                Poll::Ready(Some(Err(error))) => {
                    if self.run.fail_answer(&error) {
                        self.state = State::Walk;
                        return ControlFlow::Continue(());
                    }
                    reader.broken(&error);
                }
                Poll::Ready(None) => {
                    self.send_head(reader);
                    reader.end();
                    self.run.finish();
                    self.state = State::Over;
                    return ControlFlow::Break(());
                }
                Poll::Pending => {
                    let has_begun = self.run.sent.bytes > 0;
                    if has_begun || !self.run.may_still_fail() && !self.memory.is_waiting() {
                        self.send_head(reader);
                    }
                    return ControlFlow::Break(());
                }
            }
        }
        self.send_head(reader);
        let ready = self.piece.as_ref().map_or(0, |piece| piece.length());
        let Some(allowed) = self
            .run
            .poll_allowance(ready + FRAME_HEADER as u64, context)
        else {
            return ControlFlow::Break(());
        };
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        let allowed = allowed.min(self.window).min(*credit);
        let Some(piece) = &mut self.piece else {
            return ControlFlow::Continue(());
        };
        let bytes = piece.in_memory().expect("it was asked for in memory");
        let bytes = &bytes[..bytes.len().min(allowed)];
        if bytes.is_empty() {
            return ControlFlow::Break(());
        }
        reader.data(bytes);
        let count = bytes.len();
        (self.window, *credit) = (self.window - count, *credit - count);
        piece.advance(count as u64);
        if piece.length() == 0 {
            self.piece = None;
        }
        self.run
            .account((count + FRAME_HEADER) as u64, count as u64);
        ControlFlow::Continue(())
    }

    fn send_head(&mut self, reader: &mut Reader) {
        if let State::Send(head) = &mut self.state
            && let Some(head) = head.take()
        {
            reader.head(&head);
            self.run.account(FRAME_HEADER as u64, 0);
        }
    }
}
