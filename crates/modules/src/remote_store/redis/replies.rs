//! The replies to a number of commands.

use petrel_engine::proto::resp::{ReplyLimits, RespDecoder, Value};

use crate::remote_store::limits;
use crate::remote_store::link::Replies;
use crate::remote_store::pool::LoginReplies;

/// Decodes the replies, in the order of the commands.
pub(super) struct RedisReplies {
    decoder: RespDecoder,
    expected: usize,
    kept_bytes: usize,
    values: Vec<Value>,
}

impl RedisReplies {
    /// Replies to so many commands.
    pub(crate) fn to(commands: usize) -> RedisReplies {
        RedisReplies {
            decoder: RespDecoder::new(ReplyLimits {
                bulk_bytes_max: limits::BULK_BYTES_MAX,
                reply_bytes_max: limits::REPLY_BYTES_MAX,
                depth_max: limits::REPLY_DEPTH_MAX,
            }),
            expected: commands,
            kept_bytes: 0,
            values: Vec::new(),
        }
    }

    /// The complete replies.
    pub(crate) fn into_values(self) -> Vec<Value> {
        self.values
    }
}

impl Replies for RedisReplies {
    fn feed(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        let mut used = 0;
        while !self.is_complete() && used < input.len() {
            let rest = input.get(used..).unwrap_or_default();
            let fed = self.decoder.feed(rest).map_err(|error| error.sentence())?;
            used += fed.consumed;
            match fed.value {
                // A push message is no reply to a command.
                None | Some(Value::Push(_)) => {}
                Some(value) => {
                    self.kept_bytes += self.decoder.reply_bytes();
                    self.values.push(value);
                }
            }
            if self.kept_bytes > limits::REPLY_BYTES_MAX {
                return Err("the replies are larger than allowed");
            }
        }
        Ok(used)
    }

    fn is_complete(&self) -> bool {
        self.values.len() >= self.expected
    }
}

impl LoginReplies for RedisReplies {
    fn refusal(&self) -> Option<&[u8]> {
        let refused = self.values.iter().find(|value| value.is_error())?;
        refused.bytes()
    }
}
