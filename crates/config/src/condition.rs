//! What conditions compare, and by which operators.

use std::fmt;

/// The value that a condition compares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// `$SERVER["socket"]`: the listener that accepted the connection.
    SocketAddress,
    /// `$HTTP["host"]`.
    Host,
    /// `$HTTP["url"]`: the decoded path without the query.
    Url,
    /// `$HTTP["querystring"]`.
    Query,
    /// `$HTTP["scheme"]`.
    Scheme,
    /// `$HTTP["referer"]`.
    Referer,
    /// `$HTTP["cookie"]`.
    Cookie,
    /// `$HTTP["useragent"]`.
    UserAgent,
    /// `$HTTP["remoteip"]`.
    RemoteIp,
    /// `$HTTP["request-method"]`.
    RequestMethod,
    /// `$HTTP["language"]`: Accept-Language.
    Language,
    /// `$REQUEST_HEADER["name"]`, the name in lower case.
    RequestHeader(String),
    /// `$PHYSICAL["path"]`.
    PhysicalPath,
    /// `$PHYSICAL["existing-path"]`.
    PhysicalExistingPath,
}

impl Subject {
    /// The subject of `$OBJECT["field"]`; names are compared without case.
    #[must_use]
    pub fn parse(object: &str, field: &str) -> Option<Subject> {
        let field = field.to_ascii_lowercase();
        Some(match (object, field.as_str()) {
            ("SERVER", "socket") => Subject::SocketAddress,
            ("HTTP", "host") => Subject::Host,
            ("HTTP", "url") => Subject::Url,
            ("HTTP", "querystring" | "query-string") => Subject::Query,
            ("HTTP", "scheme") => Subject::Scheme,
            ("HTTP", "referer") => Subject::Referer,
            ("HTTP", "cookie") => Subject::Cookie,
            ("HTTP", "useragent" | "user-agent") => Subject::UserAgent,
            ("HTTP", "remoteip" | "remote-ip") => Subject::RemoteIp,
            ("HTTP", "request-method") => Subject::RequestMethod,
            ("HTTP", "language") => Subject::Language,
            ("PHYSICAL", "path") => Subject::PhysicalPath,
            ("PHYSICAL", "existing-path") => Subject::PhysicalExistingPath,
            ("REQUEST_HEADER", name) if !name.is_empty() => Subject::header(name),
            _ => return None,
        })
    }

    /// A header with a subject of its own returns that, so that both spellings are the same subject.
    fn header(name: &str) -> Subject {
        match name {
            "host" => Subject::Host,
            "referer" => Subject::Referer,
            "cookie" => Subject::Cookie,
            "user-agent" => Subject::UserAgent,
            "accept-language" => Subject::Language,
            other => Subject::RequestHeader(other.to_owned()),
        }
    }

    /// All field names of `$HTTP`, `$SERVER` and `$PHYSICAL`, for hints.
    pub(crate) fn fields(object: &str) -> &'static [&'static str] {
        match object {
            "HTTP" => &[
                "host",
                "url",
                "querystring",
                "scheme",
                "referer",
                "cookie",
                "useragent",
                "remoteip",
                "request-method",
                "language",
            ],
            "SERVER" => &["socket"],
            "PHYSICAL" => &["path", "existing-path"],
            _ => &[],
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Subject::SocketAddress => "$SERVER[\"socket\"]",
            Subject::Host => "$HTTP[\"host\"]",
            Subject::Url => "$HTTP[\"url\"]",
            Subject::Query => "$HTTP[\"querystring\"]",
            Subject::Scheme => "$HTTP[\"scheme\"]",
            Subject::Referer => "$HTTP[\"referer\"]",
            Subject::Cookie => "$HTTP[\"cookie\"]",
            Subject::UserAgent => "$HTTP[\"useragent\"]",
            Subject::RemoteIp => "$HTTP[\"remoteip\"]",
            Subject::RequestMethod => "$HTTP[\"request-method\"]",
            Subject::Language => "$HTTP[\"language\"]",
            Subject::PhysicalPath => "$PHYSICAL[\"path\"]",
            Subject::PhysicalExistingPath => "$PHYSICAL[\"existing-path\"]",
            Subject::RequestHeader(name) => {
                return write!(f, "$REQUEST_HEADER[\"{}\"]", name.replace('"', "\\\""));
            }
        })
    }
}

/// The operator of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `=~`, a regular expression
    Match,
    /// `!~`
    NotMatch,
    /// `=^`
    Prefix,
    /// `=$`
    Suffix,
}

impl Op {
    /// The operator as written.
    #[must_use]
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Op::Eq => "==",
            Op::Ne => "!=",
            Op::Match => "=~",
            Op::NotMatch => "!~",
            Op::Prefix => "=^",
            Op::Suffix => "=$",
        }
    }
}
