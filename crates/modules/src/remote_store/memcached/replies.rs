//! The replies to one command, whichever protocol they come in.

use petrel_engine::proto::memcached::{Item, Reply, ReplyError, binary, text};

use crate::remote_store::limits;
use crate::remote_store::link::Replies;

/// Whether a command is answered once or with values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReplies {
    /// One reply.
    One,
    /// So many values at most, and an end.
    Values(usize),
}

/// What the server answers.
pub(super) struct MemcachedReplies {
    decoder: Decoder,
    expected: ExpectedReplies,
    kept_bytes: usize,
    is_complete: bool,
    is_sound: bool,
    /// The values.
    pub(crate) items: Vec<Item>,
    /// The one reply, or what went wrong instead of values.
    pub(crate) reply: Option<Reply>,
}

enum Decoder {
    Text(text::TextDecoder),
    Binary(binary::BinaryDecoder),
}

impl MemcachedReplies {
    /// As text; or binary, where every packet bears this number.
    pub(crate) fn new(expected: ExpectedReplies, binary: Option<u32>) -> MemcachedReplies {
        let decoder = match binary {
            None => Decoder::Text(text::TextDecoder::new(limits::BULK_BYTES_MAX)),
            Some(opaque) => {
                let mut decoder = binary::BinaryDecoder::new(limits::BULK_BYTES_MAX);
                decoder.expect(opaque);
                Decoder::Binary(decoder)
            }
        };
        MemcachedReplies {
            decoder,
            expected,
            kept_bytes: 0,
            is_complete: false,
            is_sound: true,
            items: Vec::new(),
            reply: None,
        }
    }

    fn take(&mut self, reply: Reply) -> Result<(), &'static str> {
        match (reply, self.expected) {
            (Reply::Value(item), ExpectedReplies::Values(keys)) if self.items.len() < keys => {
                self.kept_bytes += item.key.len() + item.data.len() + size_of::<Item>();
                self.items.push(item);
                if self.kept_bytes > limits::REPLY_BYTES_MAX {
                    return Err("the values are larger than allowed");
                }
            }
            (Reply::End, ExpectedReplies::Values(_)) => self.is_complete = true,
            (Reply::Value(_) | Reply::End, _) => {
                return Err(ReplyError::Operation.sentence());
            }
            (reply @ (Reply::Unsupported | Reply::ClientError(_) | Reply::ServerError(_)), _) => {
                self.fail(reply);
            }
            (_, ExpectedReplies::Values(_)) => return Err(ReplyError::Operation.sentence()),
            (reply, ExpectedReplies::One) => {
                self.reply = Some(reply);
                self.is_complete = true;
            }
        }
        Ok(())
    }

    /// As text an error takes the place of all that would come, and a server that has not understood
    /// a command may take its value for commands. Binary, the packet that ends the values still comes.
    fn fail(&mut self, reply: Reply) {
        match &self.decoder {
            Decoder::Text(_) => {
                self.is_complete = true;
                self.is_sound = matches!(reply, Reply::ServerError(_));
            }
            Decoder::Binary(_) => self.is_complete = self.expected == ExpectedReplies::One,
        }
        self.reply.get_or_insert(reply);
    }
}

impl Replies for MemcachedReplies {
    fn feed(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        let mut used = 0;
        while !self.is_complete && used < input.len() {
            let rest = input.get(used..).unwrap_or_default();
            let fed = match &mut self.decoder {
                Decoder::Text(decoder) => decoder.feed(rest),
                Decoder::Binary(decoder) => decoder.feed(rest),
            };
            let fed = fed.map_err(|error| error.sentence())?;
            used += fed.consumed;
            if let Some(reply) = fed.reply {
                self.take(reply)?;
            }
        }
        Ok(used)
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn leave_it_sound(&self) -> bool {
        self.is_sound
    }
}
