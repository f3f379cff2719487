//! The messages between the keeper and a server process, over a socket pair that preserves message
//! boundaries.
//!
//! One message is one datagram. A descriptor travels with the message that is about it. When one of the
//! processes ends, the other one sees the end of the stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use engine::worker::Cut;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// What the keeper tells the server process.
#[derive(Debug)]
pub(crate) enum Order {
    /// All sockets listen: start the workers.
    Go,
    /// Everything else is ready: let the workers accept connections.
    Serve,
    /// Finish the open requests within this time; a new server process has taken over the listeners.
    Succeeded(Duration),
    /// Finish the open requests within this time; the server is stopping.
    Finish(Duration),
    /// Abort the open requests and exit.
    Stop(Cut),
    /// Report how many connections and requests are open.
    Count,
    /// Write the log with this number in the list of targets to this descriptor from now on.
    Log(u16, OwnedFd),
    /// TLS files have changed; the descriptor holds their contents.
    Tls(OwnedFd),
    /// Write the status to this connection of the control socket, and close it.
    Snapshot(OwnedFd),
}

/// What the server process tells the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// Every step that can fail has succeeded; the process waits for [`Order::Go`].
    Prepared,
    /// The workers run and wait for [`Order::Serve`].
    Ready,
    /// The process cannot serve, for this reason.
    Failed(String),
    /// No client has been connected for the time given by `-i`.
    Idle,
    /// The process drains and accepts no more connections.
    Left,
    /// How many connections and requests are open.
    Open {
        /// Open connections, idle ones included.
        connections: u32,
        /// Open requests, as of the last second.
        requests: u32,
    },
    /// The backend program with this number in the configuration has too few processes for its load.
    Overloaded(u16),
    /// The process ends, and lines of its logs are lost.
    LinesLost(String),
}

/// One end of the pair.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
}

impl Control {
    /// Makes both ends of the pair.
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub(crate) fn pair() -> io::Result<(Control, Control)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Control { socket: one }, Control { socket: other }))
    }

    /// Sends an order to the server process.
    ///
    /// # Errors
    /// The server process is gone, or does not read its messages.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        match order {
            Order::Go => self.send(b"G", None),
            Order::Serve => self.send(b"A", None),
            Order::Succeeded(time) => self.send(&timed(b'D', *time), None),
            Order::Finish(time) => self.send(&timed(b'F', *time), None),
            Order::Stop(why) => {
                let number = Cut::ALL.iter().position(|known| known == why);
                self.send(&[b'S', number.map_or(u8::MAX, |number| number as u8)], None)
            }
            Order::Count => self.send(b"C", None),
            Order::Log(number, descriptor) => {
                let [high, low] = number.to_be_bytes();
                self.send(&[b'L', high, low], Some(descriptor.as_fd()))
            }
            Order::Tls(descriptor) => self.send(b"T", Some(descriptor.as_fd())),
            Order::Snapshot(descriptor) => self.send(b"J", Some(descriptor.as_fd())),
        }
    }

    /// Sends news to the keeper.
    ///
    /// # Errors
    /// The keeper is gone, or `WouldBlock`: the socket is full of earlier messages that the keeper has not
    /// read yet.
    pub(crate) fn tell(&self, news: &News) -> io::Result<()> {
        match news {
            News::Prepared => self.send(b"P", None),
            News::Ready => self.send(b"R", None),
            News::Idle => self.send(b"I", None),
            News::Left => self.send(b"L", None),
            News::Open {
                connections,
                requests,
            } => {
                let numbers = [connections.to_be_bytes(), requests.to_be_bytes()].concat();
                self.send(&[&b"N"[..], &numbers].concat(), None)
            }
            News::Overloaded(number) => {
                let [high, low] = number.to_be_bytes();
                self.send(&[b'O', high, low], None)
            }
            News::Failed(why) => self.send(&text(b'X', why), None),
            News::LinesLost(what) => self.send(&text(b'W', what), None),
        }
    }

    /// Sends news to the keeper. Returns false if the socket is full of messages that the keeper has not read
    /// yet.
    ///
    /// # Errors
    /// The keeper is gone.
    pub(crate) fn tell_if_there_is_room(&self, news: &News) -> io::Result<bool> {
        match self.tell(news) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Receives the next order, if one has arrived.
    ///
    /// # Errors
    /// `UnexpectedEof` when the keeper is gone.
    pub(crate) fn next_order(&self) -> io::Result<Option<Order>> {
        let Some((message, descriptor)) = self.receive()? else {
            return Ok(None);
        };
        let order = match (message.as_slice(), descriptor) {
            ([b'G'], None) => Order::Go,
            ([b'A'], None) => Order::Serve,
            ([b'S', number], None) => {
                let why = Cut::ALL.get(usize::from(*number)).ok_or_else(garbled)?;
                Order::Stop(*why)
            }
            ([b'C'], None) => Order::Count,
            ([b'D', rest @ ..], None) => Order::Succeeded(time_in(rest)?),
            ([b'F', rest @ ..], None) => Order::Finish(time_in(rest)?),
            ([b'L', high, low], Some(descriptor)) => {
                Order::Log(u16::from_be_bytes([*high, *low]), descriptor)
            }
            ([b'T'], Some(descriptor)) => Order::Tls(descriptor),
            ([b'J'], Some(descriptor)) => Order::Snapshot(descriptor),
            _ => return Err(garbled()),
        };
        Ok(Some(order))
    }

    /// Receives the next news, if any have arrived.
    ///
    /// # Errors
    /// `UnexpectedEof` when the server process is gone.
    pub(crate) fn next_news(&self) -> io::Result<Option<News>> {
        let Some((message, _)) = self.receive()? else {
            return Ok(None);
        };
        match message.as_slice() {
            b"P" => Ok(Some(News::Prepared)),
            b"R" => Ok(Some(News::Ready)),
            b"I" => Ok(Some(News::Idle)),
            b"L" => Ok(Some(News::Left)),
            [b'O', high, low] => Ok(Some(News::Overloaded(u16::from_be_bytes([*high, *low])))),
            [b'N', numbers @ ..] => {
                let (connections, requests) = numbers.split_at_checked(4).ok_or_else(garbled)?;
                Ok(Some(News::Open {
                    connections: number_in(connections)?,
                    requests: number_in(requests)?,
                }))
            }
            [b'X', why @ ..] => Ok(Some(News::Failed(
                String::from_utf8_lossy(why).into_owned(),
            ))),
            [b'W', what @ ..] => Ok(Some(News::LinesLost(
                String::from_utf8_lossy(what).into_owned(),
            ))),
            _ => Err(garbled()),
        }
    }

    fn send(&self, message: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            assert!(fits, "the space is made for one descriptor");
        }
        sendmsg(
            &self.socket,
            &[IoSlice::new(message)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    fn receive(&self) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut message)],
            &mut ancillary,
            flags,
        );
        let length = match received {
            Ok(received) => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // Linux reports ECONNRESET if the other end was closed with unread messages in it. That is an end
            // of stream, too.
            Err(Errno::CONNRESET) => 0,
            Err(error) => return Err(error.into()),
        };
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        message.truncate(length);
        let mut descriptor = None;
        for ancillary in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(mut passed) = ancillary {
                descriptor = passed.next();
            }
        }
        Ok(Some((message, descriptor)))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn text(word: u8, text: &str) -> Vec<u8> {
    let text = text.bytes().take(MESSAGE_BYTES_MAX - 1);
    std::iter::once(word).chain(text).collect()
}

