//! One request head: it is parsed once, read by field number or name, and changed by modules.
//!
//! [`RequestHead`] keeps its own copy of the bytes, so that the receive buffer is free for the body and the
//! next request. It is reused: once its buffers have grown, it does not allocate. Framing and keep-alive,
//! which determine where the message ends, are computed while parsing and do not change when modules change
//! fields.

use std::ops::Range;

use crate::method::Method;
use crate::syntax::{is_token, list};

mod build;
mod error;
mod field;
mod host;
mod message;

use field::Repeated;

pub use build::HeadBuilder;
pub use error::HeadError;
pub use field::KnownField;

/// What is accepted in a request head. The switches are named after server.http-parseopts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// server.max-request-field-size: the longest head in bytes, including its last empty line.
    pub head_bytes_max: usize,
    /// header-strict: lines must end in CR LF, and Content-Length may not be repeated.
    pub header_strict: bool,
    /// host-strict: the host must be a well-formed name or address. Implies `host_normalize`.
    pub host_strict: bool,
    /// host-normalize: the port is checked, the default port and a trailing dot are removed, and IPv6
    /// addresses are written in their shortest form.
    pub host_normalize: bool,
    /// The port that is removed from a host: 80, or 443 on a TLS connection.
    pub default_port: u16,
    /// method-get-body: GET and HEAD may carry a body.
    pub method_get_body: bool,
}

impl Default for HeadOptions {
    fn default() -> HeadOptions {
        HeadOptions {
            head_bytes_max: 8192,
            header_strict: true,
            host_strict: true,
            host_normalize: true,
            default_port: 80,
            method_get_body: false,
        }
    }
}

/// The HTTP version of a request. 1.2 and above within 1.x count as 1.1. Later versions compare as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

impl Version {
    /// The version as it is passed to backends, scripts and logs: `HTTP/1.1`, but `HTTP/2.0`, which CGI
    /// programs and log readers expect.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }
}

/// How the end of a request body is determined (RFC 9112 6.3, RFC 9113 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body.
    None,
    /// This many bytes; a request with length 0 is `None`.
    Length(u64),
    /// Pieces until the last one: chunks in HTTP/1.1, the end of the stream in HTTP/2 and 3.
    Chunked,
}

/// One request head. All methods but [`RequestHead::parse`] and [`RequestHead::clear`] are for a
/// [complete](crate::http1::Parsed::Complete) head. Before that, accessors return what they would for an
/// empty request; after an error they return what was parsed until then, for logs only.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The head as received, followed by values that were set later.
    pub(crate) bytes: Vec<u8>,
    /// The length of the head as received, which `bytes` begins with.
    pub(crate) head_length: usize,
    method: Method,
    pub(crate) method_range: Range<usize>,
    pub(crate) target: Range<usize>,
    pub(crate) version: Version,
    pub(crate) fields: Vec<FieldRange>,
    /// For each known field the position of its first occurrence in `fields`, plus one; 0 if it is absent.
    pub(crate) index: [u32; KnownField::COUNT],
    /// The normalised host and, unless it is the default, the port.
    host: Vec<u8>,
    /// The last Host value that was normalised, and the result. [`Self::clear`] keeps it.
    host_memo: host::Memo,
    framing: BodyFraming,
    keep_alive: bool,
    expects_continue: bool,
    /// Fields are not those that were received: a module has changed them, or the target has named the host.
    is_changed: bool,
    /// How many input bytes were searched for the end of the head, which was not there.
    pub(crate) searched: usize,
    /// How many input bytes the last parse covered.
    pub(crate) attempted: usize,
}

/// The position of a field in `bytes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldRange {
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
    pub(crate) known: Option<KnownField>,
}

impl Default for RequestHead {
    fn default() -> RequestHead {
        RequestHead::new()
    }
}

impl RequestHead {
    /// The most fields of a complete head.
    pub(crate) const FIELDS_MAX: usize = 1024;

    /// An empty head.
    pub const fn new() -> RequestHead {
        RequestHead {
            bytes: Vec::new(),
            head_length: 0,
            method: Method::Get,
            method_range: 0..0,
            target: 0..0,
            version: Version::Http10,
            fields: Vec::new(),
            index: [0; KnownField::COUNT],
            host: Vec::new(),
            host_memo: host::Memo::new(),
            framing: BodyFraming::None,
            keep_alive: false,
            expects_continue: false,
            is_changed: false,
            searched: 0,
            attempted: 0,
        }
    }

