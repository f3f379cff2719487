//! Writes requests.

use super::ber::{self, BOOLEAN, ENUMERATED, INTEGER, OCTET_STRING, SEQUENCE};
use super::filter::EncodedFilter;

/// The largest number that a request may have (RFC 4511 section 4.1.1.1); 0 is none.
pub const MESSAGE_ID_MAX: u32 = i32::MAX as u32;

/// How far below its base a search looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The base alone.
    Base,
    /// The base and all below it.
    Subtree,
}

/// A search for the names of entries. It asks for no attributes.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// The distinguished name of the entry to begin with.
    pub base: &'a [u8],
    /// How far it looks.
    pub scope: Scope,
    /// The condition that entries have to fulfil.
    pub filter: &'a EncodedFilter,
    /// The server stops after so many entries.
    pub entries_max: u32,
    /// Seconds that the server may take.
    pub seconds_max: u32,
}

/// Appends a simple bind (RFC 4511 section 4.2).
pub fn write_bind(id: u32, name: &[u8], password: &[u8], out: &mut Vec<u8>) {
    let mut content = Vec::new();
    ber::write_number(INTEGER, VERSION, &mut content);
    ber::write(OCTET_STRING, name, &mut content);
    ber::write(SIMPLE, password, &mut content);
    write_message(id, BIND_REQUEST, &content, out);
}

/// Appends a search (RFC 4511 section 4.5.1).
pub fn write_search(id: u32, search: &Search<'_>, out: &mut Vec<u8>) {
    let mut content = Vec::new();
    ber::write(OCTET_STRING, search.base, &mut content);
    let scope = match search.scope {
        Scope::Base => 0,
        Scope::Subtree => 2,
    };
    ber::write_number(ENUMERATED, scope, &mut content);
    ber::write_number(ENUMERATED, NEVER_DEREFERENCE, &mut content);
    ber::write_number(INTEGER, search.entries_max, &mut content);
    ber::write_number(INTEGER, search.seconds_max, &mut content);
    ber::write(BOOLEAN, &[0], &mut content);
    content.extend_from_slice(search.filter.bytes());
    let mut attributes = Vec::new();
    ber::write(OCTET_STRING, NO_ATTRIBUTES, &mut attributes);
    ber::write(SEQUENCE, &attributes, &mut content);
    write_message(id, SEARCH_REQUEST, &content, out);
}

/// Appends a StartTLS request (RFC 4511 section 4.14).
pub fn write_start_tls(id: u32, out: &mut Vec<u8>) {
    let mut content = Vec::new();
    ber::write(REQUEST_NAME, START_TLS, &mut content);
    write_message(id, EXTENDED_REQUEST, &content, out);
}

fn write_message(id: u32, operation: ber::Tag, content: &[u8], out: &mut Vec<u8>) {
    let mut message = Vec::new();
    ber::write_number(INTEGER, id, &mut message);
    ber::write(operation, content, &mut message);
    ber::write(SEQUENCE, &message, out);
}

const VERSION: u32 = 3;

/// The default of libldap.
const NEVER_DEREFERENCE: u32 = 0;

const BIND_REQUEST: ber::Tag = 0x60;
const SEARCH_REQUEST: ber::Tag = 0x63;
const EXTENDED_REQUEST: ber::Tag = 0x77;
const SIMPLE: ber::Tag = 0x80;
const REQUEST_NAME: ber::Tag = 0x80;

/// Asks for no attributes (RFC 4511 section 4.5.1.8).
const NO_ATTRIBUTES: &[u8] = b"1.1";

const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
