//! CGI (RFC 3875), seen from the pipes of a program: the body goes in as it is, the reply comes out as
//! a head and a body that ends with the output. All that a request consists of besides is in the
//! program's environment.

use std::cell::Cell;
use std::rc::Rc;

use petrel_engine::proto::reply_head::ReplyHead;

use super::cgi_reply::CgiReply;
use super::{Conversation, Decoded, Outgoing, ReplyError, ReplyEvent, RequestError};

/// The one conversation that a program has.
pub struct CgiConversation {
    reply: CgiReply,
    is_over: Rc<Cell<bool>>,
}

impl CgiConversation {
    /// `is_over` is set when the reply is complete, for whoever looks after the program.
    pub fn new(is_over: Rc<Cell<bool>>) -> CgiConversation {
        CgiConversation {
            reply: CgiReply::new(),
            is_over,
        }
    }

    fn end(&self) -> ReplyEvent {
        self.is_over.set(true);
        ReplyEvent::End { reusable: false }
    }
}

impl Conversation for CgiConversation {
    fn begin(&mut self) {
        self.reply.begin();
    }

    fn encode_head(&mut self, request: &Outgoing<'_>, _: &mut Vec<u8>) -> Result<(), RequestError> {
        self.reply.expect(request);
        Ok(())
    }

    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
    }

    fn encode_end(&mut self, _: &mut Vec<u8>) {}

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if self.reply.is_complete() {
            // Whatever comes behind an announced length is nobody's.
            return Ok(Decoded {
                consumed: input.len(),
                event: self.end(),
            });
        }
        self.reply.take(input)
    }

    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.reply.finish()?;
        Ok(self.end())
    }

    fn head(&self) -> &ReplyHead {
        self.reply.head()
    }

    fn is_local_redirect(&self) -> bool {
        self.reply.is_local_redirect()
    }

    fn remaining(&self) -> Option<u64> {
        self.reply.remaining()
    }
}
