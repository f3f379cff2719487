//! Compresses an answer that was not compressed before, and keeps the result where that pays.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::{Body, BodySource, Piece};
use petrel_engine::cold_files::{cause_of_error, tell_holder_of_own_file};
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::accept::Coding;
use petrel_engine::waits::HolderText;

use super::body::{CompressedBody, UnknownLength, at_once};
use super::keeping::Keeping;
use super::kept::{CompressedKey, Made, OfWorker, SOURCE_BYTES_MAX};
use super::options::DeflateOptions;
use super::{fields, stored};

/// Compresses the answer. `file` is given if the answer is one whole file, or content that is stored.
pub(super) fn make(
    exchange: &mut Exchange,
    options: &Rc<DeflateOptions>,
    coding: Coding,
    file: Option<(Piece, CompressedKey)>,
) -> Outcome {
    let made = match file {
        Some((source, key)) => make_from_file(exchange, options, coding, source, key),
        None => make_from_body(exchange, options, coding),
    };
    made.unwrap_or_else(|error| fail(exchange, &error))
}

fn make_from_file(
    exchange: &mut Exchange,
    options: &Rc<DeflateOptions>,
    coding: Coding,
    source: Piece,
    key: CompressedKey,
) -> io::Result<Outcome> {
    let directory = options.cache_dir.as_ref();
    let directory = directory.filter(|_| !exchange.gave_up_on_files());
    if let Some(keeping) = directory.and_then(|at| Keeping::begin(exchange, at, &source, coding)) {
        let store = KeptIn::Disk(Box::new(keeping));
        return gather(exchange, options, coding, store);
    }
    if let Some(made) = make_at_once(exchange, options, coding, Some(&key))? {
        return Ok(send_made(exchange, coding, made));
    }
    match source.length() <= SOURCE_BYTES_MAX {
        true => gather(exchange, options, coding, KeptIn::Memory(Vec::new(), key)),
        false => stream(exchange, options, coding),
    }
}

fn make_from_body(
    exchange: &mut Exchange,
    options: &DeflateOptions,
    coding: Coding,
) -> io::Result<Outcome> {
    match make_at_once(exchange, options, coding, None)? {
        Some(made) => Ok(send_made(exchange, coding, made)),
        None => stream(exchange, options, coding),
    }
}

/// Makes the answer to HEAD the same as to GET. Content that is not compressed at once is compressed only for
/// a GET; before that its length is not known.
pub(super) fn make_head(
    exchange: &mut Exchange,
    options: &DeflateOptions,
    coding: Coding,
    file: Option<&(Piece, CompressedKey)>,
) -> Outcome {
    let made = match options.cache_dir {
        Some(_) if file.is_some() => Ok(None),
        _ => make_at_once(exchange, options, coding, file.map(|(_, key)| key)),
    };
    match made {
        Ok(Some(made)) => send_made(exchange, coding, made),
        Ok(None) => send(exchange, coding, Body::Source(Box::new(UnknownLength))),
        Err(error) => fail(exchange, &error),
    }
}

/// Compresses the answer's body if it is short, and keeps the result under `key`.
fn make_at_once(
    exchange: &Exchange,
    options: &DeflateOptions,
    coding: Coding,
    key: Option<&CompressedKey>,
) -> io::Result<Option<Made>> {
    let body = &exchange.response.body;
    let Some(bytes) = at_once(body, coding, options)? else {
        return Ok(None);
    };
    let is_smaller = body
        .length()
        .is_some_and(|length| (bytes.len() as u64) < length);
    let made = match is_smaller {
        true => Made::Smaller(Bytes::from(bytes)),
        false => Made::NotSmaller,
    };
    if let Some(key) = key {
        OfWorker::of(&exchange.worker).keep(key.clone(), made.clone());
    }
    Ok(Some(made))
}

/// Sends the result of compressing. Nothing changes if the content did not become smaller.
pub(super) fn send_made(exchange: &mut Exchange, coding: Coding, made: Made) -> Outcome {
    match made {
        Made::Smaller(bytes) => send(exchange, coding, Body::Piece(Piece::Bytes(bytes))),
        Made::NotSmaller => Outcome::Next,
    }
}

