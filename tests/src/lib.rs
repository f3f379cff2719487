//! What whole-server tests are written with: a server, a tree of files, clients that do as they are
//! told, and a look at what the server's processes hold.
//!
//! A test in `tests/` reads like a script: build a [`Tree`], start a [`Server`] on it, send bytes with
//! a [`Client`], compare the [`Response`]. The server is the real `petrel` program in processes of its
//! own, on 127.0.0.1 and a port nobody else uses; it is ended by its process id when the
//! [`Server`] goes out of scope, and what it logged is shown if the test failed.
//!
//! Knows nothing of the server's inside: only the program's command line, signals, sockets and
//! logs, and `/proc`.

#![forbid(unsafe_code)]

mod backend;
mod base64;
mod binary;
mod browser;
mod client;
mod command;
mod differential;
pub mod fastcgi;
pub mod http2;
mod load;
mod package;
mod ports;
mod process;
mod response;
mod server;
mod slow_fs;
mod stream;
mod system_calls;
mod tls;
mod tree;

pub use backend::{Backend, Deaf, Exchange, Record, Speaks, directive, fastcgi_record};
pub use base64::base64;
pub use binary::petrel;
pub use browser::Browser;
pub use client::{Client, ClientError};
pub use command::{Finished, curl, is_installed, run};
pub use differential::{Difference, Differential};
pub use load::{Load, LoadResult};
pub use package::{package, tool};

pub use ports::free_port;
pub use process::{Holdings, ProcessTree, raise_descriptor_limit};
pub use response::{Response, ResponseError};
pub use server::{Builder, Server};
pub use slow_fs::{Operation, SlowFs};
pub use stream::Address;
pub use system_calls::{Calls, Tracer};
pub use tls::{Authority, Identity, TlsFront, TlsMode, TlsStream};
pub use tree::Tree;

use std::io::Write;
use std::time::{Duration, Instant};

/// How long a test waits for something that should happen at once. Long, because a machine that
/// builds and tests at the same time is slow; a test that passes never waits that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Far longer than anything takes that does not have to wait, also on such a machine, and far shorter than the
/// server waits for others unless it is told to.
pub const SOON: Duration = Duration::from_secs(30);

/// Says that a test does not run, past the test harness, which swallows what `println!` prints. The
/// summary of `cargo xtask test` repeats the line.
pub fn skip(test: &str, why: &str) {
    // There is nobody to tell if standard output is closed.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {why}");
}

/// Asks `condition` again and again until it is true, for [`PATIENCE`] at most. Returns whether it
/// became true.
pub fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    condition()
}
