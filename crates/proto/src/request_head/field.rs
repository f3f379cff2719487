//! The request fields that the server itself uses, from one table, and a fast way to find them by name.

/// How a second field of the same name is handled (RFC 9110 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeated {
    /// The value is a list: the values are joined with a comma.
    Joins,
    /// Cookie: joined with a semicolon (RFC 6265 5.4).
    JoinsAsCookie,
    /// The field may occur once: a second value must be equal, and is dropped.
    Refused,
    /// The first one counts, the others are dropped.
    Dropped,
    /// The checks for framing and host handle it.
    HasOwnRule,
}

macro_rules! known_fields {
    ($($variant:ident $name:literal $repeated:ident,)*) => {
        /// A request header field the server or a common module asks for by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum KnownField {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl KnownField {
            /// Every known field; a field's position is its number.
            pub const ALL: &'static [KnownField] = &[$(KnownField::$variant,)*];

            /// The number of known fields.
            pub const COUNT: usize = Self::ALL.len();

            /// The field's name in its usual capitalisation.
            #[inline(always)]
            pub const fn name(self) -> &'static str {
                match self {
                    $(KnownField::$variant => $name,)*
                }
            }

            /// How a second field of this name is handled.
            pub(super) const fn repeated(self) -> Repeated {
                match self {
                    $(KnownField::$variant => Repeated::$repeated,)*
                }
            }
        }
    };
}

known_fields! {
    Host "Host" HasOwnRule,
    Connection "Connection" Joins,
    ContentLength "Content-Length" HasOwnRule,
    TransferEncoding "Transfer-Encoding" Joins,
    Expect "Expect" Joins,
    Range "Range" Dropped,
    IfMatch "If-Match" Joins,
    IfNoneMatch "If-None-Match" Joins,
    IfModifiedSince "If-Modified-Since" Refused,
    IfUnmodifiedSince "If-Unmodified-Since" Refused,
    IfRange "If-Range" Refused,
    AcceptEncoding "Accept-Encoding" Joins,
    Accept "Accept" Joins,
    AcceptLanguage "Accept-Language" Joins,
    Upgrade "Upgrade" Joins,
    UserAgent "User-Agent" Joins,
    Referer "Referer" Joins,
    Cookie "Cookie" JoinsAsCookie,
    Authorization "Authorization" Refused,
    ContentType "Content-Type" Refused,
    ContentEncoding "Content-Encoding" Joins,
    CacheControl "Cache-Control" Joins,
    Pragma "Pragma" Joins,
    Te "TE" Joins,
    Trailer "Trailer" Joins,
    KeepAlive "Keep-Alive" Joins,
    ProxyConnection "Proxy-Connection" Joins,
    Origin "Origin" Joins,
    Forwarded "Forwarded" Joins,
    XForwardedFor "X-Forwarded-For" Joins,
    XForwardedProto "X-Forwarded-Proto" Joins,
    XForwardedHost "X-Forwarded-Host" Joins,
    Depth "Depth" Refused,
    Destination "Destination" Refused,
    Overwrite "Overwrite" Refused,
    Http2Settings "HTTP2-Settings" Joins,
}

impl KnownField {
    /// The known field of this name, in any letter case.
    #[inline]
    pub fn from_name(name: &[u8]) -> Option<KnownField> {
        KnownField::from_name_if(name, |_| true)
    }

    /// The same, but only if `is_wanted` accepts the field. It is called before the names are compared,
    /// because nearly all fields of a message are not wanted.
    #[inline(always)]
    pub fn from_name_if(name: &[u8], is_wanted: impl Fn(KnownField) -> bool) -> Option<KnownField> {
        let field = SLOTS[slot(name)?].filter(|field| is_wanted(*field))?;
        let known = field.name().as_bytes();
        // Most clients write names as the RFCs do, and comparing bytes is faster than ignoring letter case.
        (known == name || known.eq_ignore_ascii_case(name)).then_some(field)
    }

