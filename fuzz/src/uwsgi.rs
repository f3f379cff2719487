//! uwsgi packets: what is written follows the specification and holds the given variables.
//!
//! The input is split at its zeros into names and values.

use petrel_proto::uwsgi::UwsgiEncoder;

pub fn uwsgi(input: &[u8]) {
    let mut sent = Vec::new();
    let mut bytes = 0;
    let mut wire = b"kept".to_vec();
    let mut head = UwsgiEncoder::new(&mut wire);
    for part in input.split(|&byte| byte == 0) {
        let (name, value) = part.split_at(part.len() / 3);
        head.add(name, value);
        sent.push((name, value));
        bytes += part.len() + 4;
    }
    let finished = head.finish();
    assert_eq!(finished.is_ok(), bytes <= usize::from(u16::MAX));
    if finished.is_err() {
        assert_eq!(wire, b"kept");
        return;
    }
    let (header, mut rest) = wire[4..].split_at(4);
    let [low, high] = (rest.len() as u16).to_le_bytes();
    assert_eq!(header, [0, low, high, 0]);
    let mut next = || {
        let (length, behind) = rest.split_first_chunk::<2>()?;
        let (part, behind) = behind.split_at(u16::from_le_bytes(*length).into());
        rest = behind;
        Some(part)
    };
    let pair = || Some((next()?, next().expect("a value behind each name")));
    let found: Vec<_> = std::iter::from_fn(pair).collect();
    assert!(rest.is_empty());
    assert_eq!(found, sent);
}
