//! SCGI requests: what is written follows the specification and holds the given variables.
//!
//! The input is split at its line ends into names and values.

use petrel_proto::scgi::ScgiEncoder;

pub fn scgi(input: &[u8]) {
    let mut sent = Vec::new();
    let mut wire = Vec::new();
    let mut head = ScgiEncoder::new(&mut wire, input.len() as u64);
    for part in input.split(|&byte| byte == b'\n') {
        let (name, value) = part.split_at(part.len() / 3);
        head.add(name, value);
        let is_first = matches!(name, b"CONTENT_LENGTH" | b"SCGI");
        if !is_first && !part.contains(&0) {
            sent.push((name, value));
        }
    }
    head.finish();
    let colon = wire.iter().position(|&byte| byte == b':').unwrap();
    let (length, head) = (&wire[..colon], &wire[colon + 1..wire.len() - 1]);
    assert_eq!(length, head.len().to_string().as_bytes());
    assert_eq!(wire.last(), Some(&b','));
    let parts: Vec<&[u8]> = head.split(|&byte| byte == 0).collect();
    assert_eq!(parts.last(), Some(&&b""[..]));
    let found: Vec<_> = parts
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let length = input.len().to_string();
    assert_eq!(found[0], (&b"CONTENT_LENGTH"[..], length.as_bytes()));
    assert_eq!(found[1], (&b"SCGI"[..], &b"1"[..]));
    assert_eq!(found[2..], sent);
}
