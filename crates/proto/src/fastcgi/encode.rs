//! Encodes records. Everything is appended to the caller's buffer.

use super::{AfterRequest, CONTENT_BYTES_MAX, HEADER_BYTES, ProtocolStatus, Role, VERSION, kind};

/// Writes the PARAMS stream of one request directly into `out`, so that no pair is copied twice.
///
/// A pair is not split between records if it fits into one, because php-fpm parses each record separately.
/// Records are padded to a multiple of eight bytes, as the specification advises.
#[derive(Debug)]
pub struct ParamsEncoder<'o> {
    out: &'o mut Vec<u8>,
    id: u16,
    /// Where the content of the open record begins. Its header precedes it.
    content_start: usize,
}

impl<'o> ParamsEncoder<'o> {
    /// Opens the stream of request `id`.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>, id: u16) -> ParamsEncoder<'o> {
        write_header(out, kind::PARAMS, id, 0, 0);
        let content_start = out.len();
        ParamsEncoder {
            out,
            id,
            content_start,
        }
    }

    /// Appends a pair. Names and values may be empty, hold any bytes, and have up to 2 GiB each; a longer one
    /// is left out.
    // Always inlined: most names are constants, and then checking and copying them takes two or three moves.
    #[inline(always)]
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        if name.len() < SHORT && value.len() < SHORT && self.room() >= 2 + 2 * SHORT {
            self.out
                .extend_from_slice(&[name.len() as u8, value.len() as u8]);
            self.out.extend_from_slice(name);
            self.out.extend_from_slice(value);
        } else {
            self.add_long(name, value);
        }
    }

    /// Like [`ParamsEncoder::add`], for a value in two parts.
    #[inline]
    pub fn add_joined(&mut self, name: &[u8], first: &[u8], second: &[u8]) {
        if second.is_empty() {
            return self.add(name, first);
        }
        let length = first.len() + second.len();
        if name.len() < SHORT && self.room() >= 5 + SHORT + length {
            self.out.push(name.len() as u8);
            match length < SHORT {
                true => self.out.push(length as u8),
                false => {
                    let length = length as u32 | LONG_BIT;
                    self.out.extend_from_slice(&length.to_be_bytes());
                }
            }
            for part in [name, first, second] {
                self.out.extend_from_slice(part);
            }
        } else {
            self.add_long(name, &[first, second].concat());
        }
    }

    /// Appends pairs that [`write_pair`] has encoded.
    #[inline]
    pub fn add_encoded(&mut self, pairs: &[u8]) {
        if self.room() < pairs.len() && self.out.len() > self.content_start {
            self.close_and_open();
        }
        self.append(pairs);
    }

    /// Ends the stream.
    #[inline]
    pub fn finish(mut self) {
        if self.out.len() > self.content_start {
            self.close();
            write_header(self.out, kind::PARAMS, self.id, 0, 0);
        }
        // A record without content ends the stream. If the open record is empty, it is that record.
    }

    #[inline(never)]
    fn add_long(&mut self, name: &[u8], value: &[u8]) {
        if name.len() > LENGTH_MAX || value.len() > LENGTH_MAX {
            return;
        }
        let mut lengths = [0; 8];
        let used = put_length(&mut lengths, 0, name.len());
        let used = put_length(&mut lengths, used, value.len());
        let lengths = &lengths[..used];
        if self.room() >= used + name.len() + value.len() {
            // A long URL is in several variables.
            for part in [lengths, name, value] {
                self.out.extend_from_slice(part);
            }
            return;
        }
        if self.out.len() > self.content_start {
            self.close_and_open();
        }
        for part in [lengths, name, value] {
            self.append(part);
        }
    }

    /// Appends bytes, continuing in a new record whenever one is full.
    fn append(&mut self, mut bytes: &[u8]) {
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(self.room()));
            self.out.extend_from_slice(now);
            if later.is_empty() {
                return;
            }
            self.close_and_open();
            bytes = later;
        }
    }

    /// Bytes that still fit into the open record.
    #[inline]
    fn room(&self) -> usize {
        CONTENT_BYTES_MAX - (self.out.len() - self.content_start)
    }

    fn close_and_open(&mut self) {
        self.close();
        write_header(self.out, kind::PARAMS, self.id, 0, 0);
        self.content_start = self.out.len();
    }

    /// Pads the open record, and writes its length into its header.
    #[inline]
    fn close(&mut self) {
        let length = self.out.len() - self.content_start;
        let padding = padding(length);
        let header = header(kind::PARAMS, self.id, length as u16, padding);
        self.out[self.content_start - HEADER_BYTES..self.content_start].copy_from_slice(&header);
        self.out.extend_from_slice(&PADDING[..usize::from(padding)]);
    }
}

/// Appends BEGIN_REQUEST.
#[inline]
pub fn write_begin_request(out: &mut Vec<u8>, id: u16, role: Role, after: AfterRequest) {
    write_header(out, kind::BEGIN_REQUEST, id, 8, 0);
    let [high, low] = role.number().to_be_bytes();
    let keep = u8::from(after == AfterRequest::Keep);
    out.extend_from_slice(&[high, low, keep, 0, 0, 0, 0, 0]);
}

