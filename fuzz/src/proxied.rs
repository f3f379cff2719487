//! What a proxy in front sends: headers of the PROXY protocol, Forwarded and X-Forwarded-For.

use petrel_proto::forwarded::{self, HOPS_MAX, Node};
use petrel_proto::proxy_protocol::{
    DecodedHeader, Endpoints, HEADER_BYTES_MAX, decode, encode_v1, encode_v2,
};

pub fn proxied(input: &[u8]) {
    header(input);
    fields(input);
}

/// A header is decoded the same regardless of what follows it, the decoder does not wait beyond the longest
/// header, and a decoded header can be encoded again.
fn header(input: &[u8]) {
    match decode(input) {
        Ok(DecodedHeader::NeedMore) => assert!(input.len() < HEADER_BYTES_MAX),
        Ok(DecodedHeader::Complete(header)) => {
            assert!(header.length <= input.len());
            let alone = decode(&input[..header.length]);
            assert_eq!(alone, Ok(DecodedHeader::Complete(header.clone())));
            let shorter = decode(&input[..header.length - 1]);
            assert_eq!(shorter, Ok(DecodedHeader::NeedMore));
            if let Endpoints::Ip {
                source,
                destination,
            } = header.endpoints
            {
                again(Endpoints::Ip {
                    source,
                    destination,
                });
            }
        }
        Err(_) => {}
    }
}

/// Ports and address families survive both encodings.
fn again(endpoints: Endpoints) {
    for encode in [encode_v1, encode_v2] {
        let mut bytes = Vec::new();
        encode(&endpoints, &mut bytes);
        let Ok(DecodedHeader::Complete(header)) = decode(&bytes) else {
            panic!("what is written can be read");
        };
        assert_eq!(header.length, bytes.len());
        let (Endpoints::Ip { source, .. }, Endpoints::Ip { source: before, .. }) =
            (&header.endpoints, &endpoints)
        else {
            panic!("addresses stay addresses");
        };
        assert_eq!(source.port(), before.port());
        assert_eq!(source.ip().to_canonical(), before.ip().to_canonical());
    }
}

fn fields(input: &[u8]) {
    if let Ok(hops) = forwarded::parse(input) {
        assert!(hops.len() <= HOPS_MAX);
        for hop in &hops {
            let _ = Node::parse(hop.for_.as_deref().unwrap_or_default());
        }
    }
    for address in forwarded::addresses(input).rev() {
        assert!(!address.is_empty() && address.trim_ascii() == address);
        if let Node::Address(address) = Node::parse(address) {
            let text = address.ip().to_string();
            let again = Node::parse(text.as_bytes());
            assert!(matches!(again, Node::Address(same) if same.ip() == address.ip()));
        }
    }
}