    /// Forgets the request, also a partial one, but keeps the buffers.
    pub fn clear(&mut self) {
        let RequestHead {
            bytes,
            head_length,
            method,
            method_range,
            target,
            version,
            fields,
            index,
            host,
            // The memo is about a Host value, not about a request.
            host_memo: _,
            framing,
            keep_alive,
            expects_continue,
            is_changed,
            searched,
            attempted,
        } = self;
        bytes.clear();
        *head_length = 0;
        *method = Method::Get;
        *method_range = 0..0;
        *target = 0..0;
        *version = Version::Http10;
        fields.clear();
        *index = [0; KnownField::COUNT];
        host.clear();
        *framing = BodyFraming::None;
        *keep_alive = false;
        *expects_continue = false;
        *is_changed = false;
        *searched = 0;
        *attempted = 0;
    }

    /// Becomes a copy of `other`, a complete head, and keeps the buffers.
    pub(crate) fn copy_from(&mut self, other: &RequestHead) {
        let RequestHead {
            bytes,
            head_length,
            method,
            method_range,
            target,
            version,
            fields,
            index,
            host,
            // It is about a Host value, not about a request.
            host_memo: _,
            framing,
            keep_alive,
            expects_continue,
            is_changed,
            searched,
            attempted,
        } = other;
        self.bytes.clone_from(bytes);
        self.head_length = *head_length;
        self.method = *method;
        self.method_range.clone_from(method_range);
        self.target.clone_from(target);
        self.version = *version;
        self.fields.clone_from(fields);
        self.index = *index;
        self.host.clone_from(host);
        self.framing = *framing;
        self.keep_alive = *keep_alive;
        self.expects_continue = *expects_continue;
        self.is_changed = *is_changed;
        self.searched = *searched;
        self.attempted = *attempted;
    }

    /// The request method.
    #[inline]
    pub fn method(&self) -> Method {
        self.method
    }

    /// The request method as it was sent.
    pub fn method_bytes(&self) -> &[u8] {
        &self.bytes[self.method_range.clone()]
    }

    /// The request target as it was sent. Its form is valid: `/…`, `*`, or an http or https URL.
    #[inline]
    pub fn target(&self) -> &[u8] {
        &self.bytes[self.target.clone()]
    }

    /// The protocol of an extended CONNECT (RFC 8441): the method is CONNECT, but the target is a path. No
    /// other CONNECT request is accepted.
    pub fn protocol(&self) -> Option<&[u8]> {
        match self.method {
            Method::Connect => self.field(KnownField::Upgrade),
            _ => None,
        }
    }

    /// The version of the request.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The value of a field, trimmed. If the request repeats a list field, its values are joined as RFC 9110
    /// 5.3 allows.
    #[inline]
    pub fn field(&self, field: KnownField) -> Option<&[u8]> {
        let position = self.index[field as usize].checked_sub(1)?;
        Some(self.value(&self.fields[position as usize]))
    }

    /// The first value of the field of that name, in any letter case.
    pub fn value_of(&self, name: &str) -> Option<&[u8]> {
        match KnownField::from_name(name.as_bytes()) {
            Some(known) => self.field(known),
            None => {
                let named =
                    |(found, _): &(&[u8], &[u8])| found.eq_ignore_ascii_case(name.as_bytes());
                self.iter().find(named).map(|(_, value)| value)
            }
        }
    }

