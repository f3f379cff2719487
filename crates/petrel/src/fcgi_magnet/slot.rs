//! One request on its way through a connection: from BEGIN_REQUEST to END_REQUEST.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use lua::{Cause, ScriptError};
use proto::fastcgi::{AfterRequest, ProtocolStatus, write_end_request};
use proto::status::Status;

use super::request::Request;
use super::worker::{Running, Started, Worker};

/// A request, its place in its life, and the worker that it is counted in.
pub struct Slot {
    /// The id on its connection.
    pub id: u16,
    /// When it must have ended.
    pub deadline: Instant,
    worker: Rc<Worker>,
    /// Taken out when it goes back to the worker.
    request: Option<Box<Request>>,
    stage: Stage,
}

enum Stage {
    /// Name-value pairs are coming.
    Params,
    /// The script can start.
    Ready,
    /// The script waits for something.
    Runs(Running),
    /// The script has ended, its answer is being sent.
    Ended,
    /// It went wrong when a part of the answer was sent already.
    CutShort,
}

/// How far the answer has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nothing new, more comes.
    Waits,
    /// Something was appended to what is to be sent, more comes.
    Moved,
    /// The request has ended.
    Ended,
    /// The answer ends in the middle.
    CutShort,
}

/// Whether the thread should look after others before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Nothing was done.
    None,
    /// A script ran.
    Usual,
    /// A script has used all the time that it may.
    Great,
}

impl Slot {
    /// A request that begins. `None`: the worker has too many.
    pub fn new(
        worker: &Rc<Worker>,
        id: u16,
        after: AfterRequest,
        deadline: Instant,
    ) -> Option<Slot> {
        let mut request = worker.take_request()?;
        request.after = after;
        Some(Slot {
            id,
            deadline,
            worker: Rc::clone(worker),
            request: Some(request),
            stage: Stage::Params,
        })
    }

    /// What becomes of the connection afterwards.
    pub fn after(&self) -> AfterRequest {
        let request = self.request.as_ref();
        request.map_or(AfterRequest::Close, |request| request.after)
    }

    /// Takes bytes of the name-value pairs.
    pub fn add_params(&mut self, bytes: &[u8]) {
        if let (Stage::Params, Some(request)) = (&self.stage, &mut self.request)
            && !request.add_params(bytes)
        {
            let words = "the web server sent too many parameters".to_owned();
            self.refuse(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, &words);
        }
    }

    /// All name-value pairs are there. False: they are not sound.
    pub fn end_params(&mut self) -> bool {
        let Stage::Params = self.stage else {
            return true;
        };
        self.stage = Stage::Ready;
        let request = self.request.as_ref();
        request.is_some_and(|request| request.has_sound_params())
    }

    /// Takes bytes of the body.
    pub fn add_body(&mut self, bytes: &[u8]) {
        let bytes_max = self.worker.options().body_bytes_max;
        if let (false, Some(request)) = (self.has_ended(), &mut self.request) {
            let before = request.body().len();
            request.add_body(bytes, bytes_max);
            self.worker.count_body(before, request.body().len());
        }
    }

    /// The body is complete.
    pub fn end_body(&mut self) {
        if let Some(request) = &mut self.request {
            request.end_body();
        }
    }

    /// Starts the script, or goes on with it if what it waits for is there.
    pub fn work(&mut self, context: &mut Context<'_>) -> Effort {
        let Some(request) = &mut self.request else {
            return Effort::None;
        };
        match &mut self.stage {
            Stage::Params | Stage::Ended | Stage::CutShort => return Effort::None,
            Stage::Ready if request.announces_too_much(self.worker.options().body_bytes_max) => {
                self.refuse(
                    Status::CONTENT_TOO_LARGE,
                    "the body of the request is too long",
                );
            }
            Stage::Ready => match self.worker.start(request) {
                Started::Ended => self.stage = Stage::Ended,
                Started::Waits(running) => self.stage = Stage::Runs(running),
                Started::Refused(status, words) => self.refuse(status, &words),
                Started::Failed(error) => return self.fail(&error),
            },
            Stage::Runs(running) => match running.poll(request, context) {
                Poll::Pending => return Effort::None,
                Poll::Ready(Ok(())) => self.stage = Stage::Ended,
                Poll::Ready(Err(error)) => return self.fail(&error),
            },
        }
        Effort::Usual
    }

    /// Ends the request because its time is up.
    pub fn expire(&mut self) {
        let time = self.worker.options().request_time_max.as_secs();
        let words = format!("ended because it took longer than {time} s");
        self.refuse(Status::GATEWAY_TIMEOUT, &words);
    }

    /// Appends to `out` what can be sent by now.
    pub fn deliver(&mut self, out: &mut Vec<u8>) -> Delivery {
        let Some(request) = &mut self.request else {
            return Delivery::Ended;
        };
        let before = out.len();
        match self.stage {
            Stage::Params | Stage::Ready => return Delivery::Waits,
            Stage::Runs(_) => {
                request.answer.pass_on(out, self.id);
            }
            Stage::CutShort => {
                request.answer.pass_on(out, self.id);
                return Delivery::CutShort;
            }
            Stage::Ended => {
                if request.answer.finish(out, self.id) {
                    write_end_request(out, self.id, 0, ProtocolStatus::RequestComplete);
                    return Delivery::Ended;
                }
            }
        }
        match out.len() > before {
            true => Delivery::Moved,
            false => Delivery::Waits,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended | Stage::CutShort)
    }

    fn fail(&mut self, error: &ScriptError) -> Effort {
        self.refuse(Status::INTERNAL_SERVER_ERROR, &error.to_string());
        match error.cause {
            Cause::Time | Cause::Memory => Effort::Great,
            Cause::Error | Cause::Syntax => Effort::Usual,
        }
    }

    /// Ends the request with an answer of ours, if nothing of the script's was sent.
    fn refuse(&mut self, status: Status, words: &str) {
        self.stage = Stage::Ended;
        let Some(request) = &mut self.request else {
            return;
        };
        if self.worker.options().logs_itself {
            eprintln!("petrel fcgi-magnet: {words}");
        }
        request.answer.log(words.as_bytes());
        if request.answer.replace(status).is_err() {
            self.stage = Stage::CutShort;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A script that waits ends first: what it holds may belong to the request.
        self.stage = Stage::Ended;
        if let Some(request) = self.request.take() {
            self.worker.give_request(request);
        }
    }
}
