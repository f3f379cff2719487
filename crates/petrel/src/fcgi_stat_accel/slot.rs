//! One request: its pairs arrive, a disk thread looks at its file, and the reply waits for the end of the
//! body.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use engine::blocking;
use proto::status::Status;

use super::answer::StatReply;
use super::limits::LOOK_AFTER_EVERY;
use super::pool::Ticket;
use super::target::Target;
use super::{Accelerator, Refusal};
use crate::fcgi_program::params::Params;
use crate::fcgi_program::{self, Delivery, Effort, FcgiProgram};

/// A request, its stage, and the worker that counts it.
pub(crate) struct StatRequest {
    program: Rc<Accelerator>,
    /// When [`expire`](fcgi_program::FcgiRequest::expire) is called next.
    deadline: Instant,
    /// When the request is ended, finished or not.
    end: Instant,
    params: Params,
    /// More of the body may arrive. It is read and dropped, because a web server that is still sending might
    /// not read a reply.
    has_body: bool,
    stage: StatRequestStage,
}

enum StatRequestStage {
    /// Name-value pairs are still arriving.
    Params,
    /// All pairs have arrived.
    Ready,
    /// A disk thread is looking at the file.
    Waits(Ticket),
    /// The reply is known.
    Answered(StatReply),
}

impl StatRequest {
    /// Starts a request, which is ended at `end` at the latest.
    pub(crate) fn new(program: &Rc<Accelerator>, end: Instant) -> StatRequest {
        program.requests.update(|count| count + 1);
        StatRequest {
            program: Rc::clone(program),
            deadline: end,
            end,
            params: Params::new(),
            has_body: true,
            stage: StatRequestStage::Params,
        }
    }

    /// Queues a look at the file that the request is about.
    fn begin(&mut self, now: Instant) -> Result<Ticket, Refusal> {
        let method = self.params.get(b"REQUEST_METHOD").unwrap_or(b"GET");
        if !METHODS.contains(&method) {
            return Err(Refusal::silent(Status::METHOD_NOT_ALLOWED));
        }
        let target = Target::of(&self.params, &self.program.roots)?;
        let device = target.device();
        let ticket = self.program.pool.submit(target, device, now)?;
        self.deadline = self.end.min(now + LOOK_AFTER_EVERY);
        Ok(ticket)
    }

    fn answer(&mut self, answer: StatReply) {
        if let Some(words) = answer.words() {
            self.program.common().log(words);
        }
        self.stage = StatRequestStage::Answered(answer);
        self.deadline = self.end;
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.answer(StatReply(Err(refusal)));
    }
}

impl fcgi_program::FcgiRequest for StatRequest {
    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn put_off(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn add_params(&mut self, bytes: &[u8]) {
        if matches!(self.stage, StatRequestStage::Params) && !self.params.add(bytes) {
            let status = Status::REQUEST_HEADER_FIELDS_TOO_LARGE;
            let words = "the web server sent too many parameters".to_owned();
            self.refuse(Refusal::new(status, words));
        }
    }

    fn end_params(&mut self) -> bool {
        if matches!(self.stage, StatRequestStage::Params) {
            self.stage = StatRequestStage::Ready;
            return self.params.are_sound();
        }
        true
    }

    fn add_body(&mut self, _: &[u8]) {}

    fn end_body(&mut self) {
        self.has_body = false;
    }

    fn work(&mut self, context: &mut Context<'_>) -> Effort {
        match &mut self.stage {
            StatRequestStage::Params | StatRequestStage::Answered(_) => return Effort::None,
            StatRequestStage::Ready => match self.begin(Instant::now()) {
                Ok(ticket) => self.stage = StatRequestStage::Waits(ticket),
                Err(refusal) => self.refuse(refusal),
            },
            StatRequestStage::Waits(ticket) => match ticket.poll(context) {
                Poll::Ready(found) => {
                    let file = found.map(|()| ticket.path());
                    self.answer(StatReply(file));
                }
                Poll::Pending => return Effort::None,
            },
        }
        Effort::Usual
    }

    fn expire(&mut self, now: Instant) {
        match &self.stage {
            StatRequestStage::Waits(_) if now < self.end => {
                blocking::look_after();
                self.deadline = self.end.min(now + LOOK_AFTER_EVERY);
            }
            StatRequestStage::Waits(ticket) => {
                let refusal = ticket.give_up();
                self.refuse(refusal);
            }
            StatRequestStage::Params | StatRequestStage::Ready => {
                let words = "the web server did not send all of the request".to_owned();
                self.refuse(Refusal::new(Status::REQUEST_TIMEOUT, words));
            }
            StatRequestStage::Answered(_) => {}
        }
        // Once the time is up, the reply does not wait for the rest of the body.
        self.has_body &= now < self.end;
    }

    fn deliver(&mut self, id: u16, out: &mut Vec<u8>) -> Delivery {
        match &self.stage {
            StatRequestStage::Answered(answer) if !self.has_body => {
                answer.write(out, id);
                Delivery::Ended
            }
            _ => Delivery::Waits,
        }
    }
}

impl Drop for StatRequest {
    fn drop(&mut self) {
        self.program.requests.update(|count| count - 1);
    }
}

/// The methods that a file can answer. The web server sends the file for every method, so this program
/// must not name one for a DELETE, say.
const METHODS: [&[u8]; 3] = [b"GET", b"HEAD", b"POST"];