    /// The values of all fields of that name, in any letter case, in order.
    pub fn fields_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        let named = |(found, _): &(&[u8], &[u8])| found.eq_ignore_ascii_case(name.as_bytes());
        self.iter().filter(named).map(|(_, value)| value)
    }

    /// All fields in order, with names as they were sent.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        self.fields
            .iter()
            .map(|field| (&self.bytes[field.name.clone()], self.value(field)))
    }

    /// As [`RequestHead::iter`], each with the known field that it is.
    pub fn iter_with_known(&self) -> impl Iterator<Item = (Option<KnownField>, &[u8], &[u8])> + '_ {
        self.fields.iter().map(|field| {
            let name = &self.bytes[field.name.clone()];
            (field.known, name, self.value(field))
        })
    }

    /// The lines of the fields as they were received, with the empty line behind them: heads in which they
    /// are equal have the same fields. `None` if there are no fields, a module has changed them, or the target
    /// has named the host.
    #[inline]
    pub fn received_fields(&self) -> Option<&[u8]> {
        let first = self.fields.first().filter(|_| !self.is_changed)?;
        self.bytes.get(first.name.start..self.head_length)
    }

    /// The number of fields.
    pub fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// Sets a field to this value: the first one of that name is changed and others are removed, or a new one
    /// is added. CR, LF and NUL in `value` become spaces. `name` comes from constants or the configuration;
    /// if it is not a token, nothing happens.
    pub fn set_field(&mut self, name: &str, value: &[u8]) {
        let named = |head: &RequestHead, field: &FieldRange| {
            head.bytes[field.name.clone()].eq_ignore_ascii_case(name.as_bytes())
        };
        let Some(first) = self.fields.iter().position(|field| named(self, field)) else {
            return self.append_field(name, value);
        };
        self.is_changed = true;
        let value = self.store(value);
        self.fields[first].value = value;
        let mut position = 0;
        let mut fields = std::mem::take(&mut self.fields);
        fields.retain(|field| {
            let keep = position <= first || !named(self, field);
            position += 1;
            keep
        });
        self.fields = fields;
        self.rebuild_index();
    }

    /// Adds a field after the others, with the checks of [`RequestHead::set_field`].
    pub fn append_field(&mut self, name: &str, value: &[u8]) {
        if !is_token(name.as_bytes()) {
            return;
        }
        self.is_changed = true;
        let known = KnownField::from_name(name.as_bytes());
        let name = self.store(name.as_bytes());
        let value = self.store(value);
        self.fields.push(FieldRange { name, value, known });
        if let Some(known) = known {
            self.note(known);
        }
    }

    /// Removes every field of that name.
    pub fn remove_field(&mut self, name: &str) {
        let bytes = &self.bytes;
        let length = self.fields.len();
        self.fields
            .retain(|field| !bytes[field.name.clone()].eq_ignore_ascii_case(name.as_bytes()));
        if self.fields.len() != length {
            self.is_changed = true;
            self.rebuild_index();
        }
    }

    /// The requested host, in lower case, with its port unless that is the default: from the absolute-form
    /// target if there is one, else from Host. Empty if an HTTP/1.0 request names none.
    #[inline]
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// Replaces [`RequestHead::host`], for modules that route by another host. The Host field stays. `host`
    /// is not checked; it must be a host in lower case.
    pub fn set_host(&mut self, host: &[u8]) {
        self.host.clear();
        self.host.extend_from_slice(host);
    }

    /// Makes `authority`, which a proxy reports as the host that the client asked for, the host and the value
    /// of Host. The checks for Host apply. Returns false and changes nothing if it is malformed.
    pub fn replace_host(&mut self, authority: &[u8], options: &HeadOptions) -> bool {
        let mut host = Vec::new();
        if host::normalise(&mut host, authority, options).is_none() {
            return false;
        }
        self.host = host;
        self.set_field(KnownField::Host.name(), authority);
        true
    }

    /// [`RequestHead::host`] without the port; an IPv6 address keeps its brackets.
    pub fn host_without_port(&self) -> &[u8] {
        host::without_port(&self.host)
    }

    /// How the end of the body is determined.
    #[inline]
    pub fn framing(&self) -> BodyFraming {
        self.framing
    }

    /// Whether the client keeps the connection open after this exchange (RFC 9112 9.3).
    #[inline]
    pub fn keep_alive(&self) -> bool {
        self.keep_alive
    }

    /// Whether the client waits for `100 Continue` before it sends the body (RFC 9110 10.1.1). Never true for
    /// HTTP/1.0 or without a body.
    #[inline]
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }

    /// Whether Connection lists this option, in any letter case.
    pub fn connection_has(&self, option: &str) -> bool {
        let mut options = self.items(KnownField::Connection);
        options.any(|item| item.eq_ignore_ascii_case(option.as_bytes()))
    }

    /// Whether Connection names fields that are not hop-by-hop by themselves (RFC 9110 7.6.1).
    pub fn connection_names_fields(&self) -> bool {
        let mut options = self.items(KnownField::Connection);
        options.any(|option| {
            let field = KnownField::from_name(option);
            !option.eq_ignore_ascii_case(b"close") && !field.is_some_and(KnownField::is_hop_by_hop)
        })
    }

    /// Whether the client accepts trailers (RFC 9110 10.1.4). HTTP/1.0 has none.
    pub fn asks_for_trailers(&self) -> bool {
        let mut codings = self.items(KnownField::Te);
        self.version > Version::Http10 && codings.any(|item| item.eq_ignore_ascii_case(b"trailers"))
    }

    /// Whether the response may end with trailers: since HTTP/2 every client can parse them, even if it
    /// ignores them.
    pub fn takes_trailers(&self) -> bool {
        self.version >= Version::Http2 || self.asks_for_trailers()
    }

    /// The elements of a field whose value is a list (RFC 9110 5.6.1).
    pub fn items(&self, field: KnownField) -> impl Iterator<Item = &[u8]> {
        list(self.field(field).unwrap_or_default())
    }

    /// The head as it was received, without leading empty lines and with the empty line at the end.
    pub fn head_bytes(&self) -> &[u8] {
        &self.bytes[..self.head_length]
    }

    /// Whether the client sent `value`, which is the value of a field here. Values that modules have set lie outside of
    /// the received head.
    #[inline]
    pub fn was_received(&self, value: &[u8]) -> bool {
        self.head_bytes().as_ptr_range().contains(&value.as_ptr())
    }

    /// Bytes of the head as it was received and of all values that were set later, including replaced ones.
    pub fn field_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory that are allocated for reuse.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Length in bytes of [`RequestHead::head_bytes`].
    pub fn head_length(&self) -> usize {
        self.head_length
    }

    fn value(&self, field: &FieldRange) -> &[u8] {
        &self.bytes[field.value.clone()]
    }

    /// Enters the last field into the index, unless there is an earlier one of that name.
    #[inline]
    fn note(&mut self, known: KnownField) {
        let entry = &mut self.index[known as usize];
        if *entry == 0 {
            *entry = u32::try_from(self.fields.len()).unwrap_or(0);
        }
    }

    fn rebuild_index(&mut self) {
        self.index = [0; KnownField::COUNT];
        for (number, field) in (1u32..).zip(&self.fields) {
            if let Some(known) = field.known
                && self.index[known as usize] == 0
            {
                self.index[known as usize] = number;
            }
        }
    }

    /// Appends `text` to `bytes`, with CR, LF and NUL replaced by spaces.
    fn store(&mut self, text: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend(text.iter().map(|&byte| match byte {
            b'\r' | b'\n' | b'\0' => b' ',
            _ => byte,
        }));
        start..self.bytes.len()
    }

    /// Merges repeated known fields, each by its rule. Called only if there are any.
    #[cold]
    fn merge_repeated(&mut self) -> Result<(), HeadError> {
        for &known in KnownField::ALL {
            self.merge(known)?;
        }
        let index = &self.index;
        let mut number = 0;
        self.fields.retain(|field| {
            number += 1;
            field.known.is_none_or(|known| {
                known.repeated() == Repeated::HasOwnRule || index[known as usize] == number
            })
        });
        self.rebuild_index();
        Ok(())
    }

    fn merge(&mut self, known: KnownField) -> Result<(), HeadError> {
        let repeats = || {
            self.fields
                .iter()
                .filter(|field| field.known == Some(known))
        };
        if repeats().count() < 2 {
            return Ok(());
        }
        let separator: &[u8] = match known.repeated() {
            Repeated::Dropped | Repeated::HasOwnRule => return Ok(()),
            Repeated::Refused => {
                let mut values = repeats().map(|field| self.value(field));
                let first = values.next();
                let same = values.all(|value| Some(value) == first);
                return if same {
                    Ok(())
                } else {
                    Err(HeadError::FieldRepeated)
                };
            }
            Repeated::Joins => b", ",
            Repeated::JoinsAsCookie => b"; ",
        };
        let start = self.bytes.len();
        let mut first = None;
        for (position, field) in self.fields.iter().enumerate() {
            if field.known == Some(known) {
                first.get_or_insert(position);
                // An empty value adds nothing, not even a separator.
                if self.bytes.len() > start && !field.value.is_empty() {
                    self.bytes.extend_from_slice(separator);
                }
                self.bytes.extend_from_within(field.value.clone());
            }
        }
        if let Some(first) = first {
            self.fields[first].value = start..self.bytes.len();
        }
        Ok(())
    }
}