fn timed(word: u8, time: Duration) -> Vec<u8> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    std::iter::once(word).chain(millis.to_be_bytes()).collect()
}

fn time_in(bytes: &[u8]) -> io::Result<Duration> {
    let bytes = bytes.try_into().map_err(|_| garbled())?;
    Ok(Duration::from_millis(u64::from_be_bytes(bytes)))
}

fn number_in(bytes: &[u8]) -> io::Result<u32> {
    let bytes = bytes.try_into().map_err(|_| garbled())?;
    Ok(u32::from_be_bytes(bytes))
}

fn garbled() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a message between keeper and server is garbled",
    )
}

/// The longest message. A longer text is cut.
const MESSAGE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn orders_arrive_one_by_one_and_the_end_is_seen() {
        let (keeper, server) = Control::pair().expect("a pair");
        assert!(server.next_order().expect("nothing is no error").is_none());
        keeper.order(&Order::Go).expect("sent");
        keeper
            .order(&Order::Finish(Duration::from_millis(8001)))
            .expect("sent");
        assert!(matches!(server.next_order(), Ok(Some(Order::Go))));
        let finish = server.next_order().expect("a message").expect("there");
        assert!(matches!(finish, Order::Finish(time) if time == Duration::from_millis(8001)));
        drop(keeper);
        let error = server.next_order().expect_err("the other end is closed");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_descriptor_travels_with_its_order() {
        let (keeper, server) = Control::pair().expect("a pair");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        keeper.order(&Order::Log(258, writer.into())).expect("sent");
        let Ok(Some(Order::Log(258, descriptor))) = server.next_order() else {
            panic!("a log")
        };
        std::fs::File::from(descriptor)
            .write_all(b"x")
            .expect("written");
        let mut text = String::new();
        reader
            .read_to_string(&mut text)
            .expect("the only writer is closed");
        assert_eq!(text, "x");
    }

    #[test]
    fn every_reason_to_cut_arrives() {
        let (keeper, server) = Control::pair().expect("a pair");
        for why in Cut::ALL {
            keeper.order(&Order::Stop(why)).expect("sent");
            let order = server.next_order().expect("a message").expect("there");
            assert!(matches!(order, Order::Stop(told) if told == why), "{why:?}");
        }
    }

    #[test]
    fn numbers_arrive() {
        let (keeper, server) = Control::pair().expect("a pair");
        let open = News::Open {
            connections: 70_000,
            requests: 3,
        };
        server.tell(&open).expect("sent");
        assert_eq!(keeper.next_news().expect("a message"), Some(open));
        server.tell(&News::Overloaded(513)).expect("sent");
        let news = keeper.next_news().expect("a message");
        assert_eq!(news, Some(News::Overloaded(513)));
    }

    #[test]
    fn news_that_find_no_room_can_be_told_later() {
        let (keeper, server) = Control::pair().expect("a pair");
        let tell = || server.tell_if_there_is_room(&News::Idle);
        while tell().expect("the keeper is there") {}
        while keeper.next_news().expect("it is there").is_some() {}
        assert!(tell().expect("the keeper is there"));
        drop(keeper);
        assert!(tell().is_err());
    }

    #[test]
    fn a_long_reason_is_cut() {
        let (keeper, server) = Control::pair().expect("a pair");
        server
            .tell(&News::Failed("x".repeat(10_000)))
            .expect("sent");
        let Ok(Some(News::Failed(why))) = keeper.next_news() else {
            panic!("a reason")
        };
        assert_eq!(why.len(), MESSAGE_BYTES_MAX - 1);
    }
}
