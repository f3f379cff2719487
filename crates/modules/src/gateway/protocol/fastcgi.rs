//! FastCGI: a request in records of id 1, its reply in STDOUT, messages for the log in STDERR.
//!
//! There is one request at a time on a connection, and the application is asked to keep the connection open
//! (FCGI_KEEP_CONN). After END_REQUEST the id is free again (section 3.3 of the specification), so it is
//! always 1. Applications do not multiplex: php-fpm answers FCGI_MPXS_CONNS with 0, and others handle records
//! in the order in which they arrive.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::proto::fastcgi::{
    self, AfterRequest, FastCgiDecoder, ParamsEncoder, ProtocolStatus, RecordError, Role, Stream,
    WholeReply, kind,
};
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;

use super::cgi_reply::CgiReply;
use super::{Conversation, Decoded, Outgoing, Repeated, ReplyError, ReplyEvent, RequestError};
use crate::gateway::environment::{ConstantsKey, Variables};
use crate::gateway::options::Mode;
use crate::gateway::{environment, limits};

/// The application is full: it refused the request without having worked on it or sent anything else.
pub(crate) const OVERLOADED: ReplyError = ReplyError("the FastCGI application is overloaded");

/// The variables that are the same for one request after another in a worker, encoded once. Where requests
/// alternate between sites they are encoded anew each time, which costs as much as not keeping them.
#[derive(Default)]
pub(super) struct EncodedConstants {
    key: Option<ConstantsKey>,
    pairs: Vec<u8>,
}

impl EncodedConstants {
    fn pairs(&mut self, exchange: &Exchange) -> &[u8] {
        let key = ConstantsKey::of(exchange);
        if self.key != Some(key) {
            self.pairs.clear();
            environment::constants(exchange, &mut |name: &[u8], value: &[u8]| {
                fastcgi::write_pair(&mut self.pairs, name, value);
            });
            self.key = Some(key);
        }
        &self.pairs
    }
}

/// Requests and replies over one FastCGI connection.
pub(crate) struct FastCgiConversation {
    repeated: Rc<Repeated>,
    records: FastCgiDecoder,
    /// No byte of the reply has arrived yet.
    is_silent: bool,
    /// What is left of a reply that arrived as a whole; `records` has nothing to do then.
    whole: Option<WholeReply>,
    reply: CgiReply,
    stderr_bytes: u64,
    /// STDOUT or STDERR records have arrived.
    has_begun: bool,
    /// The end of STDIN has been encoded, so nothing of this request is left to send.
    is_sent: bool,
    /// GET_VALUES follows the end of STDIN.
    asks_behind: bool,
}

impl FastCgiConversation {
    /// A conversation on a new connection.
    pub(crate) fn new(repeated: &Rc<Repeated>) -> FastCgiConversation {
        FastCgiConversation {
            repeated: Rc::clone(repeated),
            records: FastCgiDecoder::new(ID),
            is_silent: true,
            whole: None,
            reply: CgiReply::of_kept_connection(),
            stderr_bytes: 0,
            has_begun: false,
            is_sent: false,
            asks_behind: false,
        }
    }

    /// How many of `length` bytes of STDERR may be logged.
    fn log_allowance(&mut self, length: usize) -> Result<usize, ReplyError> {
        let left = limits::STDERR_LOGGED_BYTES_MAX.saturating_sub(self.stderr_bytes);
        self.stderr_bytes += length as u64;
        if self.stderr_bytes > limits::STDERR_BYTES_MAX {
            return Err(ReplyError("the FastCGI application floods its STDERR"));
        }
        Ok(usize::try_from(left).map_or(length, |left| left.min(length)))
    }

    /// Takes the next event from the front of `input`, which begins with `whole`.
    fn decode_whole(&mut self, whole: WholeReply, input: &[u8]) -> Result<Decoded, ReplyError> {
        let WholeReply { stdout, end } = whole;
        let content = input.get(stdout.clone()).unwrap_or_default();
        let taken = self.reply.take(content)?;
        let consumed = stdout.start + taken.consumed;
        let event = match taken.event {
            ReplyEvent::NeedMore => {
                let event = self.end(ProtocolStatus::RequestComplete, end == input.len())?;
                return Ok(Decoded {
                    consumed: end,
                    event,
                });
            }
            ReplyEvent::Body(range) => {
                ReplyEvent::Body(stdout.start + range.start..stdout.start + range.end)
            }
            event => event,
        };
        self.whole = Some(WholeReply {
            stdout: 0..stdout.end - consumed,
            end: end - consumed,
        });
        Ok(Decoded { consumed, event })
    }

    fn decode_records(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        let mut position = 0;
        loop {
            let step = self.records.decode(&input[position..])?;
            let begin = position;
            position += step.consumed;
            self.has_begun |= matches!(step.event, fastcgi::FastCgiEvent::Data(..));
            let event = match step.event {
                fastcgi::FastCgiEvent::NeedMore => ReplyEvent::NeedMore,
                fastcgi::FastCgiEvent::Data(Stream::Stdout, range) => {
                    let start = begin + range.start;
                    let taken = self.reply.take(&input[start..position])?;
                    let used = start + taken.consumed;
                    self.records.give_back(position - used);
                    position = used;
                    match taken.event {
                        ReplyEvent::NeedMore => continue,
                        ReplyEvent::Body(range) => {
                            ReplyEvent::Body(start + range.start..start + range.end)
                        }
                        event => event,
                    }
                }
                fastcgi::FastCgiEvent::Data(Stream::Stderr, range) => {
                    match self.log_allowance(range.len())? {
                        0 => continue,
                        length => {
                            let start = begin + range.start;
                            ReplyEvent::Log(start..start + length)
                        }
                    }
                }
                fastcgi::FastCgiEvent::End {
                    protocol_status, ..
                } => self.end(protocol_status, position == input.len())?,
            };
            return Ok(Decoded {
                consumed: position,
                event,
            });
        }
    }

