//! Cache-Status (RFC 9211), which says what the cache did for a request; written without an allocation.

use petrel_engine::response::Response;

/// One member of the list, beginning with the name of this cache.
#[derive(Clone, Debug)]
pub(crate) struct CacheStatus {
    text: [u8; LENGTH_MAX],
    length: usize,
}

/// The beginning of the line.
const FIELD: &[u8] = b"Cache-Status: ";

/// Longer than anything that is written; what would not fit is left out.
const LENGTH_MAX: usize = 160;

impl Default for CacheStatus {
    fn default() -> CacheStatus {
        CacheStatus::new()
    }
}

impl CacheStatus {
    /// A member with only the name.
    pub(crate) fn new() -> CacheStatus {
        let mut status = CacheStatus {
            text: [0; LENGTH_MAX],
            length: 0,
        };
        status.push(&[FIELD, b"petrel"]);
        status
    }

    /// Adds a parameter without a value.
    pub(crate) fn word(&mut self, name: &str) {
        self.push(&[b"; ", name.as_bytes()]);
    }

    /// Adds a parameter with a token as its value.
    pub(crate) fn parameter(&mut self, name: &str, value: &str) {
        self.push(&[b"; ", name.as_bytes(), b"=", value.as_bytes()]);
    }

    /// Adds a parameter with a number as its value.
    pub(crate) fn number(&mut self, name: &str, value: i64) {
        self.parameter(name, itoa::Buffer::new().format(value));
    }

    /// The value of the field.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.text.get(FIELD.len()..self.length).unwrap_or_default()
    }

    /// The field and Age, as lines of a head.
    pub(crate) fn with_age(&mut self, age_s: u32) -> &[u8] {
        let mut age = itoa::Buffer::new();
        self.push(&[b"\r\nAge: ", age.format(age_s).as_bytes(), b"\r\n"]);
        self.text.get(..self.length).unwrap_or_default()
    }

    /// Adds the field after those of caches nearer to the origin.
    pub(crate) fn append_to(&self, response: &mut Response) {
        response.append("Cache-Status", self.as_bytes());
    }

    fn push(&mut self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let Some(mut place) = self.text.get_mut(self.length..self.length + length) else {
            return;
        };
        for part in parts {
            let (here, rest) = place.split_at_mut(part.len());
            here.copy_from_slice(part);
            place = rest;
        }
        self.length += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_follow_the_name() {
        let mut status = CacheStatus::new();
        status.word("hit");
        status.number("ttl", -7);
        status.parameter("detail", "x");
        assert_eq!(status.as_bytes(), b"petrel; hit; ttl=-7; detail=x");
    }

    #[test]
    fn the_age_is_a_line_of_its_own() {
        let mut status = CacheStatus::new();
        status.word("hit");
        let lines = status.with_age(42);
        assert_eq!(lines, b"Cache-Status: petrel; hit\r\nAge: 42\r\n");
    }

    #[test]
    fn what_does_not_fit_is_left_out_whole() {
        let mut status = CacheStatus::new();
        status.word(&"a".repeat(LENGTH_MAX));
        assert_eq!(status.as_bytes(), b"petrel");
        let rest = LENGTH_MAX - FIELD.len();
        status.word(&"a".repeat(rest - 8));
        assert_eq!(status.as_bytes().len(), rest);
        status.word("b");
        assert_eq!(status.as_bytes().len(), rest);
    }
}
