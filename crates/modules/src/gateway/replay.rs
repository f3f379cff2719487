//! Whether a request may be sent again: one rule, for backends and for `petrel.http`.
//!
//! Which methods are idempotent is decided by [`Method::is_idempotent`] alone.

use petrel_engine::proto::method::Method;

/// A failed attempt to get a reply to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedAttempt {
    /// At least one byte of a reply arrived.
    pub(crate) reply_has_begun: bool,
    /// How many bytes of the request the kernel took, in all writes of the attempt.
    pub(crate) bytes_written: u64,
    /// The whole request body is still there to be sent once more.
    pub(crate) body_is_held: bool,
    /// The whole reply was that the backend has no room for the request: a FastCGI record END_REQUEST with
    /// FCGI_OVERLOADED, and nothing before it.
    pub(crate) is_refused: bool,
}

impl FailedAttempt {
    /// Whether the request may be sent again. How the connection ended does not count: a backend that closes
    /// a connection with unread bytes resets it (on TCP and on unix sockets), even after it has carried out
    /// the request.
    ///
    /// A refusal counts as no reply: the backend has done nothing with the request.
    pub(crate) fn may_be_repeated(self, method: Method) -> bool {
        let backend_cannot_have_acted = self.bytes_written == 0;
        let is_lost =
            !self.reply_has_begun && (backend_cannot_have_acted || method.is_idempotent());
        self.body_is_held && (is_lost || self.is_refused)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use petrel_engine::subrequest::{Subrequest, SubrequestHead};
    use petrel_engine::testing::Site;

    use super::super::PROXY;
    use super::*;

    const LOST: FailedAttempt = FailedAttempt {
        reply_has_begun: false,
        bytes_written: 100,
        body_is_held: true,
        is_refused: false,
    };

    #[test]
    fn only_idempotent_requests_are_repeated_once_a_byte_was_written() {
        for &method in Method::ALL {
            assert_eq!(LOST.may_be_repeated(method), method.is_idempotent());
            let unwritten = FailedAttempt {
                bytes_written: 0,
                ..LOST
            };
            assert!(unwritten.may_be_repeated(method), "{method}");
        }
        assert!(!LOST.may_be_repeated(Method::Post));
        assert!(LOST.may_be_repeated(Method::Get));
    }

    #[test]
    fn nothing_is_repeated_that_was_answered_or_is_gone() {
        for bytes_written in [0, 100] {
            let answered = FailedAttempt {
                reply_has_begun: true,
                bytes_written,
                ..LOST
            };
            let gone = FailedAttempt {
                body_is_held: false,
                bytes_written,
                ..LOST
            };
            assert!(!answered.may_be_repeated(Method::Get));
            assert!(!gone.may_be_repeated(Method::Get));
        }
    }

    #[test]
    fn a_refused_request_is_repeated_if_its_body_is_held() {
        let refused = FailedAttempt {
            reply_has_begun: true,
            is_refused: true,
            ..LOST
        };
        let gone = FailedAttempt {
            body_is_held: false,
            ..refused
        };
        assert!(refused.may_be_repeated(Method::Post));
        assert!(!gone.may_be_repeated(Method::Get));
    }

    /// Answers one request on each of two connections, and closes the first one when the test tells it to.
    fn backend(
        listener: std::net::TcpListener,
        close: Receiver<()>,
        closed: Sender<()>,
    ) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().expect("the gateway connects");
                let count = stream.read(&mut [0; 4096]).expect("a request");
                assert!(count > 0, "the gateway wrote to the closed connection");
                let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                stream.write_all(reply).expect("the gateway reads");
                close.recv().expect("the test goes on");
                drop(stream);
                closed.send(()).expect("the test goes on");
            }
        })
    }

    /// The test blocks the worker's thread while the backend closes the connection. So the worker has not
    /// polled its sockets when it sends the next request.
    #[tokio::test(flavor = "local")]
    async fn a_post_takes_a_new_connection_if_the_backend_has_just_closed_the_kept_one() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let (close, must_close) = channel();
        let (closed, is_closed) = channel();
        let backend = backend(listener, must_close, closed);
        let config = format!(
            "server.document-root = \"/nonexistent\"
            proxy.server = ( \"/b\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port} )) )"
        );
        let site = Site::new(&config, &[&PROXY]);
        let parent = site.unanswered("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        for _ in 0..2 {
            let mut head = SubrequestHead::get(b"/b/x");
            head.method = Method::Post;
            head.body = "body".into();
            let mut asked = Subrequest::new(&parent, head).expect("it is sound");
            assert_eq!(asked.head().await.0, 200);
            assert_eq!(asked.collect(100).await.expect("it is short"), "ok");
            close.send(()).expect("the backend listens");
            is_closed.recv().expect("it has closed the connection");
        }
        backend.join().expect("both requests came");
    }
}
