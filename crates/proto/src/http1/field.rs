//! The request fields the server itself looks at, from one table, and a quick way to find them.

macro_rules! known_fields {
    ($($variant:ident $name:literal,)*) => {
        /// A request header field the server or a common module asks for by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum KnownField {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl KnownField {
            /// Every known field; a field's position is its number.
            pub const ALL: &'static [KnownField] = &[$(KnownField::$variant,)*];

            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The field name in its usual capitalisation.
            pub const fn name(self) -> &'static str {
                match self {
                    $(KnownField::$variant => $name,)*
                }
            }
        }
    };
}

known_fields! {
    Host "Host",
    Connection "Connection",
    ContentLength "Content-Length",
    TransferEncoding "Transfer-Encoding",
    Expect "Expect",
    Range "Range",
    IfMatch "If-Match",
    IfNoneMatch "If-None-Match",
    IfModifiedSince "If-Modified-Since",
    IfUnmodifiedSince "If-Unmodified-Since",
    IfRange "If-Range",
    AcceptEncoding "Accept-Encoding",
    Accept "Accept",
    AcceptLanguage "Accept-Language",
    Upgrade "Upgrade",
    UserAgent "User-Agent",
    Referer "Referer",
    Cookie "Cookie",
    Authorization "Authorization",
    ContentType "Content-Type",
    ContentEncoding "Content-Encoding",
    CacheControl "Cache-Control",
    Pragma "Pragma",
    Te "TE",
    Trailer "Trailer",
    KeepAlive "Keep-Alive",
    ProxyConnection "Proxy-Connection",
    Origin "Origin",
    Forwarded "Forwarded",
    XForwardedFor "X-Forwarded-For",
    XForwardedProto "X-Forwarded-Proto",
    XForwardedHost "X-Forwarded-Host",
    Depth "Depth",
    Destination "Destination",
    Overwrite "Overwrite",
    Http2Settings "HTTP2-Settings",
}

impl KnownField {
    /// The known field of this name, whatever its letter case.
    pub fn from_name(name: &[u8]) -> Option<KnownField> {
        Self::ALL.iter().copied().find(|field| field.name().as_bytes().eq_ignore_ascii_case(name))
    }
}
