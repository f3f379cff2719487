//! The binary protocol: packets with a header of 24 bytes, the same for requests and replies.
//!
//! ```text
//!   0      1          2    3      4        5          6    7
//!   magic  operation  key length  extras   data type  status (vbucket in requests)
//!   8 .. 11  length of extras, key and value together     12 .. 15  opaque: comes back
//!   16 .. 23  the number for Write::Cas
//! ```
//!
//! All packets of a command carry the same opaque number, so that a reply to another command is noticed.

use super::{Command, Direction, Item, Key, MemcachedProgress, Reply, ReplyError, Write};

/// Appends `command`. All its packets carry the number `opaque`.
pub fn write(out: &mut Vec<u8>, command: &Command<'_>, opaque: u32) {
    let mut packet = |operation, cas, extras: &[u8], key: &[u8], value: &[u8]| {
        write_packet(out, operation, opaque, cas, [extras, key, value]);
    };
    match *command {
        // The server does not reply about missing keys. The reply to the last packet marks the end.
        Command::Get { keys, .. } => {
            for key in keys {
                packet(operation::GET_WITH_KEY_QUIETLY, 0, &[], key.bytes(), &[]);
            }
            packet(operation::NO_OPERATION, 0, &[], &[], &[]);
        }
        Command::Store {
            how: Write::Append,
            key,
            data,
            ..
        } => packet(operation::APPEND, 0, &[], key.bytes(), data),
        Command::Store {
            how: Write::Prepend,
            key,
            data,
            ..
        } => packet(operation::PREPEND, 0, &[], key.bytes(), data),
        Command::Store {
            how,
            key,
            flags,
            expiry_s,
            data,
        } => {
            let (operation, cas) = match how {
                Write::Add => (operation::ADD, 0),
                Write::Replace => (operation::REPLACE, 0),
                Write::Cas(cas) => (operation::SET, cas),
                _ => (operation::SET, 0),
            };
            let mut extras = [0; 8];
            put(&mut extras, 0, &flags.to_be_bytes());
            put(&mut extras, 4, &expiry_s.to_be_bytes());
            packet(operation, cas, &extras, key.bytes(), data);
        }
        Command::Delete { key } => packet(operation::DELETE, 0, &[], key.bytes(), &[]),
        Command::Count { direction, key, by } => {
            let operation = match direction {
                Direction::Up => operation::INCREMENT,
                Direction::Down => operation::DECREMENT,
            };
            // The extras: the amount, the initial value, and an expiry that means: do not create a missing
            // key.
            let mut extras = [0; 20];
            put(&mut extras, 0, &by.to_be_bytes());
            put(&mut extras, 16, &u32::MAX.to_be_bytes());
            packet(operation, 0, &extras, key.bytes(), &[]);
        }
        Command::Touch { key, expiry_s } => {
            let extras = expiry_s.to_be_bytes();
            packet(operation::TOUCH, 0, &extras, key.bytes(), &[]);
        }
        Command::FlushAll { delay_s } => {
            packet(operation::FLUSH, 0, &delay_s.to_be_bytes(), &[], &[]);
        }
        Command::Version => packet(operation::VERSION, 0, &[], &[], &[]),
    }
}

/// Decodes the replies of one connection. It allocates memory for what has arrived, never for what was
/// announced. After an error all further calls return that error.
#[derive(Debug)]
pub struct BinaryDecoder {
    value_bytes_max: usize,
    opaque: u32,
    header: Vec<u8>,
    body: Vec<u8>,
    failed: Option<ReplyError>,
}

impl BinaryDecoder {
    /// A decoder for the next reply. Values of more than `value_bytes_max` are refused.
    pub fn new(value_bytes_max: usize) -> BinaryDecoder {
        BinaryDecoder {
            value_bytes_max,
            opaque: 0,
            header: Vec::with_capacity(HEADER_BYTES),
            body: Vec::new(),
            failed: None,
        }
    }