    fn end(&mut self, status: ProtocolStatus, is_last: bool) -> Result<ReplyEvent, ReplyError> {
        match status {
            ProtocolStatus::RequestComplete => {}
            ProtocolStatus::Overloaded if !self.has_begun => return Err(OVERLOADED),
            ProtocolStatus::Overloaded => {
                return Err(ReplyError(
                    "the FastCGI application says that it is overloaded after it has begun",
                ));
            }
            ProtocolStatus::CannotMultiplex => {
                return Err(ReplyError(
                    "the FastCGI application takes this for a second request at a time",
                ));
            }
            ProtocolStatus::UnknownRole => {
                return Err(ReplyError(
                    "the FastCGI application does not play this role",
                ));
            }
        }
        self.reply.finish()?;
        // Behind the end comes the answer to the question.
        let reusable = self.is_sent && (is_last || self.asks_behind);
        Ok(ReplyEvent::End { reusable })
    }
}

impl Conversation for FastCgiConversation {
    fn begin(&mut self) {
        let FastCgiConversation {
            repeated: _,
            records,
            is_silent,
            whole,
            reply,
            stderr_bytes,
            has_begun,
            is_sent,
            asks_behind,
        } = self;
        records.begin();
        *is_silent = true;
        *whole = None;
        reply.begin();
        *stderr_bytes = 0;
        *has_begun = false;
        *is_sent = false;
        *asks_behind = false;
    }

    fn ask(&mut self, behind: bool) {
        self.asks_behind = behind;
    }

    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        self.reply.expect(request);
        let role = match request.host.mode {
            Mode::Responder => Role::Responder,
            Mode::Authorizer => Role::Authorizer,
        };
        out.reserve(USUAL_HEAD_BYTES);
        let after = match request.host.keep_alive_idle.is_zero() {
            true => AfterRequest::Close,
            false => AfterRequest::Keep,
        };
        fastcgi::write_begin_request(out, ID, role, after);
        let Outgoing {
            exchange,
            host,
            extras,
            body,
        } = *request;
        let mut params = ParamsEncoder::new(out, ID);
        let mut parts = self.repeated.of_fastcgi.borrow_mut();
        let part = match extras.rewriting.is_empty() {
            true => parts.of(exchange, 0, |pairs| {
                environment::of_client(exchange, &mut |name: &[u8], value: &[u8]| {
                    fastcgi::write_pair(pairs, name, value);
                });
            }),
            false => None,
        };
        match part {
            Some(pairs) => {
                params.add_encoded(pairs);
                environment::build_of_request(exchange, host, body, &mut params);
            }
            None => {
                params.add_encoded(self.repeated.constants.borrow_mut().pairs(exchange));
                environment::build_varying(exchange, host, body, &extras.rewriting, &mut params);
            }
        }
        params.finish();
        Ok(())
    }

    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        fastcgi::write_stream(out, kind::STDIN, ID, bytes);
    }

    fn encode_end(&mut self, out: &mut Vec<u8>) {
        fastcgi::write_end_of_stream(out, kind::STDIN, ID);
        if self.asks_behind {
            fastcgi::write_get_values(out);
        }
        self.is_sent = true;
    }

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if std::mem::take(&mut self.is_silent) {
            self.whole = fastcgi::whole_reply(input, ID);
            self.has_begun = self.whole.is_some();
        }
        match self.whole.take() {
            Some(whole) => self.decode_whole(whole, input),
            None => self.decode_records(input),
        }
    }

    /// The connection was closed without END_REQUEST: the reply is complete only if STDOUT was ended or the
    /// head told its length.
    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.reply.finish()?;
        if !self.records.is_stdout_ended() && !self.reply.is_complete() {
            return Err(ReplyError(
                "the FastCGI application closed the connection inside its reply",
            ));
        }
        Ok(ReplyEvent::End { reusable: false })
    }

    fn head(&self) -> &ReplyHead {
        self.reply.head()
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        self.reply.trailers()
    }

    fn remaining(&self) -> Option<u64> {
        self.reply.remaining()
    }

    fn log_bytes_dropped(&self) -> u64 {
        self.stderr_bytes
            .saturating_sub(limits::STDERR_LOGGED_BYTES_MAX)
    }
}

impl Variables for ParamsEncoder<'_> {
    #[inline(always)]
    fn add(&mut self, name: &[u8], value: &[u8]) {
        ParamsEncoder::add(self, name, value);
    }

    #[inline]
    fn add_joined(&mut self, name: &[u8], first: &[u8], second: &[u8]) {
        ParamsEncoder::add_joined(self, name, first, second);
    }
}

impl From<RecordError> for ReplyError {
    fn from(error: RecordError) -> ReplyError {
        ReplyError(error.sentence())
    }
}

/// The id of every request.
const ID: u16 = 1;

/// The initial size of the buffer for a request's head, so that a usual head makes it grow at most once.
const USUAL_HEAD_BYTES: usize = 2048;

#[cfg(test)]
mod tests;
