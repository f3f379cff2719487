//! The head of a subrequest: written out as a client would send it, and read by the same parser.
//!
//! So every rule for heads of clients holds here as well, and modules find an exchange as they know it.
//! Framing is written here alone.

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::http1::{HeadError, KnownField, Parsed, write_content_length};
use petrel_proto::method::Method;
use petrel_proto::url::UrlError;

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::limits;
use crate::trace;

/// What a subrequest asks for, over HTTP/1.1.
#[derive(Clone, Debug)]
pub struct SubrequestHead {
    /// The method.
    pub method: Method,
    /// Path and query, percent-encoded: `/path?query`.
    pub target: Vec<u8>,
    /// The host it is for, which decides on `$HTTP["host"]` and virtual hosts; `None` is the parent's.
    pub host: Option<Vec<u8>>,
    /// Header fields. They take the place of those that are inherited. Host, and what is about
    /// a connection or the framing, is refused.
    pub fields: Vec<(String, Vec<u8>)>,
    /// Which fields of the parent it has as well.
    pub inherit: Inherit,
    /// The whole body.
    pub body: Bytes,
}

/// Which of its parent's header fields a subrequest has. Host is always the one it is for. Never
/// inherited: what is about the connection, the framing, the parent's own body (`Content-*`) or a part
/// or version of it (Range, `If-*`), and Accept-Encoding, as it is the server that reads the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// None.
    Nothing,
    /// Those with one of these names, in any letter case.
    Only(Vec<String>),
    /// All.
    #[default]
    All,
}

/// Why there is no such subrequest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedSubrequest {
    /// It would be deeper than [`limits::SUBREQUEST_DEPTH_MAX`].
    TooDeep,
    /// There were [`limits::SUBREQUESTS_PER_REQUEST_MAX`] for this request of the client already.
    TooMany,
    /// [`limits::DETACHED_SUBREQUESTS_MAX`] go on without a client already.
    TooManyDetached,
    /// The worker is stopping.
    Stopping,
    /// The target does not begin with a slash, or holds a space or control character.
    Target,
    /// The target is refused as a client's would be.
    Url(UrlError),
    /// A field of that name is not for the caller to set, or is no name of a field.
    Field(String),
    /// The head is refused as a client's would be.
    Head(HeadError),
}

impl SubrequestHead {
    /// A GET for `target` with nothing else but what the parent has.
    pub fn get(target: &[u8]) -> SubrequestHead {
        SubrequestHead {
            method: Method::Get,
            target: target.to_vec(),
            host: None,
            fields: Vec::new(),
            inherit: Inherit::All,
            body: Bytes::new(),
        }
    }

    /// The head in wire form.
    fn write(&self, parent: &Exchange) -> Result<Vec<u8>, RefusedSubrequest> {
        let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
        if self.target.first() != Some(&b'/') || !self.target.iter().all(is_plain) {
            return Err(RefusedSubrequest::Target);
        }
        let mut fields = HeaderBlock::new();
        fields.append(KnownField::Host.name(), self.host_field(parent));
        self.write_own(&mut fields)?;
        self.write_inherited(parent, &mut fields);
        let mut text = Vec::with_capacity(fields.as_bytes().len() + self.target.len() + 64);
        text.extend_from_slice(self.method.as_str().as_bytes());
        text.push(b' ');
        text.extend_from_slice(&self.target);
        text.extend_from_slice(b" HTTP/1.1\r\n");
        text.extend_from_slice(fields.as_bytes());
        if !self.body.is_empty() || self.method == Method::Post {
            write_content_length(&mut text, self.body.len() as u64);
        }
        text.extend_from_slice(b"\r\n");
        Ok(text)
    }

    fn host_field<'a>(&'a self, parent: &'a Exchange) -> &'a [u8] {
        let of_parent = || parent.request.head.field(KnownField::Host);
        let host = self.host.as_deref().or_else(of_parent).unwrap_or_default();
        match (&self.host, host) {
            // Over HTTP/1.0 there need not be one; see `begin`.
            (None, b"") => NO_HOST,
            (_, host) => host,
        }
    }

    fn write_own(&self, fields: &mut HeaderBlock) -> Result<(), RefusedSubrequest> {
        for (name, value) in &self.fields {
            let before = fields.as_bytes().len();
            if !is_of_connection(name) {
                fields.append(name, value);
            }
            if fields.as_bytes().len() == before {
                return Err(RefusedSubrequest::Field(name.clone()));
            }
        }
        Ok(())
    }

