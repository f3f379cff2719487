//! Why a request head was refused: one table of reasons, each with its status and sentence.

use crate::status::Status;

/// A request head that is refused. The connection must be closed after the answer: what follows
/// on it cannot be trusted to be another request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadError {
    /// The status to answer with.
    pub status: Status,
    /// What was wrong.
    pub reason: HeadErrorReason,
}

macro_rules! reasons {
    ($($variant:ident $status:ident $name:literal $sentence:literal,)*) => {
        /// The closed set of reasons to refuse a request head.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum HeadErrorReason {
            $(#[doc = $sentence] $variant,)*
        }

        impl HeadErrorReason {
            /// Every reason, in table order: for counters.
            pub const ALL: &'static [HeadErrorReason] = &[$(HeadErrorReason::$variant,)*];

            /// The status this reason is answered with.
            pub const fn status(self) -> Status {
                match self {
                    $(HeadErrorReason::$variant => Status::$status,)*
                }
            }

            /// A short stable name, for counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(HeadErrorReason::$variant => $name,)*
                }
            }

            /// A sentence for the log.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(HeadErrorReason::$variant => $sentence,)*
                }
            }
        }
    };
}

reasons! {
    RequestLine BAD_REQUEST "request-line"
        "The request line is not `method target version` with single spaces between.",
    RequestTarget BAD_REQUEST "request-target"
        "The request target holds a byte that must not stand there, or its form is not one this method allows.",
    MethodUnknown NOT_IMPLEMENTED "method-unknown"
        "The request method is not known.",
    MethodConnect NOT_IMPLEMENTED "method-connect"
        "CONNECT is refused: this server opens no tunnels.",
    Http2Preface HTTP_VERSION_NOT_SUPPORTED "http2-preface"
        "The HTTP/2 connection preface arrived where HTTP/1 is spoken.",
    VersionUnsupported HTTP_VERSION_NOT_SUPPORTED "version-unsupported"
        "The request line names an HTTP version other than 1.x.",
    RequestLineTooLong URI_TOO_LONG "request-line-too-long"
        "The request line alone is longer than a request head may be.",
    HeadTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE "head-too-large"
        "The request head is longer than server.max-request-field-size allows.",
    TooManyFields REQUEST_HEADER_FIELDS_TOO_LARGE "too-many-fields"
        "The request has more header fields than are accepted.",
    TooManyEmptyLines BAD_REQUEST "too-many-empty-lines"
        "Too many empty lines stand before the request line.",
    PseudoField BAD_REQUEST "pseudo-field"
        "A pseudo-field is missing, unknown, repeated, or stands behind a header field.",
    FieldOfConnection BAD_REQUEST "field-of-connection"
        "A header field about an HTTP/1 connection stands in a request that is not HTTP/1 text.",
    FieldName BAD_REQUEST "field-name"
        "A header field name is empty, is not a token, is followed by a space, or its line begins with one (obsolete folding).",
    FieldValue BAD_REQUEST "field-value"
        "A header field value holds a control character.",
    LineEnd BAD_REQUEST "line-end"
        "A line of the head does not end in CR LF.",
    FieldRepeated BAD_REQUEST "field-repeated"
        "A header field that may stand only once stands there twice with different values.",
    HostMissing BAD_REQUEST "host-missing"
        "An HTTP/1.1 request carries no Host field.",
    HostRepeated BAD_REQUEST "host-repeated"
        "The Host field stands there more than once.",
    HostInvalid BAD_REQUEST "host-invalid"
        "The host is not a valid host name or address with an optional port.",
    ContentLengthInvalid BAD_REQUEST "content-length-invalid"
        "Content-Length is not one decimal number of at most 63 bits.",
    ContentLengthRepeated BAD_REQUEST "content-length-repeated"
        "Content-Length stands there more than once.",
    ContentLengthWithTransferEncoding BAD_REQUEST "content-length-with-transfer-encoding"
        "Content-Length and Transfer-Encoding stand together.",
    TransferEncodingInvalid BAD_REQUEST "transfer-encoding-invalid"
        "Transfer-Encoding does not end in exactly one `chunked`.",
    TransferEncodingUnknown NOT_IMPLEMENTED "transfer-encoding-unknown"
        "Transfer-Encoding names a coding other than `chunked`.",
    TransferEncodingInHttp10 BAD_REQUEST "transfer-encoding-in-http10"
        "An HTTP/1.0 request carries Transfer-Encoding.",
    LengthRequired LENGTH_REQUIRED "length-required"
        "A POST request announces neither Content-Length nor Transfer-Encoding.",
    BodyUnexpected BAD_REQUEST "body-unexpected"
        "A GET or HEAD request announces a body.",
}

impl From<HeadErrorReason> for HeadError {
    fn from(reason: HeadErrorReason) -> HeadError {
        HeadError {
            status: reason.status(),
            reason,
        }
    }
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.reason.sentence())
    }
}

impl std::error::Error for HeadError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_distinct_names_and_error_statuses() {
        for (position, reason) in HeadErrorReason::ALL.iter().enumerate() {
            assert!(reason.status().is_error());
            assert!(reason.sentence().ends_with('.'));
            let later = &HeadErrorReason::ALL[position + 1..];
            assert!(later.iter().all(|other| other.name() != reason.name()));
        }
    }
}
