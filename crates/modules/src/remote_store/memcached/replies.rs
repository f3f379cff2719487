//! The replies to one command, in either protocol.

use petrel_engine::proto::memcached::{Item, Reply, ReplyError, binary, text};

use crate::remote_store::limits;
use crate::remote_store::link::Replies;

/// What the replies to a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpectedReplies {
    /// One reply.
    One,
    /// At most so many values, and an end.
    Values(usize),
}

/// The replies of the server.
pub(super) struct MemcachedReplies {
    decoder: Decoder,
    expected: ExpectedReplies,
    kept_bytes: usize,
    is_complete: bool,
    is_sound: bool,
    /// The values.
    pub(crate) items: Vec<Item>,
    /// The single reply, or the error that came instead of values.
    pub(crate) reply: Option<Reply>,
}

enum Decoder {
    Text(text::TextDecoder),
    Binary(binary::BinaryDecoder),
}

impl MemcachedReplies {
    /// A decoder for the text protocol, or, with `binary`, for the binary protocol, in which every packet has
    /// this number.
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

    /// In the text protocol an error replaces all further replies, and a server that has not understood a
    /// command may take its value for commands. In the binary protocol the packet that ends the values still
    /// follows.
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
