//! The stages of a request. Logs, header fields, metrics, plots and records name them.

/// Nanoseconds, of a monotonic clock if they are a time.
pub type Nanos = u64;

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal $kind:ident;)+) => {
        /// A stage of an exchange. The list is complete: log, headers, metrics and plots all go through it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Stage { $($(#[doc = $doc])+ $variant,)+ }

        impl Stage {
            /// Every stage, in the order in which they happen.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant,)+];

            /// The name used in logs, `Server-Timing`, metrics and plots.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self { $(Stage::$variant => $name,)+ }
            }

            /// Whether the worker works in this stage, or the request waits.
            #[inline]
            pub const fn kind(self) -> StageKind {
                match self { $(Stage::$variant => StageKind::$kind,)+ }
            }

            /// What the time of this stage is, for documentation and displays.
            pub const fn meaning(self) -> &'static str {
                match self { $(Stage::$variant => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

/// What happens in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// The worker works for this request.
    Work,
    /// The request waits: for the client, a disk, a backend or the worker.
    Wait,
}

stages! {
    /// The TLS handshake, counted for the first request on its connection.
    Tls "tls" Wait;
    /// The request was ready, and its worker ran other tasks.
    Lag "lag" Wait;
    /// From the first byte of the request head to its last. The time before the first byte does not count. Of
    /// pipelined requests, each begins when the response before it was sent.
    ReadHead "read-head" Wait;
    /// Parsing the head and, unless there is a stage `match`, choosing the settings.
    Parse "parse" Work;
    /// Choosing the settings by conditions that are evaluated for each request.
    Match "match" Work;
    /// Finding out who the client is and which URL it wants (rewrites, limits).
    Translate "translate" Work;
    /// What is decided by the URL: access rules, redirects, and waiting for passwords to be checked.
    Authorize "authorize" Work;
    /// From the URL path to the physical path.
    Map "map" Work;
    /// Waiting for a free disk thread.
    DiskQueue "disk-queue" Wait;
    /// A disk thread opens a path: the file system walks to the file and opens it.
    Open "open" Wait;
    /// A disk thread asks the file system for the metadata of a file.
    Stat "stat" Wait;
    /// A disk thread or the kernel reads a file that is not in memory.
    ReadFile "read-file" Wait;
    /// Running scripts in the server, and waiting for what they wait for.
    Lua "lua" Work;
    /// Looking for a cached page, and waiting for a page that is being fetched for another client.
    Cache "cache" Wait;
    /// Receiving the request body.
    RequestBody "request-body" Wait;
    /// Waiting for the address of a backend, or for one of the connections that the configuration allows.
    BackendQueue "backend-queue" Wait;
    /// Connecting to a backend, or starting a CGI program.
    BackendConnect "backend-connect" Wait;
    /// Waiting, in this server or in the backend's queue, until a process of the backend took the request, as
    /// exactly as that can be known.
    BackendAccept "backend-accept" Wait;
    /// Sending the request to a backend.
    BackendSend "backend-send" Wait;
    /// From the end of the request to the first byte of the backend's reply.
    BackendFirstByte "backend-first-byte" Wait;
    /// From the first byte of a backend's reply to its last, as far as the response waits for it; also while
    /// the reply is passed on as it arrives.
    BackendBody "backend-body" Wait;
    /// The hook that makes the response.
    Content "content" Work;
    /// Changing headers, compressing.
    Transform "transform" Work;
    /// Passing the response to the kernel.
    Send "send" Work;
    /// Waiting until a bandwidth limit of the configuration allows more.
    Throttle "throttle" Wait;
    /// Waiting for the client to take the response.
    ClientDrain "client-drain" Wait;
}
