//! A body that compresses another body while it is sent.
//!
//! Compressing must not keep the worker's other connections waiting. So a turn ends after [`TURN_MAX`] of
//! compressing or after the configured number of bytes, whichever comes first; then the body wakes its task
//! and returns "pending", and the other connections run. With settings under which a single step takes longer
//! than a turn (brotli from quality 9 on, zstd from level 13 on), the runtime's threads for blocking work do
//! the steps. When the inner body pauses, what is compressed so far is flushed, so that a client sees an
//! event when it happens.
#![expect(
    clippy::disallowed_methods,
    reason = "how long the compressor worked is measured"
)]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use petrel_engine::body::{Body, BodySource, Piece, RequestBody};
use petrel_engine::ledger::Stage;
use petrel_engine::network_backend::FileReader;
use petrel_engine::proto::accept::Coding;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::waits::HolderText;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::encoder::Encoder;
use super::fields;
use super::options::DeflateOptions;

/// The compressed form of a body.
pub(super) struct CompressedBody {
    source: Body,
    piece: Option<Piece>,
    reader: FileReader,
    compressor: Compressor,
    /// The input of a step; empty while the compressor works on it on another thread.
    buffer: Vec<u8>,
    piece_bytes: usize,
    flush: Flush,
    /// Input was compressed since the last flush.
    has_unflushed: bool,
    /// The inner body has paused, and what was flushed because of that has to be sent.
    is_pausing: bool,
    is_slow: bool,
    /// Another piece was asked for and has not arrived: the inner body is what is waited for, not the
    /// encoder.
    waits_for_source: bool,
    turn: EncoderTurn,
}

/// Where the encoder is.
enum Compressor {
    Here(Encoder),
    /// On another thread, which works on a step.
    Away(JoinHandle<Returned>),
    /// It has ended. This is the rest of its output.
    Ended(Vec<u8>),
}

/// When output is flushed before the end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// When the inner body pauses.
    OnPause,
    /// Also after each piece of it (`deflate.sync-flush`).
    EachPiece,
}

/// A step for the encoder.
enum Job {
    Write,
    Flush,
    Finish,
}

/// The encoder after a step on another thread.
struct Returned {
    compressor: Compressor,
    buffer: Vec<u8>,
    outcome: io::Result<()>,
}

impl Job {
    fn run(self, mut encoder: Encoder, buffer: Vec<u8>) -> Returned {
        let outcome = match self {
            Job::Write => encoder.write(&buffer),
            Job::Flush => encoder.flush(),
            Job::Finish => {
                let (last, outcome) = match encoder.finish() {
                    Ok(last) => (last, Ok(())),
                    Err(error) => (Vec::new(), Err(error)),
                };
                return Returned {
                    compressor: Compressor::Ended(last),
                    buffer,
                    outcome,
                };
            }
        };
        Returned {
            compressor: Compressor::Here(encoder),
            buffer,
            outcome,
        }
    }
}

