//! A request head.

use super::body::BodyFraming;
use super::error::HeadError;
use super::field::KnownField;
use crate::method::Method;

/// What is tolerated in a request head; the fields are named after lighttpd's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadOptions {
    /// server.max-request-field-size: the longest head in bytes, its last empty line included.
    pub head_bytes_max: usize,
    /// header-strict: bare LF line ends and repeated Content-Length are refused.
    pub header_strict: bool,
    /// host-strict: the host must be a valid name or address.
    pub host_strict: bool,
    /// host-normalize: trailing dots, leading zeros and the like are brought to one form.
    pub host_normalize: bool,
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
            method_get_body: false,
        }
    }
}

/// How far a head has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The empty line that ends the head has not arrived yet.
    Partial,
    /// The head is complete; the body or the next request begins `length` bytes into the input.
    Complete {
        /// Bytes of input the head took, leading empty lines included.
        length: usize,
    },
}

/// The HTTP version a request is answered in. 1.2 and above within 1.x count as 1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
}

/// One request head.
#[derive(Debug, Default)]
pub struct RequestHead {
    bytes: Vec<u8>,
}

#[allow(missing_docs, unused_variables)]
impl RequestHead {
    pub fn new() -> RequestHead {
        RequestHead::default()
    }
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
    pub fn parse(&mut self, input: &[u8], options: &HeadOptions) -> Result<Parsed, HeadError> {
        todo!()
    }
    pub fn method(&self) -> Method {
        todo!()
    }
    pub fn method_bytes(&self) -> &[u8] {
        todo!()
    }
    pub fn target(&self) -> &[u8] {
        todo!()
    }
    pub fn version(&self) -> Version {
        todo!()
    }
    pub fn field(&self, field: KnownField) -> Option<&[u8]> {
        todo!()
    }
    pub fn value_of(&self, name: &str) -> Option<&[u8]> {
        todo!()
    }
    pub fn fields_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> + 'a {
        std::iter::empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        std::iter::empty()
    }
    pub fn set_field(&mut self, name: &str, value: &[u8]) {
        todo!()
    }
    pub fn append_field(&mut self, name: &str, value: &[u8]) {
        todo!()
    }
    pub fn remove_field(&mut self, name: &str) {
        todo!()
    }
    pub fn host(&self) -> &[u8] {
        todo!()
    }
    pub fn set_host(&mut self, host: &[u8]) {
        todo!()
    }
    pub fn host_without_port(&self) -> &[u8] {
        todo!()
    }
    pub fn framing(&self) -> BodyFraming {
        todo!()
    }
    pub fn keep_alive(&self) -> bool {
        todo!()
    }
    pub fn expects_continue(&self) -> bool {
        todo!()
    }
    pub fn head_bytes(&self) -> &[u8] {
        todo!()
    }
    pub fn head_length(&self) -> usize {
        todo!()
    }
}
