//! The server process's way to the PAM helper, which has the keeper's privileges.
//!
//! All server processes send into one socket, which the helper reads; each question brings the socket that
//! its answer goes to. So a question that the helper has not read waits for the next helper when one has
//! crashed, and a check that dies ends the wait of its own request at once.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};

use super::message::{PamQuestion, PamReply, QUESTION_BYTES_MAX, REPLY_BYTES_MAX};

/// The end that questions are sent into.
#[derive(Debug)]
pub struct PamDoor(OwnedFd);

/// The end that the helper reads.
#[derive(Debug)]
pub struct PamInbox(OwnedFd);

/// Where the answer to one question goes.
#[derive(Debug)]
pub struct PamAsker(OwnedFd);

/// Both ends.
///
/// # Errors
/// Those of socketpair(2).
pub fn pam_pair() -> io::Result<(PamDoor, PamInbox)> {
    let (door, inbox) = pair()?;
    Ok((PamDoor(door), PamInbox(inbox)))
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

impl PamDoor {
    /// The same end again, for another process.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn copy(&self) -> io::Result<PamDoor> {
        self.0.try_clone().map(PamDoor)
    }

    /// Sends a question. Its answer can be read from the socket that comes back.
    ///
    /// # Errors
    /// `WouldBlock`: the helper has yet to read so many others that there is no room. Or descriptors have run
    /// out.
    pub(super) fn ask(&self, question: &[u8]) -> io::Result<OwnedFd> {
        let (ours, theirs) = pair()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = [theirs.as_fd()];
        let fits = ancillary.push(SendAncillaryMessage::ScmRights(&passed));
        assert!(fits, "the space is made for one descriptor");
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(question)], &mut ancillary, flags)?;
        Ok(ours)
    }
}

/// Waits for the answer.
///
/// # Errors
/// The check has ended without one, or it is no answer.
pub(super) async fn answer(socket: OwnedFd) -> io::Result<PamReply> {
    let socket = petrel_sys::readiness::readable(socket)?;
    loop {
        let mut ready = socket.readable().await?;
        let mut buffer = [0; REPLY_BYTES_MAX + 1];
        match recv(socket.get_ref(), &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, length)) => {
                let bytes = buffer.get(..length).unwrap_or_default();
                return PamReply::read(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
            Err(Errno::AGAIN | Errno::INTR) => ready.clear_ready(),
            Err(error) => return Err(error.into()),
        }
    }
}

impl PamInbox {
    /// The same end again, for another process.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub fn copy(&self) -> io::Result<PamInbox> {
        self.0.try_clone().map(PamInbox)
    }

    /// The next question, if there is one. Datagrams that are none are left out, and their senders see the
    /// end of their socket.
    ///
    /// # Errors
    /// No server process and no keeper has the other end any more, or the kernel has no memory.
    pub fn next(&self) -> io::Result<Option<(PamQuestion, PamAsker)>> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut message = [0; QUESTION_BYTES_MAX + 1];
            let mut parts = [IoSliceMut::new(&mut message)];
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let length = match recvmsg(&self.0, &mut parts, &mut ancillary, flags) {
                Ok(received) => received.bytes,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut asker = None;
            for part in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(mut passed) = part {
                    asker = passed.next().map(PamAsker);
                }
            }
            if length == 0 && asker.is_none() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let question = PamQuestion::read(message.get(..length).unwrap_or_default());
            if let (Some(question), Some(asker)) = (question, asker) {
                return Ok(Some((question, asker)));
            }
        }
    }
}

impl PamAsker {
    /// Answers. A client that has gone gets none.
    pub fn tell(&self, reply: &PamReply) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = send(&self.0, &reply.to_bytes(), flags);
    }

    /// Whether the request still waits for the answer.
    pub fn waits(&self) -> bool {
        let mut byte = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(recv(&self.0, &mut byte[..], flags), Err(Errno::AGAIN))
    }
}

impl AsFd for PamInbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(user: &[u8]) -> PamQuestion {
        PamQuestion {
            service: b"http".to_vec(),
            user: user.to_vec(),
            password: b"secret".to_vec(),
            host: Vec::new(),
        }
    }

    fn run<F: Future>(future: F) -> F::Output {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_io().build().expect("a runtime");
        runtime.block_on(future)
    }

    #[test]
    fn each_question_gets_its_own_answer() {
        let (door, inbox) = pam_pair().expect("a pair");
        assert!(inbox.next().expect("nothing is no error").is_none());
        let ask = |user: &[u8]| door.ask(&question(user).to_bytes().expect("valid"));
        let (anna, bob) = (ask(b"anna").expect("sent"), ask(b"bob").expect("sent"));
        // Another helper goes on where the first one was.
        let (first, to_anna) = inbox.next().expect("received").expect("a question");
        let next = inbox.copy().expect("a copy");
        let (second, to_bob) = next.next().expect("received").expect("a question");
        assert_eq!((&*first.user, &*second.user), (&b"anna"[..], &b"bob"[..]));
        to_bob.tell(&PamReply::Right);
        to_anna.tell(&PamReply::Refused("no".to_owned()));
        run(async {
            let refused = PamReply::Refused("no".to_owned());
            assert_eq!(answer(anna).await.expect("an answer"), refused);
            assert_eq!(answer(bob).await.expect("an answer"), PamReply::Right);
        });
    }

    #[test]
    fn the_end_of_a_check_and_of_a_request_is_seen() {
        let (door, inbox) = pam_pair().expect("a pair");
        let bytes = question(b"anna").to_bytes().expect("valid");
        let waiting = door.ask(&bytes).expect("sent");
        let (_, asker) = inbox.next().expect("received").expect("a question");
        assert!(asker.waits());
        drop(asker);
        let ended = run(answer(waiting)).expect_err("no answer");
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
        drop(door.ask(&bytes).expect("sent"));
        let (_, asker) = inbox.next().expect("received").expect("a question");
        assert!(!asker.waits());
        asker.tell(&PamReply::Right);
        drop(door);
        assert!(inbox.next().is_err());
    }

    #[test]
    fn nonsense_is_left_out_and_a_full_socket_does_not_block() {
        let (door, inbox) = pam_pair().expect("a pair");
        let waiting = door.ask(b"nonsense").expect("sent");
        let bytes = question(b"anna").to_bytes().expect("valid");
        let mut open = vec![door.ask(&bytes).expect("sent")];
        assert!(inbox.next().expect("received").is_some());
        assert!(run(answer(waiting)).is_err());
        let full = (0..100_000).find_map(|_| match door.ask(&bytes) {
            Ok(asked) => {
                open.push(asked);
                None
            }
            Err(error) => Some(error.kind()),
        });
        assert!(full.is_some(), "the number of questions has an end");
        assert!(inbox.next().expect("received").is_some());
    }
}
