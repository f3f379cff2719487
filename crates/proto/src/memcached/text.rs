//! The text protocol: lines, and values whose length is in the line before.

use super::{Command, Direction, Item, Key, MemcachedProgress, Reply, ReplyError, Write};
use crate::crlf_line::{Line, Scanned};

/// Appends `command`.
pub fn write(out: &mut Vec<u8>, command: &Command<'_>) {
    match *command {
        Command::Get { keys, with_cas } => {
            out.extend_from_slice(if with_cas { b"gets" } else { b"get" });
            for key in keys {
                word(out, key.bytes());
            }
        }
        Command::Store {
            how,
            key,
            flags,
            expiry_s,
            data,
        } => {
            out.extend_from_slice(name_of(how));
            word(out, key.bytes());
            number(out, flags);
            number(out, expiry_s);
            number(out, data.len() as u64);
            if let Write::Cas(cas) = how {
                number(out, cas);
            }
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(data);
        }
        Command::Delete { key } => {
            out.extend_from_slice(b"delete");
            word(out, key.bytes());
        }
        Command::Count { direction, key, by } => {
            out.extend_from_slice(match direction {
                Direction::Up => b"incr",
                Direction::Down => b"decr",
            });
            word(out, key.bytes());
            number(out, by);
        }
        Command::Touch { key, expiry_s } => {
            out.extend_from_slice(b"touch");
            word(out, key.bytes());
            number(out, expiry_s);
        }
        Command::FlushAll { delay_s } => {
            out.extend_from_slice(b"flush_all");
            number(out, delay_s);
        }
        Command::Version => out.extend_from_slice(b"version"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Decodes the replies of one connection. It allocates memory for what has arrived, never for what was
/// announced. After an error all further calls return that error.
#[derive(Debug)]
pub struct TextDecoder {
    value_bytes_max: usize,
    line: Line,
    /// The value whose line was read.
    value: Option<Coming>,
    failed: Option<ReplyError>,
}

#[derive(Debug)]
struct Coming {
    item: Item,
    length: usize,
    /// How many bytes of the line end after it were read.
    end_seen: usize,
}

impl TextDecoder {
    /// A decoder for the next reply. Values of more than `value_bytes_max` are refused.
    pub fn new(value_bytes_max: usize) -> TextDecoder {
        TextDecoder {
            value_bytes_max,
            line: Line::default(),
            value: None,
            failed: None,
        }
    }

    /// Reads `input` up to the end of a reply.
    ///
    /// # Errors
    /// The input is no reply, or a value beyond the limit.
    pub fn feed(&mut self, input: &[u8]) -> Result<MemcachedProgress, ReplyError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let fed = self.read(input);
        self.failed = fed.as_ref().err().copied();
        fed
    }

    fn read(&mut self, input: &[u8]) -> Result<MemcachedProgress, ReplyError> {
        let mut rest = input;
        while !rest.is_empty() {
            let reply = match self.value.take() {
                Some(coming) => self.read_value(coming, &mut rest)?,
                None => self.read_line(&mut rest)?,
            };
            if reply.is_some() {
                let consumed = input.len() - rest.len();
                return Ok(MemcachedProgress { consumed, reply });
            }
        }
        Ok(MemcachedProgress {
            consumed: input.len(),
            reply: None,
        })
    }

    fn read_line(&mut self, rest: &mut &[u8]) -> Result<Option<Reply>, ReplyError> {
        match self.line.scan(rest, LINE_BYTES_MAX)? {
            Scanned::More => {
                *rest = &[];
                return Ok(None);
            }
            Scanned::Complete(used) => *rest = rest.get(used..).unwrap_or_default(),
        }
        let reply = match self.line.text().strip_prefix(b"VALUE ") {
            Some(facts) => {
                self.value = Some(Coming::read(facts, self.value_bytes_max)?);
                None
            }
            None => Some(reply_of(self.line.text())?),
        };
        self.line.clear();
        Ok(reply)
    }

    fn read_value(
        &mut self,
        mut coming: Coming,
        rest: &mut &[u8],
    ) -> Result<Option<Reply>, ReplyError> {
        let data = &mut coming.item.data;
        let (part, behind) = rest.split_at((coming.length - data.len()).min(rest.len()));
        data.extend_from_slice(part);
        let missing = b"\r\n".get(coming.end_seen..).unwrap_or_default();
        let (end, behind) = behind.split_at(missing.len().min(behind.len()));
        if !missing.starts_with(end) {
            return Err(ReplyError::LineEnd);
        }
        *rest = behind;
        coming.end_seen += end.len();
        if coming.end_seen == 2 {
            return Ok(Some(Reply::Value(coming.item)));
        }
        self.value = Some(coming);
        Ok(None)
    }
}

impl Coming {
    /// Reads the rest of a `VALUE` line: key, flags, length and perhaps the number for [`Write::Cas`].
    fn read(facts: &[u8], value_bytes_max: usize) -> Result<Coming, ReplyError> {
        let mut words = facts.split(|&byte| byte == b' ');
        let key = words.next().and_then(|key| Key::new(key).ok());
        let key = key.ok_or(ReplyError::Value)?;
        let flags = read_number(words.next()).and_then(|flags| u32::try_from(flags).ok());
        let flags = flags.ok_or(ReplyError::Value)?;
        let length = read_number(words.next()).ok_or(ReplyError::Value)?;
        let length = usize::try_from(length).ok();
        let length = length.filter(|length| *length <= value_bytes_max);
        let length = length.ok_or(ReplyError::ValueTooLong)?;
        let cas = match words.next() {
            None => None,
            word => Some(read_number(word).ok_or(ReplyError::Value)?),
        };
        if words.next().is_some() {
            return Err(ReplyError::Value);
        }
        Ok(Coming {
            item: Item {
                key: key.bytes().into(),
                flags,
                cas,
                data: Vec::new(),
            },
            length,
            end_seen: 0,
        })
    }
}

fn reply_of(line: &[u8]) -> Result<Reply, ReplyError> {
    Ok(match line {
        b"END" => Reply::End,
        b"STORED" => Reply::Stored,
        b"NOT_STORED" => Reply::NotStored,
        b"EXISTS" => Reply::Exists,
        b"NOT_FOUND" => Reply::NotFound,
        b"DELETED" => Reply::Deleted,
        b"TOUCHED" => Reply::Touched,
        b"OK" => Reply::Ok,
        b"ERROR" => Reply::Unsupported,
        _ => {
            let behind = |prefix: &[u8]| line.strip_prefix(prefix).map(<[u8]>::to_vec);
            if let Some(text) = behind(b"CLIENT_ERROR ") {
                Reply::ClientError(text)
            } else if let Some(text) = behind(b"SERVER_ERROR ") {
                Reply::ServerError(text)
            } else if let Some(text) = behind(b"ERROR ") {
                // Such as "ERROR Too many open connections".
                Reply::ServerError(text)
            } else if let Some(text) = behind(b"VERSION ") {
                Reply::Version(text)
            } else {
                // Some servers pad a number that has become shorter with blanks.
                let number = read_number(Some(line.trim_ascii_end()));
                Reply::Number(number.ok_or(ReplyError::Unknown)?)
            }
        }
    })
}

/// Reads decimal digits.
fn read_number(word: Option<&[u8]>) -> Option<u64> {
    let word = word.filter(|word| word.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn name_of(how: Write) -> &'static [u8] {
    match how {
        Write::Set => b"set",
        Write::Add => b"add",
        Write::Replace => b"replace",
        Write::Append => b"append",
        Write::Prepend => b"prepend",
        Write::Cas(_) => b"cas",
    }
}

fn word(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b' ');
    out.extend_from_slice(word);
}

fn number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    word(out, itoa::Buffer::new().format(number).as_bytes());
}

/// The longest line, in bytes. One with a key and three numbers has at most 300; errors are sentences.
const LINE_BYTES_MAX: usize = 2048;
