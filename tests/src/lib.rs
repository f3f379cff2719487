//! Tools for tests of the whole server: a server, a tree of files, scripted clients, and a look at what the
//! server's processes hold.
//!
//! A test in `tests/` reads like a script: build a [`Tree`], start a [`Server`] on it, send bytes with a
//! [`Client`], compare the [`Response`]. The server is the real `petrel` program in processes of its own, on
//! 127.0.0.1 and a port of its own. It is ended by its process id when the [`Server`] goes out of scope, and
//! its log is shown if the test failed.
//!
//! Knows nothing of the server's inside: only the program's command line, signals, sockets and logs, and
//! `/proc`.

#![forbid(unsafe_code)]

mod backend;
mod base64;
mod binary;
mod browser;
mod client;
mod command;
mod component;
mod differential;
pub mod fastcgi;
mod fcgi_magnet;
mod holders;
pub mod http2;
mod load;
mod package;
mod ports;
mod process;
mod response;
pub mod scripts;
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
pub use component::{Component, Listens, can_run};
pub use differential::{Difference, Differential};
pub use fcgi_magnet::Magnet;
pub use holders::expect_note_everywhere;
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

/// How long a test waits for something that should happen at once. It is long because a machine that builds
/// and tests at the same time is slow; a test that passes never waits that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Far more time than anything takes that does not have to wait, even on such a machine, and far less than
/// the server's usual time limits.
pub const SOON: Duration = Duration::from_secs(30);

/// Prints that a test is skipped. It bypasses the test harness, which swallows the output of `println!`. The
/// summary of `cargo xtask test` repeats the line.
pub fn skip(test: &str, why: &str) {
    // If standard output is closed, there is no other place to report to.
    let _ = writeln!(std::io::stdout(), "SKIPPED {test}: {why}");
}

/// Checks `condition` again and again until it is true, but no longer than [`PATIENCE`]. Returns whether it
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
