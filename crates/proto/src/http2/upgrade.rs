//! The upgrade from HTTP/1.1 in the clear (RFC 7540 3.2), which RFC 9113 has dropped and clients still ask
//! for.

/// Decodes the value of an HTTP2-Settings field: base64url without padding (RFC 7540 3.2.1). `None`: it is
/// not valid.
pub fn settings_of_upgrade(value: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(value.len() * 3 / 4);
    for group in value.chunks(4) {
        let mut bits = 0_u32;
        for &letter in group {
            bits = bits << 6 | u32::from(digit(letter)?);
        }
        bits <<= 6 * (4 - group.len());
        let [_, decoded @ ..] = bits.to_be_bytes();
        let length = match group.len() {
            1 => return None,
            length => length - 1,
        };
        bytes.extend_from_slice(&decoded[..length]);
    }
    Some(bytes)
}

fn digit(letter: u8) -> Option<u8> {
    Some(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_read_as_clients_write_it() {
        for (value, expected) in [
            ("", Some(&b""[..])),
            // The values that curl and nghttp send.
            (
                "AAMAAABkAAQAoAAAAAIAAAAA",
                Some(b"\0\x03\0\0\0d\0\x04\0\xa0\0\0\0\x02\0\0\0\0"),
            ),
            ("_-8", Some(b"\xff\xef")),
            ("_w", Some(b"\xff")),
            ("A", None),
            ("AA==", None),
            ("A+AA", None),
        ] {
            let read = settings_of_upgrade(value.as_bytes());
            assert_eq!(read.as_deref(), expected, "{value}");
        }
    }
}
