//! Why a request head was refused: a table of reasons, each with its status and sentence.

use crate::reasons::reasons;

reasons! {
    /// Why a request head is refused. The connection must be closed after the response, because what follows
    /// on it may not be another request.
    HeadError {
        RequestLine BAD_REQUEST
            "The request line is not `method target version` with single spaces between.",
        RequestTarget BAD_REQUEST
            "The request target holds a byte that must not stand there, or its form is not one this method allows.",
        MethodUnknown NOT_IMPLEMENTED
            "The request method is not known.",
        MethodConnect NOT_IMPLEMENTED
            "CONNECT is refused: this server opens no tunnels.",
        Http2Preface HTTP_VERSION_NOT_SUPPORTED
            "The HTTP/2 connection preface arrived where HTTP/1 is spoken.",
        VersionUnsupported HTTP_VERSION_NOT_SUPPORTED
            "The request line names an HTTP version other than 1.x.",
        RequestLineTooLong URI_TOO_LONG
            "The request line alone is longer than a request head may be.",
        HeadTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE
            "The request head is longer than server.max-request-field-size allows.",
        TooManyFields REQUEST_HEADER_FIELDS_TOO_LARGE
            "The request has more header fields than are accepted.",
        TooManyEmptyLines BAD_REQUEST
            "Too many empty lines stand before the request line.",
        PseudoField BAD_REQUEST
            "A pseudo-field is missing, unknown, repeated, or stands behind a header field.",
        FieldOfConnection BAD_REQUEST
            "A header field about an HTTP/1 connection stands in a request that is not HTTP/1 text.",
        FieldName BAD_REQUEST
            "A header field name is empty, is not a token, is followed by a space, or its line begins with one (obsolete folding).",
        FieldValue BAD_REQUEST
            "A header field value holds a control character.",
        LineEnd BAD_REQUEST
            "A line of the head does not end in CR LF.",
        FieldRepeated BAD_REQUEST
            "A header field that may stand only once stands there twice with different values.",
        HostMissing BAD_REQUEST
            "An HTTP/1.1 request carries no Host field.",
        HostRepeated BAD_REQUEST
            "The Host field stands there more than once.",
        HostInvalid BAD_REQUEST
            "The host is not a valid host name or address with an optional port.",
        ContentLengthInvalid BAD_REQUEST
            "Content-Length is not one decimal number of at most 63 bits.",
        ContentLengthRepeated BAD_REQUEST
            "Content-Length stands there more than once.",
        ContentLengthWithTransferEncoding BAD_REQUEST
            "Content-Length and Transfer-Encoding stand together.",
        TransferEncodingInvalid BAD_REQUEST
            "Transfer-Encoding does not end in exactly one `chunked`.",
        TransferEncodingUnknown NOT_IMPLEMENTED
            "Transfer-Encoding names a coding other than `chunked`.",
        TransferEncodingInHttp10 BAD_REQUEST
            "An HTTP/1.0 request carries Transfer-Encoding.",
        LengthRequired LENGTH_REQUIRED
            "A POST request announces neither Content-Length nor Transfer-Encoding.",
        BodyUnexpected BAD_REQUEST
            "A GET, HEAD or CONNECT request announces a body.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_sentences_with_error_statuses() {
        for reason in HeadError::ALL {
            assert!(reason.status().is_error());
            assert!(reason.sentence().ends_with('.'));
        }
    }
}
