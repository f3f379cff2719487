//! Systems that forbid the calls of a network backend: it uses threads instead, and says so.

use std::fs;
use std::process::Command;

use petrel_tests::{Server, is_installed, petrel, skip};

use rustix::process::geteuid;

use super::{CONTENT, evict, server, told};

/// Runs a program for which a system call fails: `python3 -c FORBID CALL ERRNO PROGRAM…`.
const FORBID: &str = r#"
import ctypes, os, struct, sys
call, errno = int(sys.argv[1]), int(sys.argv[2])
statements = [
    (0x20, 0, 0, 0),                  # load the number of the system call
    (0x15, 0, 1, call),               # is it this one?
    (0x06, 0, 0, 0x00050000 | errno), # it fails
    (0x06, 0, 0, 0x7fff0000),         # all others are allowed
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in statements))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(statements), ctypes.addressof(code)))
prctl = ctypes.CDLL(None, use_errno=True).prctl
prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
assert prctl(38, 1, 0, 0, 0) == 0     # PR_SET_NO_NEW_PRIVS
assert prctl(22, 2, ctypes.addressof(program), 0, 0) == 0  # PR_SET_SECCOMP
os.execv(sys.argv[3], sys.argv[3:])
"#;

#[cfg(target_arch = "x86_64")]
const IO_SETUP: u32 = 206;
#[cfg(not(target_arch = "x86_64"))]
const IO_SETUP: u32 = 0;
const IO_URING_SETUP: u32 = 425;

const EPERM: u32 = 1;
const EAGAIN: u32 = 11;
const ENOMEM: u32 = 12;
const ENOSYS: u32 = 38;

/// Starts a server for which a system call fails. `None` if Python is missing.
fn start(test: &str, call: u32, errno: u32) -> Option<Server> {
    if !is_installed("python3") {
        skip(test, "python3 is not installed");
        return None;
    }
    let mut command = Command::new("python3");
    command
        .args(["-c", FORBID, &call.to_string(), &errno.to_string()])
        .arg(petrel())
        .arg("-D");
    Some(server().start_as(command))
}

/// The version of the running kernel, by which its features are known.
fn kernel() -> [u32; 2] {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("there is /proc");
    let mut parts = release.split(|byte: char| !byte.is_ascii_digit());
    [(); 2].map(|()| {
        parts
            .next()
            .and_then(|part| part.parse().ok())
            .expect("a number")
    })
}

fn expect_all_of_it(server: &Server, backend: &str) {
    for _ in 0..4 {
        evict(server.tree(), "www/large.bin");
        let response = server.get(&format!("/{backend}"));
        assert!(response.body == *CONTENT, "{backend}");
    }
}

/// It takes so long because three servers send 24 MB from the disk, eight times each.
#[test]
fn no_io_uring() {
    for (errno, why) in [
        (EPERM, "io_uring_setup is forbidden, by seccomp or"),
        (ENOSYS, "the kernel has no io_uring"),
        (ENOMEM, "the limit of locked memory is too low"),
    ] {
        let Some(server) = start("no_io_uring", IO_URING_SETUP, errno) else {
            return;
        };
        server.expect_log(&format!("network backend io_uring is not possible: {why}"));
        expect_all_of_it(&server, "io_uring");
        // Other backends are not affected.
        if let Err(why) = told(&server, "linux-aio-sendfile") {
            return skip("no_io_uring", &why);
        }
        expect_all_of_it(&server, "linux-aio-sendfile");
    }
}

#[test]
fn no_kernel_aio() {
    for (errno, why) in [
        (EPERM, "io_setup is forbidden"),
        (EAGAIN, "all contexts that fs.aio-max-nr allows"),
    ] {
        let Some(server) = start("no_kernel_aio", IO_SETUP, errno) else {
            return;
        };
        server.expect_log(&format!(
            "network backend linux-aio-sendfile is not possible: {why}"
        ));
        expect_all_of_it(&server, "linux-aio-sendfile");
    }
}

#[test]
fn no_locked_memory() {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "ulimit -l 0 && exec \"$0\" \"$@\""])
        .arg(petrel())
        .arg("-D");
    if let Err(why) = told(&server().start(), "io_uring") {
        return skip("no_locked_memory", &why);
    }
    let server = server().start_as(command);
    let told = told(&server, "io_uring");
    // Kernels since 5.12 do not charge rings to a limit, and no kernel does so for root.
    if kernel() >= [5, 12] || geteuid().is_root() {
        assert!(told.is_ok(), "{told:?}");
    } else {
        let why = told.expect_err("a ring takes locked memory");
        let expected = "the limit of locked memory is too low";
        assert!(why.starts_with(expected), "{why}");
    }
    expect_all_of_it(&server, "io_uring");
}
