//! What the server process and the PAM helper say to each other: a question and an answer, each one datagram.
//!
//! ```text
//!   question   for each of service, user, password and host: its length in two bytes, then the bytes
//!   answer     R, N or U (right, refused, unavailable), then a text for the log
//! ```
//!
//! Both sides check every length. A [`PamQuestion`] has no `Debug`: no log can show a password.

/// What a worker asks the helper.
#[derive(PartialEq, Eq)]
pub struct PamQuestion {
    /// The name of the file in /etc/pam.d.
    pub service: Vec<u8>,
    /// The user's name.
    pub user: Vec<u8>,
    /// What the client has sent for it.
    pub password: Vec<u8>,
    /// The client's address; empty for a client by a unix socket.
    pub host: Vec<u8>,
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PamReply {
    /// The password is the user's, and the account may be used.
    Right,
    /// It is not; PAM's words.
    Refused(String),
    /// PAM cannot tell; why.
    Unavailable(String),
}

impl PamQuestion {
    /// The datagram; `None`: a part has a NUL or too many bytes, so that it is no user's.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (part, bytes_max) in [
            (&self.service, SERVICE_BYTES_MAX),
            (&self.user, USER_BYTES_MAX),
            (&self.password, PASSWORD_BYTES_MAX),
            (&self.host, HOST_BYTES_MAX),
        ] {
            if part.len() > bytes_max || memchr::memchr(0, part).is_some() {
                return None;
            }
            let length = u16::try_from(part.len()).ok()?;
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Some(bytes)
    }

    /// Reads a datagram.
    pub fn read(bytes: &[u8]) -> Option<PamQuestion> {
        let mut rest = bytes;
        let mut part = |bytes_max: usize| {
            let (length, behind) = rest.split_first_chunk()?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (part, behind) = behind.split_at_checked(length)?;
            rest = behind;
            let is_text = memchr::memchr(0, part).is_none() && length <= bytes_max;
            is_text.then(|| part.to_vec())
        };
        let question = PamQuestion {
            service: part(SERVICE_BYTES_MAX)?,
            user: part(USER_BYTES_MAX)?,
            password: part(PASSWORD_BYTES_MAX)?,
            host: part(HOST_BYTES_MAX)?,
        };
        let is_whole = rest.is_empty() && !question.service.contains(&b'/');
        is_whole.then_some(question)
    }
}

impl PamReply {
    /// The datagram. A text that is too long is cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, text) = match self {
            PamReply::Right => (b'R', ""),
            PamReply::Refused(text) => (b'N', &**text),
            PamReply::Unavailable(text) => (b'U', &**text),
        };
        let text = text.bytes().take(REPLY_BYTES_MAX - 1);
        std::iter::once(kind).chain(text).collect()
    }

    /// Reads a datagram.
    pub fn read(bytes: &[u8]) -> Option<PamReply> {
        let (kind, text) = bytes.split_first()?;
        if bytes.len() > REPLY_BYTES_MAX {
            return None;
        }
        let text = || String::from_utf8_lossy(text).into_owned();
        match kind {
            b'R' if bytes.len() == 1 => Some(PamReply::Right),
            b'N' => Some(PamReply::Refused(text())),
            b'U' => Some(PamReply::Unavailable(text())),
            _ => None,
        }
    }
}

/// A file name in /etc/pam.d.
pub(super) const SERVICE_BYTES_MAX: usize = 64;
/// Linux has 32 for its own users; names of directories may be longer.
const USER_BYTES_MAX: usize = 256;
/// Linux-PAM's PAM_MAX_RESP_SIZE, which counts the NUL.
const PASSWORD_BYTES_MAX: usize = 511;
/// An address as text.
const HOST_BYTES_MAX: usize = 64;

/// The longest question.
pub(super) const QUESTION_BYTES_MAX: usize =
    4 * 2 + SERVICE_BYTES_MAX + USER_BYTES_MAX + PASSWORD_BYTES_MAX + HOST_BYTES_MAX;
/// The longest answer.
pub(super) const REPLY_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn question(user: &[u8], password: &[u8]) -> PamQuestion {
        PamQuestion {
            service: b"http".to_vec(),
            user: user.to_vec(),
            password: password.to_vec(),
            host: b"192.0.2.7".to_vec(),
        }
    }

    #[test]
    fn questions_arrive_as_they_were_sent() {
        for (user, password) in [
            (&b"anna"[..], &b"secret"[..]),
            (b"a", b""),
            (b"\xff:\n", &[b'p'; PASSWORD_BYTES_MAX]),
            (&[b'u'; USER_BYTES_MAX], b"\x01"),
        ] {
            let sent = question(user, password);
            let bytes = sent.to_bytes().expect("within the limits");
            assert!(bytes.len() <= QUESTION_BYTES_MAX);
            assert!(PamQuestion::read(&bytes).is_some_and(|read| read == sent));
        }
    }

    #[test]
    fn parts_that_are_too_long_or_have_a_nul_are_not_sent() {
        for (user, password) in [
            (&[b'u'; USER_BYTES_MAX + 1][..], &b"p"[..]),
            (b"u", &[b'p'; PASSWORD_BYTES_MAX + 1]),
            (b"a\0b", b"p"),
            (b"a", b"p\0"),
        ] {
            assert!(question(user, password).to_bytes().is_none());
        }
    }

    #[test]
    fn datagrams_that_are_no_question_are_refused() {
        let bytes = question(b"anna", b"secret").to_bytes().expect("valid");
        for length in 0..bytes.len() {
            assert!(PamQuestion::read(&bytes[..length]).is_none(), "{length}");
        }
        assert!(PamQuestion::read(&[&*bytes, b"x"].concat()).is_none());
        // The sender's limits are not believed.
        let part = |part: &[u8]| [&(part.len() as u16).to_be_bytes()[..], part].concat();
        let long = [part(b"http"), part(b"u"), part(&[b'p'; 600]), part(b"")].concat();
        assert!(PamQuestion::read(&long).is_none());
        let nul = [part(b"http"), part(b"u\0"), part(b"p"), part(b"")].concat();
        assert!(PamQuestion::read(&nul).is_none());
        let least = [part(b"http"), part(b"u"), part(b""), part(b"")].concat();
        assert!(PamQuestion::read(&least).is_some());
    }

    #[test]
    fn answers_arrive_and_long_ones_are_cut() {
        for reply in [
            PamReply::Right,
            PamReply::Refused("Authentication failure".to_owned()),
            PamReply::Unavailable(String::new()),
        ] {
            assert_eq!(PamReply::read(&reply.to_bytes()), Some(reply));
        }
        let long = PamReply::Refused("x".repeat(1000)).to_bytes();
        assert_eq!(long.len(), REPLY_BYTES_MAX);
        assert!(PamReply::read(&long).is_some());
        for bytes in [&b""[..], b"Rx", b"x", &[b'N'; REPLY_BYTES_MAX + 1]] {
            assert_eq!(PamReply::read(bytes), None);
        }
    }
}
