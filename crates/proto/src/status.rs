//! Status codes and their reason phrases, from one table (RFC 9110 15 and the IANA registry).

/// A status code. Scripts and backends may choose any three digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(pub u16);

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal,)*) => {
        impl Status {
            $(
                #[doc = concat!("`", stringify!($code), " ", $reason, "`")]
                pub const $name: Status = Status($code);
            )*

            /// Every code of the table, in ascending order.
            pub const ALL: &'static [Status] = &[$(Status($code),)*];

            /// The registered reason phrase, or an empty string for a code outside the table.
            pub const fn reason(self) -> &'static str {
                match self.0 {
                    $($code => $reason,)*
                    _ => "",
                }
            }

            /// `HTTP/1.1 200 OK\r\n` for a code of the table.
            pub(crate) const fn line_http11(self) -> Option<&'static str> {
                match self.0 {
                    $($code => Some(concat!("HTTP/1.1 ", stringify!($code), " ", $reason, "\r\n")),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    CONTINUE 100 "Continue",
    SWITCHING_PROTOCOLS 101 "Switching Protocols",
    PROCESSING 102 "Processing",
    EARLY_HINTS 103 "Early Hints",
    OK 200 "OK",
    CREATED 201 "Created",
    ACCEPTED 202 "Accepted",
    NON_AUTHORITATIVE_INFORMATION 203 "Non-Authoritative Information",
    NO_CONTENT 204 "No Content",
    RESET_CONTENT 205 "Reset Content",
    PARTIAL_CONTENT 206 "Partial Content",
    MULTI_STATUS 207 "Multi-Status",
    ALREADY_REPORTED 208 "Already Reported",
    IM_USED 226 "IM Used",
    MULTIPLE_CHOICES 300 "Multiple Choices",
    MOVED_PERMANENTLY 301 "Moved Permanently",
    FOUND 302 "Found",
    SEE_OTHER 303 "See Other",
    NOT_MODIFIED 304 "Not Modified",
    USE_PROXY 305 "Use Proxy",
    TEMPORARY_REDIRECT 307 "Temporary Redirect",
    PERMANENT_REDIRECT 308 "Permanent Redirect",
    BAD_REQUEST 400 "Bad Request",
    UNAUTHORIZED 401 "Unauthorized",
    PAYMENT_REQUIRED 402 "Payment Required",
    FORBIDDEN 403 "Forbidden",
    NOT_FOUND 404 "Not Found",
    METHOD_NOT_ALLOWED 405 "Method Not Allowed",
    NOT_ACCEPTABLE 406 "Not Acceptable",
    PROXY_AUTHENTICATION_REQUIRED 407 "Proxy Authentication Required",
    REQUEST_TIMEOUT 408 "Request Timeout",
    CONFLICT 409 "Conflict",
    GONE 410 "Gone",
    LENGTH_REQUIRED 411 "Length Required",
    PRECONDITION_FAILED 412 "Precondition Failed",
    CONTENT_TOO_LARGE 413 "Content Too Large",
    URI_TOO_LONG 414 "URI Too Long",
    UNSUPPORTED_MEDIA_TYPE 415 "Unsupported Media Type",
    RANGE_NOT_SATISFIABLE 416 "Range Not Satisfiable",
    EXPECTATION_FAILED 417 "Expectation Failed",
    MISDIRECTED_REQUEST 421 "Misdirected Request",
    UNPROCESSABLE_CONTENT 422 "Unprocessable Content",
    LOCKED 423 "Locked",
    FAILED_DEPENDENCY 424 "Failed Dependency",
    TOO_EARLY 425 "Too Early",
    UPGRADE_REQUIRED 426 "Upgrade Required",
    PRECONDITION_REQUIRED 428 "Precondition Required",
    TOO_MANY_REQUESTS 429 "Too Many Requests",
    REQUEST_HEADER_FIELDS_TOO_LARGE 431 "Request Header Fields Too Large",
    UNAVAILABLE_FOR_LEGAL_REASONS 451 "Unavailable For Legal Reasons",
    INTERNAL_SERVER_ERROR 500 "Internal Server Error",
    NOT_IMPLEMENTED 501 "Not Implemented",
    BAD_GATEWAY 502 "Bad Gateway",
    SERVICE_UNAVAILABLE 503 "Service Unavailable",
    GATEWAY_TIMEOUT 504 "Gateway Timeout",
    HTTP_VERSION_NOT_SUPPORTED 505 "HTTP Version Not Supported",
    VARIANT_ALSO_NEGOTIATES 506 "Variant Also Negotiates",
    INSUFFICIENT_STORAGE 507 "Insufficient Storage",
    LOOP_DETECTED 508 "Loop Detected",
    NOT_EXTENDED 510 "Not Extended",
    NETWORK_AUTHENTICATION_REQUIRED 511 "Network Authentication Required",
}

impl Status {
    /// Whether this is an interim (1xx) status, which the final one follows.
    pub const fn is_interim(self) -> bool {
        self.0 >= 100 && self.0 < 200
    }

    /// Whether this is an error (4xx or 5xx).
    pub const fn is_error(self) -> bool {
        self.0 >= 400
    }

    /// Whether a response with this status never has a body, regardless of its fields (RFC 9112 6.3: 1xx, 204
    /// and 304).
    pub const fn is_bodiless(self) -> bool {
        self.is_interim() || self.0 == 204 || self.0 == 304
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_every_code_has_a_reason() {
        assert!(Status::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(Status::ALL.iter().all(|status| !status.reason().is_empty()));
    }

    #[test]
    fn a_code_outside_the_table_has_no_reason() {
        assert_eq!(Status(299).reason(), "");
        assert_eq!(Status::NOT_FOUND.reason(), "Not Found");
    }
}
