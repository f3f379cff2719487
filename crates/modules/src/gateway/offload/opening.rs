//! Following an instruction whose files the disk has to be asked for.
//!
//! What is in memory is answered at once, and no [`Opening`] is made. Otherwise the instruction says what
//! it waits for, and is followed once more when that is [`OpeningFacts`], until it has an answer. All waits
//! together take `server.max-file-wait` at most; then the answer is 504. Polled by a request whose backend
//! is done. Dropped, because the client has left, it leaves jobs that have not begun out, but for those that
//! remove a temporary file.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::{NotDone, RunningJob};
use petrel_engine::body::Piece;
use petrel_engine::cold_files::ColdWait;
use petrel_engine::file_cache::FileEntry;
use petrel_engine::module::Outcome;
use petrel_engine::proto::status::Status;
use tokio::sync::oneshot;

use super::tempfile::TakenFile;
use super::{BackendHost, Instruction, Offload, beneath};

/// A reply whose files are being looked for.
pub(crate) struct Opening {
    host: Rc<BackendHost>,
    instruction: Instruction,
    value: Box<[u8]>,
    known: OpeningFacts,
    wait: OpeningWait,
    /// For look-ups and jobs, all together.
    time: ColdWait,
}

/// What an instruction has found out so far.
#[derive(Default)]
pub(super) struct OpeningFacts {
    /// The stretches of files that are found already.
    pub(crate) pieces: VecDeque<Piece>,
    /// The file that is looked for now, if all that is missing is whether it may be sent.
    pub(crate) file: Option<Rc<FileEntry>>,
    /// Whether that is in one of the directories it may be in.
    pub(crate) is_inside: Option<bool>,
    /// The temporary file.
    pub(crate) temporary: Option<TakenFile>,
}

/// How far an instruction has come.
pub(super) enum Step {
    /// The exchange goes on with this.
    Done(Outcome),
    /// It is to be followed again after a wait.
    Wait(OpeningWait),
}

/// What is waited for.
pub(super) enum OpeningWait {
    /// What [`Exchange::look_up`] did not know.
    LookUp,
    /// In which directory the file at `path` is.
    Inside {
        job: RunningJob<Option<Box<[u8]>>>,
        path: Vec<u8>,
    },
    /// The temporary file at `path`.
    Temporary {
        job: oneshot::Receiver<TakenFile>,
        path: Vec<u8>,
    },
}

impl Opening {
    /// Follows an instruction, at once if nothing has to be waited for.
    pub(super) fn begin(
        exchange: &mut Exchange,
        host: &Rc<BackendHost>,
        instruction: Instruction,
        value: &[u8],
    ) -> Offload {
        // The backend may just have made the file.
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

    /// Until there is an answer, which is no opening again.
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

    /// Until it is known. An error is an answer.
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
    exchange.log_error("content", format_args!("{error} path={path:?}"));
    exchange.answer(match error {
        NotDone::QueueFull => Status::SERVICE_UNAVAILABLE,
        NotDone::Lost => Status::INTERNAL_SERVER_ERROR,
    })
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