impl CompressedBody {
    /// Compresses `source`, whose files `reader` reads.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn new(
        source: Body,
        reader: FileReader,
        coding: Coding,
        options: &DeflateOptions,
    ) -> io::Result<CompressedBody> {
        let encoder = Encoder::new(coding, &options.params, source.length())?;
        Ok(CompressedBody {
            source,
            piece: None,
            reader,
            compressor: Compressor::Here(encoder),
            buffer: Vec::with_capacity(STEP_BYTES),
            piece_bytes: options.piece_bytes,
            flush: if options.flushes {
                Flush::EachPiece
            } else {
                Flush::OnPause
            },
            has_unflushed: false,
            is_pausing: false,
            is_slow: options.params.is_slow(coding),
            waits_for_source: false,
            turn: EncoderTurn::new(options.turn_bytes),
        })
    }

    /// Starts a step, here or on another thread.
    fn start(&mut self, job: Job) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let encoder = match std::mem::replace(&mut self.compressor, Compressor::Ended(Vec::new())) {
            Compressor::Here(encoder) => encoder,
            elsewhere => {
                self.compressor = elsewhere;
                return Ok(());
            }
        };
        if self.is_slow
            && let Ok(runtime) = Handle::try_current()
        {
            self.compressor =
                Compressor::Away(runtime.spawn_blocking(move || job.run(encoder, buffer)));
            return Ok(());
        }
        let (started, bytes) = (Instant::now(), buffer.len());
        let returned = job.run(encoder, buffer);
        self.turn.spend(bytes, started.elapsed());
        self.take_back(returned)
    }

    fn take_back(&mut self, returned: Returned) -> io::Result<()> {
        self.compressor = returned.compressor;
        self.buffer = returned.buffer;
        self.buffer.clear();
        returned.outcome
    }

    /// Waits for an encoder that works on another thread.
    fn poll_back(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Compressor::Away(handle) = &mut self.compressor else {
            return Poll::Ready(Ok(()));
        };
        let returned = ready!(Pin::new(handle).poll(context));
        Poll::Ready(
            returned
                .map_err(io::Error::other)
                .and_then(|returned| self.take_back(returned)),
        )
    }

    /// Compresses the next part of the present piece.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(piece) = &mut self.piece else {
            return Poll::Ready(Ok(()));
        };
        self.buffer.resize(STEP_BYTES, 0);
        let count = ready!(piece.poll_read(&mut self.buffer, &mut self.reader, context))?;
        self.buffer.truncate(count);
        if piece.length() == 0 {
            self.piece = None;
        }
        self.has_unflushed = true;
        Poll::Ready(self.start(Job::Write))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.has_unflushed = false;
        self.start(Job::Flush)
    }

    /// The output, if there are at least so many bytes of it.
    fn take(&mut self, at_least: usize) -> Option<Piece> {
        match &mut self.compressor {
            Compressor::Here(encoder) if encoder.waiting() >= at_least => {
                Some(Piece::Bytes(encoder.take().into()))
            }
            _ => None,
        }
    }

    /// Does what comes next. `Some` ends the poll.
    fn advance(&mut self, context: &mut Context<'_>) -> io::Result<Option<Poll<Option<Piece>>>> {
        match self.poll_back(context) {
            Poll::Ready(back) => back?,
            Poll::Pending => return Ok(Some(Poll::Pending)),
        }
        if let Compressor::Ended(last) = &mut self.compressor {
            let last = std::mem::take(last);
            return Ok(Some(Poll::Ready(
                (!last.is_empty()).then(|| Piece::Bytes(last.into())),
            )));
        }
        if self.turn.is_over() {
            self.turn.end();
            context.waker().wake_by_ref();
            return Ok(Some(Poll::Pending));
        }
        let is_flushed = self.flush == Flush::EachPiece && !self.has_unflushed;
        let wants_all = is_flushed || std::mem::take(&mut self.is_pausing);
        if let Some(piece) = self.take(if wants_all { 1 } else { self.piece_bytes }) {
            return Ok(Some(Poll::Ready(Some(piece))));
        }
        if self.piece.is_some() {
            return match self.poll_step(context) {
                Poll::Ready(done) => done.map(|()| None),
                Poll::Pending => {
                    self.turn.end();
                    self.waits_for_source = true;
                    Ok(Some(Poll::Pending))
                }
            };
        }
        if self.flush == Flush::EachPiece && self.has_unflushed {
            self.flush()?;
            return Ok(None);
        }
        match self.source.poll_piece(context) {
            Poll::Ready(Some(piece)) => self.piece = Some(piece?),
            Poll::Ready(None) => self.start(Job::Finish)?,
            Poll::Pending if self.has_unflushed => {
                self.is_pausing = true;
                self.flush()?;
            }
            Poll::Pending => {
                self.turn.end();
                self.waits_for_source = true;
                return Ok(Some(Poll::Pending));
            }
        }
        Ok(None)
    }
}

impl BodySource for CompressedBody {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        self.waits_for_source = false;
        loop {
            match self.advance(context) {
                Ok(None) => {}
                Ok(Some(polled)) => return polled.map(|piece| piece.map(Ok)),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        let mut trailers = self.source.take_trailers();
        fields::remove_untrue(&mut trailers);
        trailers
    }

    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        self.source.work(request_body, context);
    }

    fn wake_at_s(&self) -> Option<u32> {
        self.source.wake_at_s()
    }

    fn waits_for_disk(&self) -> bool {
        self.reader.is_waiting() || self.source.waits_for_disk()
    }

    fn stage(&self) -> Stage {
        match self.waits_for_source {
            true if self.reader.is_waiting() => Stage::ReadFile,
            true => self.source.stage(),
            false => Stage::Transform,
        }
    }

    fn is_work(&self) -> bool {
        true
    }

    fn tell_wait(&self, text: &mut HolderText<'_>) {
        match self.waits_for_source {
            true => self.source.tell_wait(text),
            false => text.write_str("the compression of the body"),
        }
    }

    fn has_failed(&self) -> bool {
        self.source.has_failed()
    }
}

/// Compresses a short body whose pieces are all there. `None` if the body is not of that kind, or its file is
/// on disk; then `body` is unchanged.
///
/// # Errors
/// A file could not be read.
pub(super) fn at_once(
    body: &Body,
    coding: Coding,
    options: &DeflateOptions,
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
            let Some(count) = piece.read_now(&mut buffer)? else {
                return Ok(None);
            };
            encoder.write(buffer.get(..count).unwrap_or_default())?;
        }
    }
    encoder.finish().map(Some)
}

/// A body whose content is never read: that of an answer to HEAD whose length is not known.
pub(super) struct UnknownLength;

impl BodySource for UnknownLength {
    fn poll_piece(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        Poll::Ready(None)
    }

    fn remaining(&self) -> Option<u64> {
        None
    }
}

/// The rest of the present turn.
struct EncoderTurn {
    bytes: u64,
    bytes_max: u64,
    spent: Duration,
}

impl EncoderTurn {
    fn new(bytes_max: u64) -> EncoderTurn {
        EncoderTurn {
            bytes: 0,
            bytes_max,
            spent: Duration::ZERO,
        }
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

/// The longest time to compress in one turn. The last step may exceed it: it takes [`STEP_BYTES`] more.
const TURN_MAX: Duration = Duration::from_millis(4);

/// How many bytes are compressed between two looks at the clock.
const STEP_BYTES: usize = 16 * 1024;