    fn write_inherited(&self, parent: &Exchange, fields: &mut HeaderBlock) {
        let is_wanted = |name: &str| match &self.inherit {
            Inherit::Nothing => false,
            Inherit::Only(names) => names.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Inherit::All => true,
        };
        let is_own = |name: &str| {
            let mut own = self.fields.iter();
            own.any(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        let parent = &parent.request.head;
        for (name, value) in parent.iter() {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            let is_barred =
                is_of_connection(name) || is_of_parent_alone(name) || parent.connection_has(name);
            if is_wanted(name) && !is_barred && !is_own(name) {
                fields.append(name, value);
            }
        }
    }
}

/// Makes `exchange` the request for `head`, with the settings it has.
pub(super) fn begin(
    exchange: &mut Exchange,
    parent: &Exchange,
    head: &SubrequestHead,
) -> Result<(), RefusedSubrequest> {
    let text = head.write(parent)?;
    let process = parent.worker.process();
    exchange.connection = parent.connection.clone();
    exchange.scheme = parent.scheme;
    exchange.proxied = parent.proxied.clone();
    exchange.local_address = parent.local_address;
    exchange.is_half_closed = parent.is_half_closed;
    let request = &mut exchange.request;
    match request.head.parse(&text, &process.head_options) {
        Ok(Parsed::Complete { length }) if length == text.len() => {}
        Ok(_) => return Err(RefusedSubrequest::Target),
        Err(error) => return Err(RefusedSubrequest::Head(error)),
    }
    if head.host.is_none() {
        // Modules may have chosen another one than Host says, and it may have none.
        request.head.set_host(parent.request.head.host());
        if parent
            .request
            .head
            .field(KnownField::Host)
            .is_none_or(<[u8]>::is_empty)
        {
            request.head.remove_field(KnownField::Host.name());
        }
    }
    request.method = head.method;
    request.original_target.extend_from_slice(&head.target);
    request
        .url
        .parse(&head.target, head.method, &process.url_options)
        .map_err(RefusedSubrequest::Url)?;
    let scope = exchange.worker.settings_table().connection_scope_for(
        &parent.connection.listener.address,
        parent.connection.peer.ip(),
        parent.scheme,
    );
    exchange.settle(&scope);
    trace::request_header(exchange);
    Ok(())
}

/// Fields that say what comes on the connection, and how.
fn is_of_connection(name: &str) -> bool {
    OF_CONNECTION
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}

/// Fields about the body of the parent's request, or about which part or version of it is wanted.
fn is_of_parent_alone(name: &str) -> bool {
    let begins = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    begins("Content-")
        || begins("If-")
        || [KnownField::Range, KnownField::AcceptEncoding]
            .iter()
            .any(|known| known.name().eq_ignore_ascii_case(name))
}

/// RFC 9110 7.6.1 and 7.2, RFC 9112 6, and what HTTP/2 is offered with.
const OF_CONNECTION: [&str; 11] = [
    "Host",
    "Connection",
    "Content-Length",
    "Transfer-Encoding",
    "Expect",
    "Upgrade",
    "Keep-Alive",
    "TE",
    "Trailer",
    "Proxy-Connection",
    "HTTP2-Settings",
];

/// Stands in for the host that an HTTP/1.0 request has not named, until the head is parsed.
const NO_HOST: &[u8] = b"none.invalid";

impl std::fmt::Display for RefusedSubrequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RefusedSubrequest::TooDeep => write!(
                f,
                "subrequests are more than {} deep",
                limits::SUBREQUEST_DEPTH_MAX
            ),
            RefusedSubrequest::TooMany => write!(
                f,
                "there are more than {} subrequests for one request",
                limits::SUBREQUESTS_PER_REQUEST_MAX
            ),
            RefusedSubrequest::TooManyDetached => write!(
                f,
                "there are more than {} subrequests without a client",
                limits::DETACHED_SUBREQUESTS_MAX
            ),
            RefusedSubrequest::Stopping => f.write_str("the server is stopping"),
            RefusedSubrequest::Target => f.write_str(
                "the target of a subrequest begins with a slash and has no space or control character",
            ),
            RefusedSubrequest::Url(error) => write!(f, "{error}"),
            RefusedSubrequest::Field(name) => {
                write!(f, "the field {name:?} cannot be set for a subrequest")
            }
            RefusedSubrequest::Head(error) => f.write_str(error.reason.sentence()),
        }
    }
}

impl std::error::Error for RefusedSubrequest {}
