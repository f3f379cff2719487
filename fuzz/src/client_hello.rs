//! The beginning of a TLS connection is decoded the same however it is cut, and the ClientHello means the
//! same when it is written as one record.
//!
//! The input is what the client sends first.

use petrel_proto::client_hello::{
    ClientHello, ClientHelloDecoder, DecodedHello, HelloError, MESSAGE_BYTES_MAX, RECORDS_MAX,
};

pub fn client_hello(input: &[u8]) {
    let read = decode(input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(decode(input, step), read);
    }
    match read {
        Ok(Some((hello, length))) => {
            assert!(length <= input.len());
            say_again(&hello);
            look_at(&hello);
        }
        // The decoder waits for no more than the longest message plus the headers of all its records.
        Ok(None) => assert!(input.len() < MESSAGE_BYTES_MAX + 5 * usize::from(RECORDS_MAX) + 5),
        Err(_) => {}
    }
}

type Read = Result<Option<(ClientHello, usize)>, HelloError>;

fn decode(input: &[u8], step: usize) -> Read {
    let mut decoder = ClientHelloDecoder::default();
    let mut before = 0;
    for piece in input.chunks(step) {
        match decoder.decode(piece)? {
            DecodedHello::NeedMore => before += piece.len(),
            DecodedHello::Complete { hello, consumed } => {
                return Ok(Some((*hello, before + consumed)));
            }
        }
    }
    Ok(None)
}

/// Checks that one record carries the same as several did.
fn say_again(hello: &ClientHello) {
    let mut record = Vec::new();
    hello.write_record(&mut record);
    let again = decode(&record, usize::MAX);
    assert_eq!(again, Ok(Some((hello.clone(), record.len()))));
}

fn look_at(hello: &ClientHello) {
    if let Some(name) = hello.server_name() {
        assert!(!name.is_empty() && name.len() <= 253);
        assert!(!name.ends_with('.') && name.parse::<std::net::IpAddr>().is_err());
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        assert!(name.bytes().all(is_allowed));
    }
    assert!(hello.alpn().all(|name| !name.is_empty()));
    assert!(hello.versions().count() > 0 && hello.cipher_suites().count() > 0);
    let _ = hello.signature_schemes().count();
}
