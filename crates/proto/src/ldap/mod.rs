//! The part of LDAP (RFC 4511) that a log-in needs: it writes bind, search and StartTLS requests and reads
//! the replies.
//!
//! The caller feeds the bytes of the server to an [`LdapDecoder`]. This module knows no socket and no time;
//! `modules/src/remote_store/ldap` drives it. [`read_filter`] reads the filters that an administrator writes
//! (RFC 4515). A name that a client has sent gets into a filter through [`escape_in_filter`] and in no other
//! way.
//!
//! ```text
//!   LDAPMessage ::= SEQUENCE { messageID INTEGER, protocolOp, controls [0] OPTIONAL }
//!   30 0c  02 01 01  60 07  02 01 03  04 00  80 00          an anonymous bind
//! ```

mod ber;
mod decode;
mod encode;
mod filter;

pub use decode::{LdapDecoder, LdapError, LdapFed, LdapReply, LdapResult, MESSAGE_BYTES_MAX};
pub use encode::{MESSAGE_ID_MAX, Scope, Search, write_bind, write_search, write_start_tls};
pub use filter::{EncodedFilter, FilterError, escape_in_filter, escape_in_name, read_filter};

#[cfg(test)]
mod tests;
