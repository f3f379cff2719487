//! One request: its pairs come, its file is looked at, and the answer waits for the end of its body.

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use proto::fastcgi::AfterRequest;
use proto::status::Status;

use super::answer::Answer;
use super::limits::STUCK_AFTER;
use super::pool::Ticket;
use super::target::Target;
use super::{Accelerator, Refusal};
use crate::fcgi_program::params::Params;
use crate::fcgi_program::{self, Delivery, Effort, Program};

/// A request, its place in its life, and the worker that it is counted in.
pub struct Slot {
    id: u16,
    after: AfterRequest,
    program: Rc<Accelerator>,
    /// When it is to be looked at again.
    deadline: Instant,
    /// When it must have ended.
    end: Instant,
    params: Params,
    /// More of the body may come. It is read and dropped, because a web server that is still sending
    /// might not look for an answer.
    has_body: bool,
    stage: Stage,
}

enum Stage {
    /// Name-value pairs are coming.
    Params,
    /// They are all there.
    Ready,
    /// The file is being looked at.
    Waits(Ticket),
    /// It is known what to answer.
    Answered(Answer),
}

impl Slot {
    /// A request that begins and must have ended at `end`.
    pub fn new(program: &Rc<Accelerator>, id: u16, after: AfterRequest, end: Instant) -> Slot {
        program.count_request();
        Slot {
            id,
            after,
            program: Rc::clone(program),
            deadline: end,
            end,
            params: Params::new(),
            has_body: true,
            stage: Stage::Params,
        }
    }

    /// Has the file looked at that the request is about.
    fn begin(&mut self, now: Instant) -> Result<Ticket, Refusal> {
        let method = self.params.get(b"REQUEST_METHOD").unwrap_or(b"GET");
        if !METHODS.contains(&method) {
            return Err(Refusal::silent(Status::METHOD_NOT_ALLOWED));
        }
        let target = Target::of(&self.params, self.program.roots())?;
        let device = target.device();
        let ticket = self.program.pool().submit(target, device, now)?;
        self.deadline = self.end.min(now + STUCK_AFTER);
        Ok(ticket)
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(words) = answer.words() {
            self.program.common().log(words);
        }
        self.stage = Stage::Answered(answer);
        self.deadline = self.end;
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.answer(Answer::Refusal(refusal));
    }
}

impl fcgi_program::Slot for Slot {
    fn id(&self) -> u16 {
        self.id
    }

    fn after(&self) -> AfterRequest {
        self.after
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn put_off(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn add_params(&mut self, bytes: &[u8]) {
        if matches!(self.stage, Stage::Params) && !self.params.add(bytes) {
            let status = Status::REQUEST_HEADER_FIELDS_TOO_LARGE;
            let words = "the web server sent too many parameters".to_owned();
            self.refuse(Refusal::new(status, words));
        }
    }

    fn end_params(&mut self) -> bool {
        if matches!(self.stage, Stage::Params) {
            self.stage = Stage::Ready;
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
            Stage::Params | Stage::Answered(_) => return Effort::None,
            Stage::Ready => match self.begin(Instant::now()) {
                Ok(ticket) => self.stage = Stage::Waits(ticket),
                Err(refusal) => self.refuse(refusal),
            },
            Stage::Waits(ticket) => match ticket.poll(context) {
                Poll::Ready(found) => {
                    let answer = Answer::new(found, ticket.path());
                    self.answer(answer);
                }
                Poll::Pending => return Effort::None,
            },
        }
        Effort::Usual
    }

    fn expire(&mut self, now: Instant) {
        match &self.stage {
            Stage::Waits(_) if now < self.end => {
                self.program.pool().replace_stuck(now);
                self.deadline = self.end.min(now + STUCK_AFTER);
            }
            Stage::Waits(ticket) => {
                let refusal = ticket.give_up();
                self.refuse(refusal);
            }
            Stage::Params | Stage::Ready => {
                let words = "the web server did not send all of the request".to_owned();
                self.refuse(Refusal::new(Status::REQUEST_TIMEOUT, words));
            }
            Stage::Answered(_) => {}
        }
        // Whatever comes of the body from now on is not waited for.
        self.has_body &= now < self.end;
    }

    fn deliver(&mut self, out: &mut Vec<u8>) -> Delivery {
        match &self.stage {
            Stage::Answered(answer) if !self.has_body => {
                answer.write(out, self.id);
                Delivery::Ended
            }
            _ => Delivery::Waits,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.program.end_request();
    }
}

/// What a file answers to. The web server sends it in any case, so what means something else must not
/// come to that.
const METHODS: [&[u8]; 3] = [b"GET", b"HEAD", b"POST"];