    /// Sets the number that replies carry from now on.
    pub fn expect(&mut self, opaque: u32) {
        self.opaque = opaque;
    }

    /// Reads `input` up to the end of a reply.
    ///
    /// # Errors
    /// The input is no reply, a reply to another command, or a value beyond the limit.
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
        loop {
            fill(&mut self.header, HEADER_BYTES, &mut rest);
            let Some(header) = self.header.first_chunk() else {
                break;
            };
            let header = PacketHeader::read(header);
            self.check(&header)?;
            fill(&mut self.body, header.body_bytes, &mut rest);
            if self.body.len() < header.body_bytes {
                break;
            }
            self.header.clear();
            let body = std::mem::take(&mut self.body);
            if let Some(reply) = reply_of(&header, body)? {
                return Ok(MemcachedProgress {
                    consumed: input.len() - rest.len(),
                    reply: Some(reply),
                });
            }
        }
        Ok(MemcachedProgress {
            consumed: input.len(),
            reply: None,
        })
    }

    fn check(&self, header: &PacketHeader) -> Result<(), ReplyError> {
        if header.magic != REPLY {
            return Err(ReplyError::Magic);
        }
        if header.opaque != self.opaque {
            return Err(ReplyError::Operation);
        }
        let in_front = header.key_bytes + header.extras_bytes;
        match header.body_bytes.checked_sub(in_front) {
            None => Err(ReplyError::Lengths),
            Some(value) if value > self.value_bytes_max => Err(ReplyError::ValueTooLong),
            Some(_) => Ok(()),
        }
    }
}

struct PacketHeader {
    magic: u8,
    operation: u8,
    key_bytes: usize,
    extras_bytes: usize,
    status: u16,
    body_bytes: usize,
    opaque: u32,
    cas: u64,
}

