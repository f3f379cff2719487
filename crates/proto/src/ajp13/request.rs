//! Encodes requests. Everything is appended to the caller's buffer.

use super::{BODY_BYTES_MAX, PACKET_BYTES_MAX};

/// The parts of a request with a fixed place in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// The method.
    pub method: &'r [u8],
    /// The version, such as `HTTP/1.1`.
    pub protocol: &'r [u8],
    /// The path of the URL, percent-encoded as it was received, without the query.
    pub uri: &'r [u8],
    /// Address of the client.
    pub remote_address: &'r [u8],
    /// Name of the server, without its port.
    pub server_name: &'r [u8],
    /// Port of the server.
    pub server_port: u16,
    /// Whether the client uses TLS.
    pub is_tls: bool,
}

/// An attribute that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// The name of the authenticated user.
    RemoteUser,
    /// The authentication scheme.
    AuthType,
    /// The query of the URL.
    QueryString,
    /// The secret that a container may ask for.
    Secret,
}

impl Attribute {
    const fn number(self) -> u8 {
        match self {
            Attribute::RemoteUser => 3,
            Attribute::AuthType => 4,
            Attribute::QueryString => 5,
            Attribute::Secret => 12,
        }
    }
}

/// The request does not fit into a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTooLong;

/// Writes FORWARD_REQUEST directly into the output: first the header fields, then
/// [`RequestEncoder::attributes`].
#[derive(Debug)]
pub struct RequestEncoder<'o> {
    packet: Packet<'o>,
    /// The position of the number of fields in the packet.
    count_position: usize,
    count: u16,
    /// The method, if it has no number.
    stored_method: Option<Vec<u8>>,
}

impl<'o> RequestEncoder<'o> {
    /// Begins the packet.
    pub fn new(out: &'o mut Vec<u8>, request: &Request<'_>) -> RequestEncoder<'o> {
        let mut packet = Packet::new(out);
        let number = method_number(request.method);
        packet.byte(FORWARD_REQUEST);
        packet.byte(number.unwrap_or(METHOD_STORED));
        packet.string(request.protocol);
        packet.string(request.uri);
        packet.string(request.remote_address);
        packet.null(); // The name of the client. The gateway does not look it up.
        packet.string(request.server_name);
        packet.number(request.server_port);
        packet.byte(u8::from(request.is_tls));
        let count_position = packet.out.len();
        packet.number(0);
        RequestEncoder {
            packet,
            count_position,
            count: 0,
            stored_method: number.is_none().then(|| request.method.to_vec()),
        }
    }

    /// Appends a header field.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        match field_number(name) {
            Some(number) => self.packet.number(number),
            None => self.packet.string(name),
        }
        self.packet.string(value);
        // If there are more fields than this counts, the packet is too long and `finish` refuses it.
        self.count = self.count.saturating_add(1);
    }

    /// Ends the fields; attributes follow.
    pub fn attributes(self) -> AttributeEncoder<'o> {
        let mut packet = self.packet;
        let place = self.count_position..self.count_position + 2;
        packet.out[place].copy_from_slice(&self.count.to_be_bytes());
        if let Some(method) = self.stored_method {
            packet.byte(STORED_METHOD);
            packet.string(&method);
        }
        AttributeEncoder { packet }
    }
}

/// Writes the attributes, which end FORWARD_REQUEST.
#[derive(Debug)]
pub struct AttributeEncoder<'o> {
    packet: Packet<'o>,
}

impl AttributeEncoder<'_> {
    /// Appends an attribute.
    pub fn add(&mut self, attribute: Attribute, value: &[u8]) {
        self.packet.byte(attribute.number());
        self.packet.string(value);
    }

    /// Appends an attribute that has a name instead of a number.
    pub fn add_named(&mut self, name: &[u8], value: &[u8]) {
        self.packet.byte(NAMED);
        self.packet.string(name);
        self.packet.string(value);
    }

    /// Ends the packet; the first piece of the body may follow.
    ///
    /// # Errors
    /// It is longer than [`PACKET_BYTES_MAX`]. It is removed from the output.
    pub fn finish(mut self) -> Result<(), RequestTooLong> {
        self.packet.byte(ATTRIBUTES_END);
        self.packet.finish()
    }
}

