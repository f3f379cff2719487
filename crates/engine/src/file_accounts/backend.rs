//! The names of `server.network-backend` and their meanings.

/// How the contents of files get to a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkBackend {
    /// Sends what is in the page cache at once; disk threads read the rest.
    #[default]
    Auto,
    /// The worker reads and sends in turn.
    Write,
    /// The worker reads, and sends the first part together with the head.
    Writev,
    /// The worker calls sendfile(2).
    LinuxSendfile,
    /// Disk threads read, the worker sends.
    GthreadAio,
    /// Disk threads call sendfile(2).
    GthreadSendfile,
    /// The C library reads, the worker sends.
    PosixAio,
    /// Kernel AIO reads into memory, and sendfile(2) sends from there.
    LinuxAioSendfile,
    /// io_uring reads, the worker sends.
    IoUring,
}

impl NetworkBackend {
    /// All backends, in the order of their numbers.
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

    /// The name in configurations and counters.
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

    /// The backend with this name. `sendfile` is lighttpd's name for the system's sendfile call.
    pub fn named(name: &str) -> Option<NetworkBackend> {
        if name == "sendfile" {
            return Some(NetworkBackend::LinuxSendfile);
        }
        let mut all = NetworkBackend::ALL.into_iter();
        all.find(|backend| backend.name() == name)
    }

    /// Whether the worker itself waits for the disk.
    pub(crate) const fn waits(self) -> bool {
        matches!(
            self,
            NetworkBackend::Write | NetworkBackend::Writev | NetworkBackend::LinuxSendfile
        )
    }

    /// Whether disk threads read contents. Then the thread that looks a file up can read its first bytes as
    /// well.
    pub(crate) const fn reads_by_threads(self) -> bool {
        matches!(self, NetworkBackend::Auto | NetworkBackend::GthreadAio)
    }

    /// Whether the kernel or the C library reads, by way of a queue of each worker.
    pub(crate) const fn reads_by_queue(self) -> bool {
        matches!(
            self,
            NetworkBackend::PosixAio | NetworkBackend::LinuxAioSendfile | NetworkBackend::IoUring
        )
    }

    /// Whether chunks are read while the worker does other work.
    pub(crate) const fn reads_elsewhere(self) -> bool {
        !self.waits() && !matches!(self, NetworkBackend::GthreadSendfile)
    }
}