impl PacketHeader {
    fn read(bytes: &[u8; HEADER_BYTES]) -> PacketHeader {
        let [magic, operation, k0, k1, extras, _, s0, s1, rest @ ..] = *bytes;
        let [b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = rest;
        PacketHeader {
            magic,
            operation,
            key_bytes: u16::from_be_bytes([k0, k1]).into(),
            extras_bytes: extras.into(),
            status: u16::from_be_bytes([s0, s1]),
            body_bytes: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: u32::from_be_bytes([o0, o1, o2, o3]),
            cas: u64::from_be_bytes(cas),
        }
    }
}

/// The reply in a packet; `None` if the packet is skipped.
fn reply_of(header: &PacketHeader, mut body: Vec<u8>) -> Result<Option<Reply>, ReplyError> {
    if header.status != 0 {
        body.drain(..(header.extras_bytes + header.key_bytes).min(body.len()));
        return failure_of(header, body);
    }
    Ok(Some(match header.operation {
        operation::GET_WITH_KEY_QUIETLY => Reply::Value(item_of(header, body)?),
        operation::NO_OPERATION => Reply::End,
        operation::SET
        | operation::ADD
        | operation::REPLACE
        | operation::APPEND
        | operation::PREPEND => Reply::Stored,
        operation::DELETE => Reply::Deleted,
        operation::TOUCH => Reply::Touched,
        operation::FLUSH => Reply::Ok,
        operation::INCREMENT | operation::DECREMENT => {
            let number = body
                .as_slice()
                .try_into()
                .map_err(|_| ReplyError::Lengths)?;
            Reply::Number(u64::from_be_bytes(number))
        }
        operation::VERSION => Reply::Version(body),
        _ => return Err(ReplyError::Operation),
    }))
}

fn failure_of(header: &PacketHeader, text: Vec<u8>) -> Result<Option<Reply>, ReplyError> {
    Ok(Some(match header.status {
        status::NOT_FOUND if header.operation == operation::GET_WITH_KEY_QUIETLY => {
            return Ok(None);
        }
        status::NOT_FOUND => Reply::NotFound,
        status::EXISTS => Reply::Exists,
        status::NOT_STORED => Reply::NotStored,
        status::INVALID | status::NOT_A_NUMBER => Reply::ClientError(text),
        status::UNKNOWN_COMMAND => Reply::Unsupported,
        _ => Reply::ServerError(text),
    }))
}

/// Decodes an item: four bytes of flags, the key, the value.
fn item_of(header: &PacketHeader, mut body: Vec<u8>) -> Result<Item, ReplyError> {
    let flags = body.first_chunk().copied();
    let flags = flags.filter(|_| header.extras_bytes == 4);
    let flags = u32::from_be_bytes(flags.ok_or(ReplyError::Lengths)?);
    let value_start = header.extras_bytes + header.key_bytes;
    let key = body.get(header.extras_bytes..value_start);
    let key = key.and_then(|key| Key::new(key).ok());
    let key = key.ok_or(ReplyError::Value)?.bytes().to_vec();
    body.drain(..value_start);
    Ok(Item {
        key,
        flags,
        cas: Some(header.cas),
        data: body,
    })
}

/// Moves bytes from `rest` to `buffer` until `buffer` has `length` bytes.
fn fill(buffer: &mut Vec<u8>, length: usize, rest: &mut &[u8]) {
    let missing = length.saturating_sub(buffer.len());
    let (part, behind) = rest.split_at(missing.min(rest.len()));
    buffer.extend_from_slice(part);
    *rest = behind;
}

/// `parts` are extras, key and value. The types bound the lengths of the first two. A value of more than 4
/// GiB would be cut, but callers allow none that long.
fn write_packet(out: &mut Vec<u8>, operation: u8, opaque: u32, cas: u64, parts: [&[u8]; 3]) {
    let [extras, key, value] = parts;
    let value_max = u32::MAX as usize - extras.len() - key.len();
    let value = value.get(..value_max).unwrap_or(value);
    let length = (extras.len() + key.len() + value.len()) as u32;
    let mut header = [0; HEADER_BYTES];
    put(&mut header, 0, &[REQUEST, operation]);
    put(&mut header, 2, &(key.len() as u16).to_be_bytes());
    put(&mut header, 4, &[extras.len() as u8]);
    put(&mut header, 8, &length.to_be_bytes());
    put(&mut header, 12, &opaque.to_be_bytes());
    put(&mut header, 16, &cas.to_be_bytes());
    for part in [&header[..], extras, key, value] {
        out.extend_from_slice(part);
    }
}

/// Copies `bytes` to `position`, where there is room for them.
fn put(out: &mut [u8], position: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(position..position + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

const HEADER_BYTES: usize = 24;
const REQUEST: u8 = 0x80;
const REPLY: u8 = 0x81;

mod operation {
    pub(crate) const SET: u8 = 0x01;
    pub(crate) const ADD: u8 = 0x02;
    pub(crate) const REPLACE: u8 = 0x03;
    pub(crate) const DELETE: u8 = 0x04;
    pub(crate) const INCREMENT: u8 = 0x05;
    pub(crate) const DECREMENT: u8 = 0x06;
    pub(crate) const FLUSH: u8 = 0x08;
    pub(crate) const NO_OPERATION: u8 = 0x0a;
    pub(crate) const VERSION: u8 = 0x0b;
    pub(crate) const GET_WITH_KEY_QUIETLY: u8 = 0x0d;
    pub(crate) const APPEND: u8 = 0x0e;
    pub(crate) const PREPEND: u8 = 0x0f;
    pub(crate) const TOUCH: u8 = 0x1c;
}

mod status {
    pub(crate) const NOT_FOUND: u16 = 0x01;
    pub(crate) const EXISTS: u16 = 0x02;
    pub(crate) const INVALID: u16 = 0x04;
    pub(crate) const NOT_STORED: u16 = 0x05;
    pub(crate) const NOT_A_NUMBER: u16 = 0x06;
    pub(crate) const UNKNOWN_COMMAND: u16 = 0x81;
}
