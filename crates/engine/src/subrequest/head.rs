//! The head of a subrequest: built under the rules that heads of clients obey.
//!
//! So modules find an exchange as they know it. How long the body is is said here alone.

use std::borrow::Cow;

use petrel_proto::method::Method;
use petrel_proto::request_head::{
    BodyFraming, HeadBuilder, HeadError, KnownField, RequestHead, Version,
};
use petrel_proto::url::UrlError;

use bytes::Bytes;

use crate::exchange::Exchange;
use crate::limits;
use crate::run::ExchangeRun;

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

    /// Builds the head in `into`.
    fn build(&self, parent: &Exchange, into: &mut RequestHead) -> Result<(), RefusedSubrequest> {
        let is_plain = |byte: &u8| *byte > b' ' && *byte != 0x7f;
        if self.target.first() != Some(&b'/') || !self.target.iter().all(is_plain) {
            return Err(RefusedSubrequest::Target);
        }
        let options = parent.head_options();
        let mut builder = into.build(Version::Http11, &options);
        builder.pseudo_field(b"method", self.method.as_str().as_bytes())?;
        builder.pseudo_field(b"scheme", parent.scheme().as_str().as_bytes())?;
        builder.pseudo_field(b"path", &self.target)?;
        // Over HTTP/1.0 the parent's may be missing or empty.
        let of_parent = parent.request.head.field(KnownField::Host);
        let of_parent = of_parent.filter(|host| !host.is_empty());
        match self.host.as_deref().or(of_parent) {
            Some(host) => builder.pseudo_field(b"authority", host)?,
            None => builder.needs_no_host(),
        }
        self.add_own(&mut builder)?;
        self.add_inherited(&parent.request.head, &mut builder)?;
        let has_body = !self.body.is_empty() || self.method == Method::Post;
        builder.finish(match has_body {
            true => BodyFraming::Length(self.body.len() as u64),
            false => BodyFraming::None,
        })?;
        if self.host.is_none() {
            // Modules may have chosen another one than Host says.
            into.set_host(parent.request.head.host());
        }
        Ok(())
    }

    fn add_own(&self, builder: &mut HeadBuilder<'_>) -> Result<(), RefusedSubrequest> {
        for (name, value) in &self.fields {
            let refused = || RefusedSubrequest::Field(name.clone());
            if is_of_connection(name) {
                return Err(refused());
            }
            let added = builder.field(name.as_bytes(), &in_one_line(value));
            added.map_err(|error| match error {
                HeadError::FieldName => refused(),
                _ => RefusedSubrequest::Head(error),
            })?;
        }
        Ok(())
    }

    fn add_inherited(
        &self,
        parent: &RequestHead,
        builder: &mut HeadBuilder<'_>,
    ) -> Result<(), RefusedSubrequest> {
        let is_wanted = |name: &str| match &self.inherit {
            Inherit::Nothing => false,
            Inherit::Only(names) => names.iter().any(|known| known.eq_ignore_ascii_case(name)),
            Inherit::All => true,
        };
        let is_own = |name: &str| {
            let mut own = self.fields.iter();
            own.any(|(known, _)| known.eq_ignore_ascii_case(name))
        };
        for (name, value) in parent.iter() {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            let is_barred =
                is_of_connection(name) || is_of_parent_alone(name) || parent.connection_has(name);
            if is_wanted(name) && !is_barred && !is_own(name) {
                builder.field(name.as_bytes(), value)?;
            }
        }
        Ok(())
    }
}

/// Makes `run` the request for `head`, with the settings it has.
pub(super) fn begin(
    run: &mut ExchangeRun,
    parent: &Exchange,
    head: &SubrequestHead,
) -> Result<(), RefusedSubrequest> {
    run.is_half_closed = parent.is_half_closed;
    head.build(parent, &mut run.request.head)?;
    let scope = parent.connection.scope(parent.worker.settings_table());
    run.begin(&scope).map_err(RefusedSubrequest::Url)
}

/// Fields that say what comes on the connection, and how.
fn is_of_connection(name: &str) -> bool {
    let is_wanted = |field: KnownField| field == KnownField::Host || field.is_written_by_sender();
    KnownField::from_name_if(name.as_bytes(), is_wanted).is_some()
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

/// A value that a script made, with spaces where it would end its line.
fn in_one_line(value: &[u8]) -> Cow<'_, [u8]> {
    let ends_line = |byte: &u8| matches!(byte, b'\r' | b'\n' | b'\0');
    if !value.iter().any(ends_line) {
        return Cow::Borrowed(value);
    }
    let in_line = |byte: &u8| if ends_line(byte) { b' ' } else { *byte };
    value.iter().map(in_line).collect()
}

impl From<HeadError> for RefusedSubrequest {
    fn from(error: HeadError) -> RefusedSubrequest {
        RefusedSubrequest::Head(error)
    }
}

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
            RefusedSubrequest::Head(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for RefusedSubrequest {}