/// Appends `bytes` as records of a stream of that [kind], padded to a multiple of eight.
/// Appends nothing if `bytes` is empty: that would end the stream.
pub fn write_stream(out: &mut Vec<u8>, kind: u8, id: u16, bytes: &[u8]) {
    for content in bytes.chunks(CONTENT_BYTES_MAX) {
        let padding = padding(content.len());
        write_header(out, kind, id, content.len() as u16, padding);
        out.extend_from_slice(content);
        out.extend_from_slice(&PADDING[..usize::from(padding)]);
    }
}

/// Appends the record that ends a stream of that [kind].
#[inline]
pub fn write_end_of_stream(out: &mut Vec<u8>, kind: u8, id: u16) {
    write_header(out, kind, id, 0, 0);
}

/// Appends END_REQUEST.
pub fn write_end_request(out: &mut Vec<u8>, id: u16, app_status: u32, status: ProtocolStatus) {
    write_header(out, kind::END_REQUEST, id, 8, 0);
    out.extend_from_slice(&app_status.to_be_bytes());
    out.extend_from_slice(&[status.number(), 0, 0, 0]);
}

/// Appends UNKNOWN_TYPE: the reply to a management record of an unknown kind.
pub fn write_unknown_type(out: &mut Vec<u8>, unknown: u8) {
    write_header(out, kind::UNKNOWN_TYPE, 0, 8, 0);
    out.extend_from_slice(&[unknown, 0, 0, 0, 0, 0, 0, 0]);
}

/// Appends GET_VALUES, which asks for no value. An application answers it when one of its processes reads from the
/// connection, so the answer shows that a process has it (section 4.1 of the specification). It names no value, because
/// Ruby's library dies of one that it does not have, and has padding, because libfcgi waits for more behind a record
/// without content and padding.
pub fn write_get_values(out: &mut Vec<u8>) {
    write_header(out, kind::GET_VALUES, 0, 0, PADDING.len() as u8);
    out.extend_from_slice(&PADDING);
}

/// Appends GET_VALUES_RESULT with these pairs. Names and values must have less than 128 bytes each; longer
/// ones, and those that do not fit into one record, are left out.
pub fn write_values_result<'a>(
    out: &mut Vec<u8>,
    pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) {
    write_header(out, kind::GET_VALUES_RESULT, 0, 0, 0);
    let start = out.len();
    for (name, value) in pairs {
        let room = CONTENT_BYTES_MAX - (out.len() - start);
        if name.len() < SHORT && value.len() < SHORT && room >= 2 + 2 * SHORT {
            out.extend_from_slice(&[name.len() as u8, value.len() as u8]);
            out.extend_from_slice(name);
            out.extend_from_slice(value);
        }
    }
    let length = out.len() - start;
    let padding = padding(length);
    let header = header(kind::GET_VALUES_RESULT, 0, length as u16, padding);
    out[start - HEADER_BYTES..start].copy_from_slice(&header);
    out.extend_from_slice(&PADDING[..usize::from(padding)]);
}

#[inline]
fn write_header(out: &mut Vec<u8>, kind: u8, id: u16, length: u16, padding: u8) {
    out.extend_from_slice(&header(kind, id, length, padding));
}

#[inline]
fn header(kind: u8, id: u16, length: u16, padding: u8) -> [u8; HEADER_BYTES] {
    let [id_high, id_low] = id.to_be_bytes();
    let [length_high, length_low] = length.to_be_bytes();
    [
        VERSION,
        kind,
        id_high,
        id_low,
        length_high,
        length_low,
        padding,
        0,
    ]
}

/// How many bytes of padding lead to the next multiple of eight.
#[inline]
fn padding(length: usize) -> u8 {
    (length.wrapping_neg() & 7) as u8
}

/// Appends a pair in the encoding of a PARAMS stream. A name or value of over 2 GiB is left out.
pub fn write_pair(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    if name.len() > LENGTH_MAX || value.len() > LENGTH_MAX {
        return;
    }
    let mut lengths = [0; 8];
    let used = put_length(&mut lengths, 0, name.len());
    let used = put_length(&mut lengths, used, value.len());
    for part in [&lengths[..used], name, value] {
        out.extend_from_slice(part);
    }
}

/// Writes a length at `position`, in one byte, or in four with the highest bit set. Returns where it ends.
/// The caller has checked that it is at most [`LENGTH_MAX`].
fn put_length(lengths: &mut [u8; 8], position: usize, length: usize) -> usize {
    if length < SHORT {
        lengths[position] = length as u8;
        return position + 1;
    }
    let long = (length as u32 | LONG_BIT).to_be_bytes();
    lengths[position..position + 4].copy_from_slice(&long);
    position + 4
}

/// Names and values shorter than this have a length of one byte.
const SHORT: usize = 128;

/// Is set in a length of four bytes.
const LONG_BIT: u32 = 1 << 31;

/// The longest name or value: 31 bits.
const LENGTH_MAX: usize = (1 << 31) - 1;

const PADDING: [u8; 8] = [0; 8];
