//! A body that compresses another one while it is pulled.
//!
//! Time is what has to be shared: a turn ends after [`TURN_MAX`] of compressing or the configured
//! number of bytes, whichever comes first; then the body says "pending", having woken its task, and
//! the worker's other connections run. When the body inside pauses, what is compressed so far
//! is flushed, so that a client sees an event when it happens.

use std::io;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use petrel_engine::body::{Body, BodySource, Piece};
use petrel_engine::proto::accept::Coding;

use super::encoder::Encoder;
use super::options::Options;

/// The compressed form of a body.
pub(super) struct CompressedBody {
    source: Body,
    piece: Option<Piece>,
    /// `None` after the end.
    encoder: Option<Encoder>,
    buffer: Vec<u8>,
    piece_bytes: usize,
    flushes: bool,
    is_flushed: bool,
    turn: Turn,
}

impl CompressedBody {
    /// # Errors
    /// Memory is short.
    pub fn new(source: Body, coding: Coding, options: &Options) -> io::Result<CompressedBody> {
        let encoder = Encoder::new(coding, &options.params, source.length())?;
        Ok(CompressedBody {
            source,
            piece: None,
            encoder: Some(encoder),
            buffer: vec![0; STEP_BYTES],
            piece_bytes: options.piece_bytes,
            flushes: options.flushes,
            is_flushed: true,
            turn: Turn::new(options.turn_bytes),
        })
    }

    /// Compresses a step of the present piece; false if there is none.
    fn step(&mut self) -> io::Result<bool> {
        let (Some(piece), Some(encoder)) = (&mut self.piece, &mut self.encoder) else { return Ok(false) };
        let started = Instant::now();
        let count = piece.read(&mut self.buffer)?;
        encoder.write(self.buffer.get(..count).unwrap_or_default())?;
        self.is_flushed = false;
        if piece.length() == 0 {
            self.piece = None;
            if self.flushes {
                encoder.flush()?;
                self.is_flushed = true;
            }
        }
        self.turn.spend(count, started.elapsed());
        Ok(true)
    }

    /// Output to send now, if there is enough of it.
    fn take(&mut self, at_least: usize) -> Option<Piece> {
        let encoder = self.encoder.as_mut().filter(|encoder| encoder.waiting() >= at_least)?;
        Some(Piece::Bytes(encoder.take().into()))
    }

    /// The body inside pauses: what the client can have, it gets.
    fn pause(&mut self) -> Poll<Option<io::Result<Piece>>> {
        if let Some(encoder) = self.encoder.as_mut().filter(|_| !self.is_flushed) {
            if let Err(error) = encoder.flush() {
                return Poll::Ready(Some(Err(error)));
            }
            self.is_flushed = true;
        }
        match self.take(1) {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None => {
                self.turn.end();
                Poll::Pending
            }
        }
    }

    fn finish(&mut self) -> Poll<Option<io::Result<Piece>>> {
        let last = self.encoder.take().map(Encoder::finish);
        Poll::Ready(match last {
            Some(Ok(bytes)) if bytes.is_empty() => None,
            Some(Ok(bytes)) => Some(Ok(Piece::Bytes(bytes.into()))),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        })
    }
}

impl BodySource for CompressedBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        if self.encoder.is_none() {
            return Poll::Ready(None);
        }
        loop {
            if self.turn.is_over() {
                self.turn.end();
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let enough = if self.flushes && self.is_flushed { 1 } else { self.piece_bytes };
            if let Some(piece) = self.take(enough) {
                return Poll::Ready(Some(Ok(piece)));
            }
            match self.step() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            match self.source.poll_piece(context) {
                Poll::Ready(Some(Ok(piece))) => self.piece = Some(piece),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => return self.finish(),
                Poll::Pending => return self.pause(),
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

/// Compresses a short body whose pieces are all there. `None` if it is not of that kind; then
/// `body` is as it was.
///
/// # Errors
/// A file could not be read.
pub(super) fn at_once(
    body: &Body,
    coding: Coding,
    options: &Options,
) -> io::Result<Option<Vec<u8>>> {
    let mut pieces: Vec<Piece> = match body {
        Body::Piece(piece) => vec![piece.clone()],
        Body::Pieces(pieces) => pieces.iter().cloned().collect(),
        Body::Empty | Body::Source(_) => return Ok(None),
    };
    let length = pieces.iter().map(Piece::length).sum();
    if length > options.params.at_once_bytes_max(coding) {
        return Ok(None);
    }
    let mut encoder = Encoder::new(coding, &options.params, Some(length))?;
    let mut buffer = Vec::new();
    for piece in &mut pieces {
        if let Some(bytes) = piece.in_memory() {
            encoder.write(bytes)?;
            continue;
        }
        buffer.resize(STEP_BYTES, 0);
        while piece.length() > 0 {
            let count = piece.read(&mut buffer)?;
            encoder.write(buffer.get(..count).unwrap_or_default())?;
        }
    }
    encoder.finish().map(Some)
}

/// A body nobody pulls: that of an answer to HEAD whose length is not known.
pub(super) struct UnknownLength;

impl BodySource for UnknownLength {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Poll::Ready(None)
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

/// What is left of the present turn.
struct Turn {
    bytes: u64,
    bytes_max: u64,
    spent: Duration,
}

impl Turn {
    fn new(bytes_max: u64) -> Turn {
        Turn { bytes: 0, bytes_max, spent: Duration::ZERO }
    }

    fn spend(&mut self, bytes: usize, time: Duration) {
        self.bytes += bytes as u64;
        self.spent += time;
    }

    fn is_over(&self) -> bool {
        self.bytes >= self.bytes_max || self.spent >= TURN_MAX
    }

    fn end(&mut self) {
        (self.bytes, self.spent) = (0, Duration::ZERO);
    }
}

/// Compressing in one go. The last step may take longer than the rest: [`STEP_BYTES`] of it.
const TURN_MAX: Duration = Duration::from_millis(4);

/// Bytes compressed between two looks at the clock.
const STEP_BYTES: usize = 16 * 1024;
