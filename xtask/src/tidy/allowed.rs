//! What the checks of this folder allow, and why.

/// Rooms that import each other.
pub struct Circle {
    /// The folder of the crate.
    pub in_crate: &'static str,
    /// The rooms, sorted.
    pub rooms: &'static [&'static str],
}

/// A static that changes, or is thread-local.
pub struct Global {
    /// The file.
    pub path: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Why it is kept neither in the worker nor in `Shared`.
    #[expect(dead_code, reason = "it is for readers")]
    pub reason: &'static str,
}

/// Circles of imports. There are none.
pub const CIRCLES: &[Circle] = &[];

/// Globals that cannot be avoided.
pub const GLOBALS: &[Global] = &[
    Global {
        path: "crates/engine/src/blocking/mod.rs",
        name: "POOLS",
        reason: "one set of disk threads for all workers of the process; scripts' programs have no `Shared`",
    },
    Global {
        path: "crates/engine/src/blocking/files.rs",
        name: "COUNT",
        reason: "numbers of temporary names, unique in the process",
    },
    Global {
        path: "crates/engine/src/body/spool/memory.rs",
        name: "COUNTED",
        reason: "the budget of this thread's bodies; they are dropped where no worker is at hand",
    },
    Global {
        path: "crates/engine/src/body/spool/temporary.rs",
        name: "NEXT",
        reason: "numbers of temporary names, unique in the process",
    },
    Global {
        path: "crates/modules/src/auth/nonce.rs",
        name: "KEY",
        reason: "a key that the keeper makes and all server processes have by the fork; so nonces outlive a reload",
    },
    Global {
        path: "crates/engine/src/clock.rs",
        name: "TURN",
        reason: "the hook of the runtime that sets it belongs to no worker",
    },
    Global {
        path: "crates/engine/src/system_calls.rs",
        name: "CALLS",
        reason: "files and sockets, whose calls are counted, know no worker",
    },
    Global {
        path: "crates/modules/src/status/pages.rs",
        name: "ASSET_VERSION",
        reason: "a constant, made once",
    },
    Global {
        path: "crates/engine/src/error_page.rs",
        name: "PAGES",
        reason: "a constant, made once",
    },
    Global {
        path: "crates/engine/src/exchange/settings/mime.rs",
        name: "BUILT_IN",
        reason: "a constant, made once",
    },
    Global {
        path: "crates/engine/src/exchange/worker.rs",
        name: "WORKERS",
        reason: "numbers of workers, unique in the process",
    },
    Global {
        path: "crates/engine/src/log/local_time.rs",
        name: "ZONE",
        reason: "a constant of the machine, read once",
    },
    Global {
        path: "crates/engine/src/mounts.rs",
        name: "TABLE",
        reason: "the kernel's table of mounts: one for the process, as the kernel has it",
    },
    Global {
        path: "crates/engine/src/mounts.rs",
        name: "SOURCE",
        reason: "the kernel's table of mounts: opened before chroot(2)",
    },
    Global {
        path: "crates/engine/src/mounts.rs",
        name: "WATCHED",
        reason: "the kernel's table of mounts: opened before chroot(2)",
    },
    Global {
        path: "crates/engine/src/mounts.rs",
        name: "ROOT",
        reason: "where the process has changed its root to, set once",
    },
    Global {
        path: "crates/engine/src/network_backend/steps/mod.rs",
        name: "WATCH",
        reason: "the ring of a disk thread, which has no worker",
    },
    Global {
        path: "crates/engine/src/paths/open.rs",
        name: "HAS",
        reason: "what the kernel can do, found out once",
    },
    Global {
        path: "crates/engine/src/paths/open.rs",
        name: "HAS",
        reason: "what the kernel can do, found out once",
    },
    Global {
        path: "crates/engine/src/waits.rs",
        name: "SLOW_PEER",
        reason: "pools of connections to stores know no worker",
    },
    Global {
        path: "crates/lua/src/budget/proof.rs",
        name: "STOP",
        reason: "what this build of LuaJIT can do, found out once",
    },
    Global {
        path: "crates/lua/src/budget/stop.rs",
        name: "RUNNING",
        reason: "a signal handler reaches nothing else",
    },
    Global {
        path: "crates/lua/src/budget/stop.rs",
        name: "INSTALLED",
        reason: "signal handlers belong to the process",
    },
    Global {
        path: "crates/lua/src/budget/watchdog.rs",
        name: "WATCHDOG",
        reason: "one thread watches all threads that run Lua",
    },
    Global {
        path: "crates/lua/src/budget/watchdog.rs",
        name: "START",
        reason: "one thread watches all threads that run Lua",
    },
    Global {
        path: "crates/modules/src/cache_dir.rs",
        name: "NUMBER",
        reason: "numbers of temporary names, unique in the process",
    },
    Global {
        path: "crates/modules/src/gateway/cgi/spawn.rs",
        name: "ONCE",
        reason: "descriptors that the process was given are marked once",
    },
    Global {
        path: "crates/modules/src/page_cache/disk.rs",
        name: "COUNT",
        reason: "numbers of temporary names, unique in the process",
    },
    Global {
        path: "crates/modules/src/page_cache/entry.rs",
        name: "CONTENTS",
        reason: "numbers of contents, unique in the process",
    },
    Global {
        path: "crates/modules/src/page_cache/options.rs",
        name: "BYPASS_HEADERS",
        reason: "a constant, made once",
    },
    Global {
        path: "crates/petrel/src/fcgi_magnet/worker.rs",
        name: "TOLD",
        reason: "what is said once in the life of the program",
    },
    Global {
        path: "crates/sys/src/read_queue/direct.rs",
        name: "OPEN_FILES",
        reason: "the descriptor of /proc/self/fd: one for the process",
    },
    Global {
        path: "crates/sys/src/read_queue/posix_aio.rs",
        name: "ONCE",
        reason: "the C library's queue belongs to the process",
    },
    Global {
        path: "crates/sys/src/spawn.rs",
        name: "STARTS",
        reason: "descriptors are the process's: counts the forks under way",
    },
    Global {
        path: "crates/lua/src/direct.rs",
        name: "INSIDE",
        reason: "whether this thread is called by compiled code; a handle to any state must refuse meanwhile",
    },
];

/// Names that several types of one crate may have, by crate.
pub const NAMES: &[(&str, &[&str])] = &[
    // Redis and OTLP both call it so.
    ("proto", &["Value"]),
];