/// Sends `body`, which is the compressed content.
pub(super) fn send(exchange: &mut Exchange, coding: Coding, body: Body) -> Outcome {
    fields::set_coding(&mut exchange.response, coding);
    exchange.response.announced_length = None;
    exchange.response.body = body;
    Outcome::Next
}

fn stream(
    exchange: &mut Exchange,
    options: &DeflateOptions,
    coding: Coding,
) -> io::Result<Outcome> {
    let source = std::mem::take(&mut exchange.response.body);
    let body = CompressedBody::new(source, exchange.file_reader(), coding, options)?;
    Ok(send(exchange, coding, Body::Source(Box::new(body))))
}

fn gather(
    exchange: &mut Exchange,
    options: &Rc<DeflateOptions>,
    coding: Coding,
    store: KeptIn,
) -> io::Result<Outcome> {
    let source = std::mem::take(&mut exchange.response.body);
    let body = CompressedBody::new(source, exchange.file_reader(), coding, options)?;
    let options = Rc::clone(options);
    Ok(Outcome::Later(Box::new(CompressedFile {
        options,
        body,
        coding,
        store,
        is_whole: false,
    })))
}

/// A file that cannot be read could not have been sent either.
fn fail(exchange: &mut Exchange, error: &io::Error) -> Outcome {
    exchange.log_error("transform", format_args!("compressing failed: {error}"));
    exchange.replace_by_error(cause_of_error(error));
    Outcome::Next
}

/// A file that is being compressed. The client gets it when it is complete, so that its length is known.
struct CompressedFile {
    options: Rc<DeflateOptions>,
    body: CompressedBody,
    coding: Coding,
    store: KeptIn,
    /// The compressor has delivered everything.
    is_whole: bool,
}

/// Where the compressed file will be kept.
enum KeptIn {
    Memory(Vec<u8>, CompressedKey),
    Disk(Box<Keeping>),
}

impl Pending for CompressedFile {
    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::ReadFile)
    }

    fn holder(&self, exchange: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        tell_holder_of_own_file(exchange, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        while !self.is_whole {
            if let KeptIn::Disk(keeping) = &mut self.store
                && let Err(error) = ready!(keeping.poll_room(context))
            {
                return Poll::Ready(self.give_up(exchange, &error));
            }
            match ready!(self.body.poll_piece(context)) {
                Some(Ok(piece)) => self.write(&piece),
                Some(Err(error)) => return Poll::Ready(fail(exchange, &error)),
                None => self.is_whole = true,
            }
        }
        let body = match &mut self.store {
            KeptIn::Memory(whole, key) => {
                let bytes = Bytes::from(std::mem::take(whole));
                let made = Made::Smaller(bytes.clone());
                OfWorker::of(&exchange.worker).keep(key.clone(), made);
                Body::Piece(Piece::Bytes(bytes))
            }
            KeptIn::Disk(keeping) => match ready!(keeping.poll_end(exchange, context)) {
                Ok(body) => body,
                Err(error) => return Poll::Ready(self.give_up(exchange, &error)),
            },
        };
        Poll::Ready(send(exchange, self.coding, body))
    }
}

impl CompressedFile {
    fn write(&mut self, piece: &Piece) {
        let bytes = piece.in_memory().unwrap_or_default();
        match &mut self.store {
            KeptIn::Memory(whole, _) => whole.extend_from_slice(bytes),
            KeptIn::Disk(keeping) => keeping.write(bytes),
        }
    }

    /// Writing the file has failed, for example because the disk is full: compresses again, on the way to the
    /// client.
    fn give_up(&self, exchange: &mut Exchange, error: &io::Error) -> Outcome {
        stored::complain(exchange, error);
        if let KeptIn::Disk(keeping) = &self.store {
            exchange.response.body = Body::Piece(keeping.source().clone());
        }
        let streamed = stream(exchange, &self.options, self.coding);
        streamed.unwrap_or_else(|error| fail(exchange, &error))
    }
}
