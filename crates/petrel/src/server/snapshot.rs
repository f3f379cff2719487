//! Replies to `petrel top`: writes the status to connections of the control socket, which the keeper hands
//! over.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use engine::shared::Shared;

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

fn reply(shared: &Arc<Shared>, mut connection: UnixStream) -> std::io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_write_timeout(Some(WRITE_TIME))?;
    let json = modules::status::json(shared);
    let reply = [b"out ", json.trim_ascii_end(), b"\nexit 0\n"].concat();
    connection.write_all(&reply)
}

/// Replies at the same time.
const WRITERS_MAX: usize = 4;
/// How long one write may wait for the client.
const WRITE_TIME: Duration = Duration::from_secs(5);
