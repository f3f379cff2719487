//! A reply that is sent to the client while it comes from the backend.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::body::{Ahead, BodySource, Piece, RequestBody, Spool};
use petrel_engine::ledger::Stage;
use petrel_engine::limits;
use petrel_engine::settings::Settings;
use petrel_engine::worker::Worker;

use super::failure::Failure;
use super::talk::{Event, Flow, Received, Talk, name_of};

/// The body of such a reply. Passes a streamed request body on meanwhile, and both directions of
/// a tunnel.
pub struct Reply {
    worker: Rc<Worker>,
    settings: Rc<Settings>,
    /// Whose turn at the disk it takes.
    client: u64,
    talk: Option<Talk>,
    spool: Spool,
    ahead: Ahead,
    has_ended: bool,
    failure: Option<Failure>,
    /// The request body, or the client's side of a tunnel, can go nowhere any more.
    cannot_send: bool,
}

impl Reply {
    /// The rest of what `talk` brings for `exchange`. `ahead`: how far the backend may be ahead of the client.
    pub fn new(exchange: &Exchange, talk: Talk, ahead: Ahead) -> Reply {
        Reply {
            worker: Rc::clone(&exchange.worker),
            settings: Rc::clone(&exchange.settings),
            client: exchange.connection.client_key(),
            talk: Some(talk),
            spool: Spool::default(),
            ahead,
            has_ended: false,
            failure: None,
            cannot_send: false,
        }
    }

    /// Takes from the backend what it has, as far as there is room.
    fn receive(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_ended || self.failure.is_some() || self.is_far_ahead() {
            return Poll::Pending;
        }
        let Some(talk) = &mut self.talk else {
            return Poll::Pending;
        };
        match self.spool.poll_room(context) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => {
                self.failure = Some(Failure::Spool(error));
                return Poll::Ready(());
            }
            Poll::Pending => {
                talk.was_held_up(&self.worker);
                return Poll::Pending;
            }
        }
        let Reply {
            spool,
            settings,
            worker,
            client,
            ahead,
            ..
        } = self;
        let held_max = match ahead {
            Ahead::Bounded => limits::STREAM_BUFFER_BYTES_MAX,
            Ahead::Unbounded => u64::MAX,
        };
        let (backend, host) = (talk.backend().cloned(), Rc::clone(&talk.host));
        let directories = &worker.process().upload_directories;
        let received = talk.poll_receive(worker, context, &mut |event| {
            match event {
                Event::Body(bytes) => spool.push(bytes, directories, *client),
                Event::Log(bytes) => log(settings, name_of(backend.as_ref(), &host), bytes),
                Event::Interim(_) | Event::Head(_) => {}
            }
            match spool.held() < held_max && spool.has_room() {
                true => Flow::Go,
                false => Flow::Stop,
            }
        });
        let is_late = self.is_late();
        match received {
            Poll::Ready(Err(failure)) => self.failure = Some(failure),
            Poll::Ready(Ok(Received::End)) => self.has_ended = true,
            Poll::Ready(Ok(Received::Stopped)) => {}
            Poll::Pending if is_late => self.failure = Some(Failure::ReadTimeout),
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(())
    }

    /// Whether the client has to take something first.
    fn is_far_ahead(&self) -> bool {
        self.ahead == Ahead::Bounded && self.spool.held() >= limits::STREAM_BUFFER_BYTES_MAX
    }

    fn is_late(&self) -> bool {
        let due = self.talk.as_ref().and_then(Talk::due_s);
        due.is_some_and(|(due_s, _)| due_s <= self.worker.clock().seconds())
    }

    fn broken(&mut self, failure: &Failure) -> io::Error {
        let name = self.talk.as_ref().map_or("", |talk| talk.backend_name());
        let kind = match failure {
            Failure::ReadTimeout | Failure::WriteTimeout => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::InvalidData,
        };
        let message = format!("{failure} backend={name}");
        // Nothing can be saved of this connection.
        if let Some(talk) = self.talk.take() {
            log_dropped(&self.settings, &talk);
        }
        io::Error::new(kind, message)
    }
}

impl BodySource for Reply {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        loop {
            if let Some(piece) = self.spool.take() {
                return Poll::Ready(Some(Ok(piece)));
            }
            if let Some(failure) = self.failure.take() {
                let error = self.broken(&failure);
                return Poll::Ready(Some(Err(error)));
            }
            if self.has_ended {
                return Poll::Ready(None);
            }
            if self.talk.is_none() {
                return Poll::Ready(Some(Err(io::ErrorKind::BrokenPipe.into())));
            }
            // What came before there was no more is sent at once.
            if self.receive(context).is_pending() && self.spool.is_empty() {
                return Poll::Pending;
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        if self.has_ended {
            return Some(self.spool.held());
        }
        let talk = self.talk.as_ref().filter(|talk| !talk.is_tunnel())?;
        Some(talk.conversation()?.remaining()? + self.spool.held())
    }

    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        let open = self.talk.as_mut().filter(|talk| talk.is_open());
        match open.filter(|_| !self.cannot_send) {
            Some(talk) => {
                let sent = talk.poll_send(request_body, &self.worker, context);
                if let Poll::Ready(Err(_)) = sent {
                    // The reply may be there all the same; what it is missing shows by itself.
                    self.cannot_send = true;
                    request_body.give_up();
                }
            }
            // The backend has said everything without waiting for the rest.
            None if request_body.is_wanted() => request_body.give_up(),
            None => {}
        }
        if self.ahead == Ahead::Unbounded {
            while self.receive(context).is_ready() && !self.has_ended && self.failure.is_none() {}
        }
    }

    fn wake_at_s(&self) -> Option<u32> {
        let due = self.talk.as_ref().and_then(Talk::due_s);
        due.map(|(due_s, _)| due_s)
    }

    fn stage(&self) -> Stage {
        Stage::BackendReply
    }

    fn has_failed(&self) -> bool {
        let is_open = self.talk.as_ref().is_some_and(Talk::is_open);
        self.cannot_send || !is_open || self.is_late()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(talk) = self.talk.take() {
            log_dropped(&self.settings, &talk);
            talk.detach(&self.worker);
        }
    }
}

/// What is to be said when it said too much.
pub fn log_dropped(settings: &Settings, talk: &Talk) {
    let dropped = talk.log_bytes_dropped();
    if dropped > 0 {
        settings.core.error_log.error(format_args!(
            "(backend-reply) stderr: {dropped} more bytes are left out backend={}",
            talk.backend_name()
        ));
    }
}

/// What an application says for the error log, line by line.
pub fn log(settings: &Settings, backend: &str, bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.trim_ascii_end();
        if !line.is_empty() {
            settings.core.error_log.error(format_args!(
                "(backend-reply) stderr: {} backend={backend}",
                String::from_utf8_lossy(line).escape_debug()
            ));
        }
    }
}