/// Appends a packet with a piece of the body. At most [`BODY_BYTES_MAX`] fit into one; a longer piece becomes
/// several packets.
pub fn write_body(out: &mut Vec<u8>, bytes: &[u8]) {
    for stretch in bytes.chunks(BODY_BYTES_MAX) {
        let length = stretch.len() as u16;
        let [high, low] = (length + 2).to_be_bytes();
        let [length_high, length_low] = length.to_be_bytes();
        out.extend_from_slice(&[0x12, 0x34, high, low, length_high, length_low]);
        out.extend_from_slice(stretch);
    }
}

/// Appends the reply to a container that asks for more when the body has ended.
pub fn write_end_of_body(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x12, 0x34, 0, 0]);
}

/// A packet in the making.
#[derive(Debug)]
struct Packet<'o> {
    out: &'o mut Vec<u8>,
    /// Where the packet begins in `out`.
    start: usize,
    /// Whether something was left out because it did not fit.
    is_too_long: bool,
}

impl<'o> Packet<'o> {
    fn new(out: &'o mut Vec<u8>) -> Packet<'o> {
        let start = out.len();
        out.extend_from_slice(&[0x12, 0x34, 0, 0]);
        Packet {
            out,
            start,
            is_too_long: false,
        }
    }

    #[inline]
    fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    #[inline]
    fn number(&mut self, number: u16) {
        self.out.extend_from_slice(&number.to_be_bytes());
    }

    #[inline]
    fn string(&mut self, text: &[u8]) {
        if text.len() > PACKET_BYTES_MAX || self.out.len() - self.start > PACKET_BYTES_MAX {
            self.is_too_long = true;
            return;
        }
        self.number(text.len() as u16);
        self.out.extend_from_slice(text);
        self.byte(0);
    }

    /// Appends a null string.
    fn null(&mut self) {
        self.number(0xffff);
    }

    fn finish(self) -> Result<(), RequestTooLong> {
        let length = self.out.len() - self.start;
        if self.is_too_long || length > PACKET_BYTES_MAX {
            self.out.truncate(self.start);
            return Err(RequestTooLong);
        }
        let length = ((length - 4) as u16).to_be_bytes();
        self.out[self.start + 2..self.start + 4].copy_from_slice(&length);
        Ok(())
    }
}

/// The number of a method, if it has one.
fn method_number(method: &[u8]) -> Option<u8> {
    let position = METHODS
        .iter()
        .position(|known| known.as_bytes() == method)?;
    u8::try_from(position + 1).ok()
}

/// The number of a field's name. Only the frequent names have one.
#[inline]
fn field_number(name: &[u8]) -> Option<u16> {
    let named = |(known, _): &&(&str, u16)| known.as_bytes().eq_ignore_ascii_case(name);
    FIELDS.iter().find(named).map(|(_, number)| *number)
}

/// Methods in the order of their numbers, which begin at 1.
pub(super) const METHODS: [&str; 27] = [
    "OPTIONS",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "ACL",
    "REPORT",
    "VERSION-CONTROL",
    "CHECKIN",
    "CHECKOUT",
    "UNCHECKOUT",
    "SEARCH",
    "MKWORKSPACE",
    "UPDATE",
    "LABEL",
    "MERGE",
    "BASELINE-CONTROL",
    "MKACTIVITY",
];

/// Names of fields that are sent as a number.
pub(super) const FIELDS: [(&str, u16); 14] = [
    ("Host", 0xa00b),
    ("User-Agent", 0xa00e),
    ("Accept", 0xa001),
    ("Accept-Encoding", 0xa003),
    ("Accept-Language", 0xa004),
    ("Cookie", 0xa009),
    ("Referer", 0xa00d),
    ("Content-Type", 0xa007),
    ("Content-Length", 0xa008),
    ("Authorization", 0xa005),
    ("Connection", 0xa006),
    ("Accept-Charset", 0xa002),
    ("Cookie2", 0xa00a),
    ("Pragma", 0xa00c),
];

pub(super) const FORWARD_REQUEST: u8 = 2;

/// In place of a method's number: the method follows as an attribute.
pub(super) const METHOD_STORED: u8 = 0xff;

pub(super) const NAMED: u8 = 10;
pub(super) const STORED_METHOD: u8 = 13;
pub(super) const ATTRIBUTES_END: u8 = 0xff;
