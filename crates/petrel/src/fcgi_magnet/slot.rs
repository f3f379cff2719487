//! One request on a connection: its name-value pairs, its script, its reply.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use lua::{Cause, ScriptError};
use proto::fastcgi::{ProtocolStatus, write_end_request};
use proto::status::Status;

use super::request::Request;
use super::worker::{Running, StartedScript, Worker};
use crate::fcgi_program::{self, Delivery, Effort, FcgiProgram};

/// A request, its stage, and the worker that counts it.
pub(crate) struct ScriptRequest {
    /// When the request is ended, finished or not.
    deadline: Instant,
    worker: Rc<Worker>,
    /// `None` once the request was given back to the worker.
    request: Option<Box<Request>>,
    stage: ScriptRequestStage,
}

enum ScriptRequestStage {
    /// Name-value pairs are still arriving.
    Params,
    /// The script can start.
    Ready,
    /// The script waits for something.
    Runs(Running),
    /// The script has ended; its reply is being sent.
    Ended,
    /// The script failed after a part of the reply was sent.
    CutShort,
}

impl ScriptRequest {
    /// Starts a request. Returns `None` if the worker has too many.
    pub(crate) fn new(worker: &Rc<Worker>, deadline: Instant) -> Option<ScriptRequest> {
        let request = worker.take_request()?;
        Some(ScriptRequest {
            deadline,
            worker: Rc::clone(worker),
            request: Some(request),
            stage: ScriptRequestStage::Params,
        })
    }

    fn has_ended(&self) -> bool {
        matches!(
            self.stage,
            ScriptRequestStage::Ended | ScriptRequestStage::CutShort
        )
    }

    fn fail(&mut self, error: &ScriptError) -> Effort {
        self.refuse(Status::INTERNAL_SERVER_ERROR, &error.to_string());
        match error.cause {
            Cause::Time | Cause::Memory => Effort::Great,
            Cause::Error | Cause::Syntax => Effort::Usual,
        }
    }

    /// Ends the request with an error reply, unless a part of the script's reply was sent.
    fn refuse(&mut self, status: Status, words: &str) {
        self.stage = ScriptRequestStage::Ended;
        let Some(request) = &mut self.request else {
            return;
        };
        self.worker.common().log(words);
        request.answer.log(words.as_bytes());
        if request.answer.replace(status).is_err() {
            self.stage = ScriptRequestStage::CutShort;
        }
    }
}

impl fcgi_program::FcgiRequest for ScriptRequest {
    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn put_off(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn add_params(&mut self, bytes: &[u8]) {
        if let (ScriptRequestStage::Params, Some(request)) = (&self.stage, &mut self.request)
            && !request.params.add(bytes)
        {
            let words = "the web server sent too many parameters".to_owned();
            self.refuse(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, &words);
        }
    }

    fn end_params(&mut self) -> bool {
        let ScriptRequestStage::Params = self.stage else {
            return true;
        };
        self.stage = ScriptRequestStage::Ready;
        let request = self.request.as_ref();
        request.is_some_and(|request| request.params.are_sound())
    }

    fn add_body(&mut self, bytes: &[u8]) {
        let bytes_max = self.worker.options().body_bytes_max;
        if let (false, Some(request)) = (self.has_ended(), &mut self.request) {
            let before = request.body().len();
            request.add_body(bytes, bytes_max);
            self.worker.count_body(before, request.body().len());
        }
    }

    fn end_body(&mut self) {
        if let Some(request) = &mut self.request {
            request.end_body();
        }
    }

    fn work(&mut self, context: &mut Context<'_>) -> Effort {
        let Some(request) = &mut self.request else {
            return Effort::None;
        };
        match &mut self.stage {
            ScriptRequestStage::Params
            | ScriptRequestStage::Ended
            | ScriptRequestStage::CutShort => return Effort::None,
            ScriptRequestStage::Ready
                if request.announces_too_much(self.worker.options().body_bytes_max) =>
            {
                self.refuse(
                    Status::CONTENT_TOO_LARGE,
                    "the body of the request is too long",
                );
            }
            ScriptRequestStage::Ready => match self.worker.start(request) {
                StartedScript::Ended => self.stage = ScriptRequestStage::Ended,
                StartedScript::Waits(running) => self.stage = ScriptRequestStage::Runs(running),
                StartedScript::Refused(status, words) => self.refuse(status, &words),
                StartedScript::Failed(error) => return self.fail(&error),
            },
            ScriptRequestStage::Runs(running) => match running.poll(request, context) {
                Poll::Pending => return Effort::None,
                Poll::Ready(Ok(())) => self.stage = ScriptRequestStage::Ended,
                Poll::Ready(Err(error)) => return self.fail(&error),
            },
        }
        Effort::Usual
    }

    fn expire(&mut self, _: Instant) {
        let time = self.worker.options().request_time_max.as_secs();
        let words = format!("the script was ended: the request took longer than {time} s");
        self.refuse(Status::GATEWAY_TIMEOUT, &words);
    }

    fn deliver(&mut self, id: u16, out: &mut Vec<u8>) -> Delivery {
        let Some(request) = &mut self.request else {
            return Delivery::Ended;
        };
        let before = out.len();
        match self.stage {
            ScriptRequestStage::Params | ScriptRequestStage::Ready => return Delivery::Waits,
            ScriptRequestStage::Runs(_) => {
                request.answer.pass_on(out, id);
            }
            ScriptRequestStage::CutShort => {
                request.answer.pass_on(out, id);
                return Delivery::CutShort;
            }
            ScriptRequestStage::Ended => {
                if request.answer.finish(out, id) {
                    write_end_request(out, id, 0, ProtocolStatus::RequestComplete);
                    return Delivery::Ended;
                }
            }
        }
        match out.len() > before {
            true => Delivery::Moved,
            false => Delivery::Waits,
        }
    }
}

impl Drop for ScriptRequest {
    fn drop(&mut self) {
        // A waiting script is dropped first, because it may hold things that belong to the request.
        self.stage = ScriptRequestStage::Ended;
        if let Some(request) = self.request.take() {
            self.worker.give_request(request);
        }
    }
}
