//! Answers of the kernel's socket diagnostics: any bytes are decoded or called malformed. No more is read from
//! bytes that are cut off than from the whole. A query is a message that is decoded, too.
//!
//! The sequence number is that of the first message of the input.

use std::net::SocketAddr;

use petrel_proto::sock_diag::{MalformedAnswer, SocketAnswer, SocketAnswers, SocketQuery};

pub fn sock_diag(input: &[u8]) {
    let number = |at: usize| {
        let bytes = input
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    };
    let sequence = number(8);
    let whole = answers(input, sequence);
    assert!(whole.len() <= input.len().div_ceil(16));
    for answer in whole.iter().flatten() {
        if let SocketAnswer::Unix(socket) = answer {
            assert!(socket.name.len() < input.len());
        }
    }
    let part = answers(&input[..input.len() / 2], sequence);
    // The last message of it may be incomplete.
    let read = part.strip_suffix(&[Err(MalformedAnswer)]).unwrap_or(&part);
    assert!(whole.starts_with(read));

    let local = SocketAddr::from((number(0).to_be_bytes(), number(4) as u16));
    let queries = [
        SocketQuery::Unix { inode: number(0) },
        SocketQuery::UnixListeners,
        SocketQuery::Tcp {
            local,
            remote: SocketAddr::from(([number(12) as u16; 8], number(4) as u16)),
        },
        SocketQuery::TcpListener { address: local },
    ];
    for query in queries {
        let bytes = query.encode(sequence);
        assert_eq!(answers(&bytes, sequence).len(), 1);
        assert!(answers(&bytes, sequence.wrapping_add(1)).is_empty());
    }
}

fn answers(bytes: &[u8], sequence: u32) -> Vec<Result<SocketAnswer, MalformedAnswer>> {
    SocketAnswers::new(bytes, sequence).collect()
}