    /// The known field of this name, which is in lower case, as in HTTP/2 and 3.
    #[inline]
    pub(crate) fn from_lower_name(name: &[u8]) -> Option<KnownField> {
        let field = SLOTS[slot(name)?]?;
        let length = field.name().len();
        (&LOWER_NAMES[field as usize][..length] == name).then_some(field)
    }

    /// Whether the field is about one connection and is never passed on: Connection, the fields that a sender
    /// must name in it (RFC 9110 7.6.1; HTTP2-Settings: RFC 7540 3.2.1), and Proxy-Connection (RFC 9112
    /// C.2.2).
    #[inline]
    pub const fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            KnownField::Connection
                | KnownField::KeepAlive
                | KnownField::ProxyConnection
                | KnownField::Te
                | KnownField::Trailer
                | KnownField::TransferEncoding
                | KnownField::Upgrade
                | KnownField::Http2Settings
        )
    }

    /// Whether each sender of a request writes the field itself: hop-by-hop fields, Content-Length (RFC 9110
    /// 8.6), and Expect (RFC 9110 10.1.1).
    #[inline]
    pub const fn is_written_by_sender(self) -> bool {
        self.is_hop_by_hop() || matches!(self, KnownField::ContentLength | KnownField::Expect)
    }
}

/// A perfect hash of the table's names: [`slot_table`] checks at compile time that no two share a slot. If a
/// new name collides, search for other multipliers.
#[inline(always)]
const fn slot(name: &[u8]) -> Option<usize> {
    let ([first, .., last] | [first @ last]) = name else {
        return None;
    };
    let middle = name[name.len() / 2];
    // Bit 5 makes letters lower-case; its effect on other characters does not matter here.
    let sum = name.len() * 4
        + (*first | 0x20) as usize * 3
        + (middle | 0x20) as usize * 26
        + (*last | 0x20) as usize * 24;
    Some(sum % SLOT_COUNT)
}

const SLOT_COUNT: usize = 64;

/// The names in lower case, each at the beginning of its array.
static LOWER_NAMES: [[u8; NAME_BYTES_MAX]; KnownField::COUNT] = lower_names();

const NAME_BYTES_MAX: usize = 24;

const fn lower_names() -> [[u8; NAME_BYTES_MAX]; KnownField::COUNT] {
    let mut table = [[0; NAME_BYTES_MAX]; KnownField::COUNT];
    let mut number = 0;
    while number < KnownField::COUNT {
        let name = KnownField::ALL[number].name().as_bytes();
        let mut position = 0;
        while position < name.len() {
            table[number][position] = name[position].to_ascii_lowercase();
            position += 1;
        }
        number += 1;
    }
    table
}

static SLOTS: [Option<KnownField>; SLOT_COUNT] = slot_table();

const fn slot_table() -> [Option<KnownField>; SLOT_COUNT] {
    let mut table = [None; SLOT_COUNT];
    let mut number = 0;
    while number < KnownField::COUNT {
        let field = KnownField::ALL[number];
        let Some(slot) = slot(field.name().as_bytes()) else {
            panic!("a known field has no name");
        };
        assert!(table[slot].is_none(), "two known fields share a slot");
        table[slot] = Some(field);
        number += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_in_any_letter_case() {
        for &field in KnownField::ALL {
            let name = field.name();
            for spelled in [name.to_owned(), name.to_lowercase(), name.to_uppercase()] {
                assert_eq!(KnownField::from_name(spelled.as_bytes()), Some(field));
                let is_lower = spelled == name.to_lowercase();
                let lower = KnownField::from_lower_name(spelled.as_bytes());
                assert_eq!(lower, is_lower.then_some(field));
            }
        }
    }

    #[test]
    fn other_names_are_not_known() {
        for name in [
            "",
            "H",
            "Hos",
            "Hosts",
            "Hust",
            "X-Content-Length",
            "\u{fffd}",
        ] {
            assert_eq!(KnownField::from_name(name.as_bytes()), None);
            assert_eq!(KnownField::from_lower_name(name.as_bytes()), None);
        }
    }
}
