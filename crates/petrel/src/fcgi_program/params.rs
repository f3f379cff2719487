//! The name-value pairs of a request, as the web server sends them.

use proto::fastcgi::Pairs;

use super::limits::PARAMS_BYTES_MAX;

/// The name-value pairs, kept encoded because a request looks up only a few of them.
#[derive(Debug)]
pub(crate) struct Params {
    encoded: Vec<u8>,
}

impl Params {
    /// No pairs.
    pub(crate) fn new() -> Params {
        Params {
            encoded: Vec::with_capacity(1024),
        }
    }

    /// Removes all pairs. A buffer of usual size is kept.
    pub(crate) fn clear(&mut self) {
        self.encoded.clear();
        self.encoded.shrink_to(KEPT_BYTES_MAX);
    }

    /// Appends encoded bytes. Returns false if there are too many.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> bool {
        let fits = self.encoded.len() + bytes.len() <= PARAMS_BYTES_MAX;
        if fits {
            self.encoded.extend_from_slice(bytes);
        }
        fits
    }

    /// Whether the encoding is valid.
    pub(crate) fn are_sound(&self) -> bool {
        Pairs::new(&self.encoded).all(|pair| pair.is_ok())
    }

    /// All pairs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        Pairs::new(&self.encoded).flatten()
    }

    /// The value of `name`. If it occurs several times, the last one counts.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let named = self.iter().filter(|(known, _)| *known == name);
        named.last().map(|(_, value)| value)
    }
}

/// Bytes of the buffer that are kept for the next request.
const KEPT_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use proto::fastcgi::write_pair;

    /// The pairs as they arrive from a web server, in small pieces.
    pub(crate) fn params(pairs: &[(&str, &[u8])]) -> Params {
        let (mut params, mut encoded) = (Params::new(), Vec::new());
        for (name, value) in pairs {
            write_pair(&mut encoded, name.as_bytes(), value);
        }
        for piece in encoded.chunks(3) {
            assert!(params.add(piece));
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_by_name_and_the_last_one_counts() {
        let params = testing::params(&[("A", b"1"), ("B", b"2"), ("A", b"3")]);
        assert!(params.are_sound());
        assert_eq!(params.get(b"A"), Some(&b"3"[..]));
        assert_eq!(params.get(b"C"), None);
        assert_eq!(params.iter().count(), 3);
    }

    #[test]
    fn pairs_are_limited_and_checked() {
        let mut params = Params::new();
        assert!(params.add(&[5]));
        assert!(!params.are_sound());
        assert!(!params.add(&vec![0; PARAMS_BYTES_MAX]));
        params.clear();
        assert!(params.are_sound());
    }
}
