//! LDAP (RFC 4511), as much of it as a log-in needs: bind, search and StartTLS written, their replies read.
//!
//! Requests are written whole; replies are taken apart by an [`LdapDecoder`], which is fed bytes as they come. Knows no
//! socket and no time; `modules/src/remote_store/ldap` drives it. The filters that an administrator writes are text (RFC
//! 4515) and read by [`read_filter`]; what a client has sent gets into them through [`escape_in_filter`] alone.
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
