//! What SCGI, uwsgi and CGI have in common: the body of the request is sent without framing, and the CGI
//! reply ends with the connection, or with the program's output.

use std::cell::Cell;
use std::rc::Rc;

use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;

use super::cgi_reply::CgiReply;
use super::{Conversation, Decoded, Outgoing, ReplyError, ReplyEvent, RequestError};

/// The single request and reply of one connection.
pub struct UntilCloseConversation {
    encode_head: EncodeHead,
    reply: CgiReply,
    /// For a CGI program: set when its reply is complete.
    program: Option<Rc<Cell<bool>>>,
}

/// Appends what a protocol sends before the body.
type EncodeHead = fn(&Outgoing<'_>, &mut Vec<u8>) -> Result<(), RequestError>;

impl UntilCloseConversation {
    /// A conversation for a new connection.
    pub(super) fn new(encode_head: EncodeHead) -> UntilCloseConversation {
        UntilCloseConversation {
            encode_head,
            reply: CgiReply::new(),
            program: None,
        }
    }

    /// A conversation with a CGI program, which got everything but the body in its environment. `is_over` is
    /// set when the reply is complete.
    pub fn with_program(is_over: Rc<Cell<bool>>) -> UntilCloseConversation {
        UntilCloseConversation {
            program: Some(is_over),
            reply: CgiReply::of_program(),
            ..UntilCloseConversation::new(|_, _| Ok(()))
        }
    }

    fn program_is_over(&self) {
        if let Some(is_over) = &self.program {
            is_over.set(true);
        }
    }
}

impl Conversation for UntilCloseConversation {
    fn begin(&mut self) {
        self.reply.begin();
    }

    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        self.reply.expect(request);
        (self.encode_head)(request, out)
    }

    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(bytes);
    }

    fn encode_end(&mut self, _: &mut Vec<u8>) {}

    /// Returns [`ReplyEvent::End`] as soon as the reply is known to be complete, even if the stream goes on.
    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        let mut taken = self.reply.take(input)?;
        if taken.event == ReplyEvent::NeedMore && self.reply.is_complete() {
            self.program_is_over();
            taken.event = ReplyEvent::End { reusable: false };
        }
        Ok(taken)
    }

    fn input_ends(&mut self) {
        self.reply.input_ends();
    }

    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.reply.finish()?;
        self.program_is_over();
        Ok(ReplyEvent::End { reusable: false })
    }

    fn head(&self) -> &ReplyHead {
        self.reply.head()
    }

    fn is_local_redirect(&self) -> bool {
        self.program.is_some() && self.reply.is_local_redirect()
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        self.reply.trailers()
    }

    fn remaining(&self) -> Option<u64> {
        self.reply.remaining()
    }
}
