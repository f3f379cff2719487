//! Replies to `petrel top`: writes the status to connections of the control socket, which the keeper hands
//! over.

use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::shared::Shared;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The replies that are being written.
#[derive(Default)]
pub(super) struct Snapshots {
    count: Arc<AtomicUsize>,
}

impl Snapshots {
    /// Writes the status to `connection`, in a thread of its own: making the text takes milliseconds, and the
    /// client may read slowly. Beyond [`WRITERS_MAX`] the connection is closed without a reply.
    pub(super) fn write(&self, shared: &Arc<Shared>, connection: OwnedFd) {
        if self.count.load(Ordering::Relaxed) >= WRITERS_MAX {
            return;
        }
        let (shared, count) = (Arc::clone(shared), Arc::clone(&self.count));
        count.fetch_add(1, Ordering::Relaxed);
        let counted = Arc::clone(&count);
        let started = thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || {
                // A client that has gone needs no reply.
                let _ = reply(&shared, connection.into());
                counted.fetch_sub(1, Ordering::Relaxed);
            });
        if started.is_err() {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn reply(shared: &Arc<Shared>, connection: UnixStream) -> io::Result<()> {
    let json = modules::status::json(shared).map_err(io::Error::other)?;
    let reply = [b"out ", json.trim_ascii_end(), b"\nexit 0\n"].concat();
    write_within(connection, &reply, WRITE_TIME)
}

/// Writes all of `bytes`, unless the client takes longer than `time` to read them: then the result is `TimedOut`. A
/// timeout of the socket would begin again with each byte that the client reads.
fn write_within(mut connection: UnixStream, mut bytes: &[u8], time: Duration) -> io::Result<()> {
    connection.set_nonblocking(true)?;
    let deadline = Instant::now() + time;
    while !bytes.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        match connection.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let wait = Timespec {
                    tv_sec: left.as_secs() as i64,
                    tv_nsec: left.subsec_nanos().into(),
                };
                let mut writable = [PollFd::new(&connection, PollFlags::OUT)];
                match poll(&mut writable, Some(&wait)) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Replies at the same time.
const WRITERS_MAX: usize = 4;
/// How long the client may take to read a reply.
const WRITE_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_client_that_reads_now_and_then_has_one_deadline() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let (ended, has_ended) = mpsc::channel::<()>();
        let reader = thread::spawn(move || {
            let mut read = vec![0; 64 * 1024];
            for _ in 0..200 {
                let count = client.read(&mut read).expect("the server writes");
                if count == 0 || has_ended.recv_timeout(Duration::from_millis(20)).is_ok() {
                    return;
                }
            }
        });
        let begun = Instant::now();
        let reply = vec![b'x'; 64 << 20];
        let error = write_within(server, &reply, Duration::from_millis(300)).expect_err("late");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        // The reader may have seen the end already.
        let _ = ended.send(());
        reader.join().expect("the reader ends");
    }

    #[test]
    fn a_client_that_reads_gets_all_of_it() {
        let (mut client, server) = UnixStream::pair().expect("a pair");
        let reader = thread::spawn(move || {
            let mut read = Vec::new();
            client.read_to_end(&mut read).map(|_| read.len())
        });
        write_within(server, &vec![b'x'; 3 << 20], Duration::from_secs(10)).expect("in time");
        assert_eq!(reader.join().expect("it ends").expect("it reads"), 3 << 20);
    }
}
