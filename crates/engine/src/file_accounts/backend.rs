//! The names of `server.network-backend`, and what they stand for.

/// How contents of files get to a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkBackend {
    /// What is in memory at once, all else by threads.
    #[default]
    Auto,
    /// Read and sent piece by piece by the worker.
    Write,
    /// Read by the worker and sent together with the head.
    Writev,
    /// By sendfile(2) on the worker's thread.
    LinuxSendfile,
    /// Read by threads, sent by the worker.
    GthreadAio,
    /// By sendfile(2) on threads.
    GthreadSendfile,
    /// Read by the C library, sent by the worker.
    PosixAio,
    /// Read by kernel AIO, sent by sendfile(2) from memory.
    LinuxAioSendfile,
    /// Read by io_uring, sent by the worker.
    IoUring,
}

impl NetworkBackend {
    /// All of them, in the order of their values.
    pub const ALL: [NetworkBackend; 9] = [
        NetworkBackend::Auto,
        NetworkBackend::Write,
        NetworkBackend::Writev,
        NetworkBackend::LinuxSendfile,
        NetworkBackend::GthreadAio,
        NetworkBackend::GthreadSendfile,
        NetworkBackend::PosixAio,
        NetworkBackend::LinuxAioSendfile,
        NetworkBackend::IoUring,
    ];

    /// Its name in configurations and counters.
    pub const fn name(self) -> &'static str {
        match self {
            NetworkBackend::Auto => "auto",
            NetworkBackend::Write => "write",
            NetworkBackend::Writev => "writev",
            NetworkBackend::LinuxSendfile => "linux-sendfile",
            NetworkBackend::GthreadAio => "gthread-aio",
            NetworkBackend::GthreadSendfile => "gthread-sendfile",
            NetworkBackend::PosixAio => "posix-aio",
            NetworkBackend::LinuxAioSendfile => "linux-aio-sendfile",
            NetworkBackend::IoUring => "io_uring",
        }
    }

    /// The one of this name. `sendfile` is lighttpd's name for the best one there is.
    pub fn named(name: &str) -> Option<NetworkBackend> {
        if name == "sendfile" {
            return Some(NetworkBackend::LinuxSendfile);
        }
        let mut all = NetworkBackend::ALL.into_iter();
        all.find(|backend| backend.name() == name)
    }

    /// Whether the worker waits for the disk itself.
    pub(crate) const fn waits(self) -> bool {
        matches!(
            self,
            NetworkBackend::Write | NetworkBackend::Writev | NetworkBackend::LinuxSendfile
        )
    }

    /// Whether it is threads of the process that read what is not in memory, so that one that looks a file up
    /// can read its first bytes as well.
    pub(crate) const fn reads_by_threads(self) -> bool {
        matches!(self, NetworkBackend::Auto | NetworkBackend::GthreadAio)
    }

    /// Whether reads of disks wait in queues of the workers, and the kernel or the C library has them.
    pub(crate) const fn reads_by_queue(self) -> bool {
        matches!(
            self,
            NetworkBackend::PosixAio | NetworkBackend::LinuxAioSendfile | NetworkBackend::IoUring
        )
    }

    /// Whether chunks are read while the worker goes on.
    pub(crate) const fn reads_elsewhere(self) -> bool {
        !self.waits() && !matches!(self, NetworkBackend::GthreadSendfile)
    }
}
