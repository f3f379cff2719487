//! uwsgi packets: what is read is what stands there, and what is written is read.
//!
//! The input is what a web server sends, and, cut at its zeros, names and values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use petrel_proto::uwsgi::{UwsgiEncoder, ParsedPacket, PacketVariables, parse};

fuzz_target!(|input: &[u8]| {
    if let ParsedPacket::Complete { variables, .. } = parse(input) {
        assert!(variables.end <= input.len());
        let end = variables.end;
        assert_eq!(parse(&input[..end - 1]), ParsedPacket::Partial);
        let bytes: usize = PacketVariables::new(&input[variables.clone()])
            .map_while(Result::ok)
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum();
        let is_cut_off = PacketVariables::new(&input[variables.clone()]).any(|pair| pair.is_err());
        assert_eq!(bytes < variables.len(), is_cut_off);
    }
    round_trip(input);
});

fn round_trip(input: &[u8]) {
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
    let wire = &wire[4..];
    let ParsedPacket::Complete {
        modifiers: (0, 0),
        variables,
    } = parse(wire)
    else {
        panic!("what is written is sound");
    };
    assert_eq!(variables.end, wire.len());
    let found: Vec<_> = PacketVariables::new(&wire[variables])
        .map(Result::unwrap)
        .collect();
    assert_eq!(found, sent);
}
