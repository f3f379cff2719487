//! Chunked bodies (RFC 9112, section 7.1), decoded without storing any of them.

use super::reply::Wrong;

/// A chunked body, as far as it has arrived.
#[derive(Debug, Default)]
pub struct Chunks {
    place: Place,
    /// Bytes of content so far.
    pub content_bytes: u64,
}

/// What comes next.
#[derive(Debug)]
enum Place {
    /// The digits of a chunk's size, and the value so far.
    Size(u64),
    /// The rest of the line with the size.
    Extension(u64),
    /// This many bytes of content.
    Content(u64),
    /// The line end after content.
    ContentEnd,
    /// A line of the trailer section, with its length so far.
    Trailer(usize),
}

impl Default for Place {
    fn default() -> Self {
        Self::Size(0)
    }
}

impl Chunks {
    /// Takes the next bytes and passes on their content. Returns whether the body is complete.
    pub fn take(
        &mut self,
        mut bytes: &[u8],
        content: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, Wrong> {
        while let Some((first, rest)) = bytes.split_first() {
            if let Place::Content(left) = &mut self.place {
                let length =
                    usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                let (part, after) = bytes.split_at(length);
                content(part);
                self.content_bytes += length as u64;
                *left -= length as u64;
                if *left == 0 {
                    self.place = Place::ContentEnd;
                }
                bytes = after;
                continue;
            }
            bytes = rest;
            if self.step(*first)? {
                return if bytes.is_empty() {
                    Ok(true)
                } else {
                    Err(Wrong::TooMuch)
                };
            }
        }
        Ok(false)
    }

    /// Takes a byte that is not content.
    fn step(&mut self, byte: u8) -> Result<bool, Wrong> {
        self.place = match (&self.place, byte) {
            (Place::Size(0) | Place::Extension(0), b'\n') => Place::Trailer(0),
            (Place::Size(size) | Place::Extension(size), b'\n') => Place::Content(*size),
            (Place::Size(size), b';' | b'\r' | b' ') => Place::Extension(*size),
            (Place::Size(size), byte) => Place::Size(with_digit(*size, byte)?),
            (Place::Extension(size), _) => Place::Extension(*size),
            (Place::ContentEnd, b'\n') => Place::Size(0),
            (Place::ContentEnd, b'\r') => Place::ContentEnd,
            (Place::Trailer(0), b'\n') => return Ok(true),
            (Place::Trailer(length), b'\r') => Place::Trailer(*length),
            (Place::Trailer(_), b'\n') => Place::Trailer(0),
            (Place::Trailer(length), _) => Place::Trailer(length + 1),
            (Place::ContentEnd | Place::Content(_), _) => return Err(Wrong::Malformed),
        };
        Ok(false)
    }
}

fn with_digit(size: u64, byte: u8) -> Result<u64, Wrong> {
    let digit = char::from(byte).to_digit(16).ok_or(Wrong::Malformed)?;
    let shifted = size.checked_mul(16).ok_or(Wrong::Malformed)?;
    Ok(shifted + u64::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"3;x=y\r\n123\r\nA\r\n0123456789\r\n0\r\nName: value\r\n\r\n";

    #[test]
    fn a_body_is_whole_wherever_it_is_cut() {
        for cut in 0..BODY.len() {
            let (mut chunks, mut content) = (Chunks::default(), Vec::new());
            let mut keep = |part: &[u8]| content.extend_from_slice(part);
            assert!(
                !chunks.take(&BODY[..cut], &mut keep).unwrap(),
                "cut at {cut}"
            );
            assert!(
                chunks.take(&BODY[cut..], &mut keep).unwrap(),
                "cut at {cut}"
            );
            assert_eq!(content, b"1230123456789");
            assert_eq!(chunks.content_bytes, 13);
        }
    }

    #[test]
    fn nonsense_is_malformed() {
        let wrong: [&[u8]; 3] = [b"x\r\n", b"1\r\nab", b"11111111111111111\r\n"];
        for bytes in wrong {
            let taken = Chunks::default().take(bytes, &mut |_| {});
            assert_eq!(taken, Err(Wrong::Malformed));
        }
        let beyond = Chunks::default().take(b"0\r\n\r\nx", &mut |_| {});
        assert_eq!(beyond, Err(Wrong::TooMuch));
    }
}
