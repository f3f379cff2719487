//! Follows an instruction that has to wait for a disk.
//!
//! If all files are in memory the instruction is answered at once, without an [`Opening`]. Otherwise it says
//! what it waits for, and is followed again when the result is in [`OpeningFacts`], until there is an answer.
//! All waits together may take `server.max-file-wait`; then the answer is 504. The request polls this when
//! its backend has finished. If it is dropped, because the client has left, jobs that have not begun are
//! cancelled, except for those that remove a temporary file.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::{NotDone, RunningJob};
use petrel_engine::body::Piece;
use petrel_engine::cold_files::ColdWait;
use petrel_engine::cold_files::cause_of_not_done;
use petrel_engine::file_cache::FileEntry;
use petrel_engine::module::Outcome;
use tokio::sync::oneshot;

use super::tempfile::TakenFile;
use super::{BackendHost, Instruction, Offload, beneath};

/// A reply whose files are being opened.
pub(crate) struct Opening {
    host: Rc<BackendHost>,
    instruction: Instruction,
    value: Box<[u8]>,
    known: OpeningFacts,
    wait: OpeningWait,
    /// The time for all look-ups and jobs together.
    time: ColdWait,
}

/// What an instruction has found out so far.
#[derive(Default)]
pub(super) struct OpeningFacts {
    /// The ranges of files that have been found already.
    pub(crate) pieces: VecDeque<Piece>,
    /// The file being checked, if only the question whether it may be sent is still open.
    pub(crate) file: Option<Rc<FileEntry>>,
    /// Whether that file is in one of the allowed directories.
    pub(crate) is_inside: Option<bool>,
    /// The temporary file, opened and unlinked.
    pub(crate) temporary: Option<TakenFile>,
}

/// How far an instruction has come.
pub(super) enum Step {
    /// The exchange goes on with this.
    Done(Outcome),
    /// Follow the instruction again after this wait.
    Wait(OpeningWait),
}

/// What an instruction waits for.
pub(super) enum OpeningWait {
    /// A look-up that [`Exchange::look_up`] could not answer from memory.
    LookUp,
    /// The directory that the file at `path` is in.
    Inside {
        job: RunningJob<Option<Box<[u8]>>>,
        path: Vec<u8>,
    },
    /// The temporary file at `path`, being opened and unlinked.
    Temporary {
        job: oneshot::Receiver<TakenFile>,
        path: Vec<u8>,
    },
}

impl Opening {
    /// Starts to follow an instruction. It is answered at once if nothing has to be waited for.
    pub(super) fn begin(
        exchange: &mut Exchange,
        host: &Rc<BackendHost>,
        instruction: Instruction,
        value: &[u8],
    ) -> Offload {
        // A remembered "not found" may be outdated: the backend may have created the file a moment ago.
        exchange.forget_look_ups();
        let mut known = OpeningFacts::default();
        match (instruction.follow)(exchange, host, value, &mut known) {
            Ok(Step::Done(outcome)) => Offload::Answered(outcome),
            Ok(Step::Wait(wait)) => Offload::Opening(Box::new(Opening {
                host: Rc::clone(host),
                instruction,
                value: value.into(),
                known,
                wait,
                time: ColdWait::new(exchange),
            })),
            Err(reason) => refused(exchange, host, instruction, value, reason),
        }
    }

    /// Ready with the answer, which is never another opening.
    pub(crate) fn poll(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Offload> {
        loop {
            if let Err(outcome) = ready!(self.poll_wait(exchange, context)) {
                return Poll::Ready(Offload::Answered(outcome));
            }
            let instruction = self.instruction;
            let followed = (instruction.follow)(exchange, &self.host, &self.value, &mut self.known);
            match followed {
                Ok(Step::Wait(wait)) => self.wait = wait,
                Ok(Step::Done(outcome)) => return Poll::Ready(Offload::Answered(outcome)),
                Err(reason) => {
                    let refused = refused(exchange, &self.host, instruction, &self.value, reason);
                    return Poll::Ready(refused);
                }
            }
        }
    }

    /// Ready when the result is known. An error is an answer.
    fn poll_wait(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Outcome>> {
        let known = &mut self.known;
        let (polled, path) = match &mut self.wait {
            OpeningWait::LookUp => return self.time.poll(exchange, context),
            OpeningWait::Inside { job, path } => {
                let polled = Pin::new(job).poll(context).map_ok(|directory| {
                    if let (Some(directory), Some(file)) = (&directory, &known.file) {
                        beneath::remember(&exchange.worker, file, directory);
                    }
                    known.is_inside = Some(directory.is_some());
                });
                (polled, path)
            }
            OpeningWait::Temporary { job, path } => {
                let polled = Pin::new(job).poll(context);
                let polled = polled.map_ok(|taken| known.temporary = Some(taken));
                (polled.map_err(|_| NotDone::Lost), path)
            }
        };
        Poll::Ready(match ready!(self.time.deadline.limit(polled, context)) {
            Ok(done) => done.map_err(|error| lost(exchange, path, error)),
            Err(_) => Err(exchange.answer_late_file("content", path)),
        })
    }
}

fn lost(exchange: &mut Exchange, path: &[u8], error: NotDone) -> Outcome {
    let path = String::from_utf8_lossy(path);
    let outcome = exchange.fail(cause_of_not_done(error));
    exchange.log_error("content", format_args!("{error} path={path:?}"));
    outcome
}

fn refused(
    exchange: &Exchange,
    host: &BackendHost,
    instruction: Instruction,
    value: &[u8],
    reason: &'static str,
) -> Offload {
    let (name, value) = (instruction.name, String::from_utf8_lossy(value));
    exchange.log_error(
        "content",
        format_args!("{name}: {reason} backend={} value={value:?}", host.label),
    );
    Offload::Refused
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening")
            .field("instruction", &self.instruction.name)
            .finish_non_exhaustive()
    }
}
