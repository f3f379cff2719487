//! Builds the head of a subrequest, under the same rules as heads of clients, so that modules find a normal
//! exchange. The length of the body is set only here.

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

/// The request that a subrequest makes, in HTTP/1.1.
#[derive(Clone, Debug)]
pub struct SubrequestHead {
    /// The method.
    pub method: Method,
    /// Path and query, percent-encoded: `/path?query`.
    pub target: Vec<u8>,
    /// The requested host, which `$HTTP["host"]` and virtual hosts compare. `None`: that of the parent.
    pub host: Option<Vec<u8>>,
    /// Header fields. They replace inherited ones. Host and fields about the connection or the framing are
    /// refused.
    pub fields: Vec<(String, Vec<u8>)>,
    /// Which fields of the parent are inherited.
    pub inherit: Inherit,
    /// The body.
    pub body: Bytes,
}

/// Which header fields of its parent a subrequest inherits. Host is always the requested one. Never inherited
/// are fields about the connection, the framing, the parent's own body (`Content-*`) or a part or version of
/// it (Range, `If-*`), and Accept-Encoding, because the server reads the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// No fields.
    Nothing,
    /// Fields with these names, in any letter case.
    Only(Vec<String>),
    /// All fields.
    #[default]
    All,
}

/// Why a subrequest was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefusedSubrequest {
    /// It would be nested deeper than [`limits::SUBREQUEST_DEPTH_MAX`].
    TooDeep,
    /// The client's request has caused [`limits::SUBREQUESTS_PER_REQUEST_MAX`] subrequests already.
    TooMany,
    /// [`limits::DETACHED_SUBREQUESTS_MAX`] subrequests without a client are running already.
    TooManyDetached,
    /// The worker is stopping.
    Stopping,
    /// The target does not begin with a slash, or has a space or a control character.
    Target,
    /// The target would be refused from a client, too.
    Url(UrlError),
    /// The caller may not set a field with this name, or it is no valid name.
    Field(String),
    /// The head would be refused from a client, too.
    Head(HeadError),
}

impl SubrequestHead {
    /// A GET for `target` that inherits all fields.
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

    /// Builds the head into `into`.
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
        // In HTTP/1.0 the parent may have no Host, or an empty one.
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
            // A module may have set another host than Host says.
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

/// Makes `run` the request for `head`. The settings are chosen again.
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

/// Whether the field is about the connection or the framing.
fn is_of_connection(name: &str) -> bool {
    let is_wanted = |field: KnownField| field == KnownField::Host || field.is_written_by_sender();
    KnownField::from_name_if(name.as_bytes(), is_wanted).is_some()
}

/// Whether the field is about the body of the parent's request, or about the part or version that it asks
/// for.
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

/// The value with spaces in place of bytes that would end the line. Scripts make such values.
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
