//! `petrel spawn`, also under the name of spawn-fcgi.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use rustix::process::Signal;

use crate::harness::{
    PATIENCE, Site, free_port, full, is_alive, is_root_or_skip, petrel, proc_text, run, signal_to,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The processes that a pid file names. Dropping the value ends them.
struct Spawned(Vec<i32>);

impl Spawned {
    fn of(file: &Path) -> Spawned {
        let text = fs::read_to_string(file).expect("a PID file");
        Spawned(
            text.lines()
                .map(|line| line.parse().expect("an id"))
                .collect(),
        )
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        for id in self.0.iter().filter(|id| is_alive(**id)) {
            signal_to(*id, Signal::KILL);
        }
    }
}

/// Runs spawn-fcgi, which is a link to the program, on a socket of the site.
fn spawn(site: &Site, options: &[&str], application: &[&str]) -> Output {
    let link = site.path("spawn-fcgi");
    if !link.exists() {
        symlink(petrel().get_program(), &link).expect("a link");
    }
    let mut command = Command::new(link);
    command
        .arg("-s")
        .arg(site.path("s"))
        .args(options)
        .arg("--")
        .args(application);
    command
        .stdin(std::process::Stdio::null())
        .output()
        .expect("started")
}

#[test]
fn processes_share_one_socket_and_nothing_else() {
    let site = Site::new();
    let pids = site.path("pids");
    let pids_name = pids.to_str().expect("a plain path");
    let options = [
        "-F", "2", "-C", "5", "-P", pids_name, "-M", "0600", "-d", "/",
    ];
    let output = spawn(&site, &options, &["/bin/sleep", "1000"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let spawned = Spawned::of(&pids);
    let told = text(&output.stdout);
    assert_eq!(spawned.0.len(), 2);
    for (id, line) in spawned.0.iter().zip(told.lines()) {
        assert_eq!(
            line,
            format!("spawn-fcgi: child spawned successfully: PID: {id}")
        );
        let mut open: Vec<_> = fs::read_dir(format!("/proc/{id}/fd"))
            .expect("alive")
            .map(|entry| {
                entry
                    .expect("alive")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        open.sort();
        assert_eq!(open, ["0", "1", "2"]);
        let link = |name: &str| fs::read_link(format!("/proc/{id}/{name}")).expect("alive");
        assert!(link("fd/0").to_string_lossy().starts_with("socket:"));
        assert_eq!(link("fd/2"), Path::new("/dev/null"));
        assert_eq!(link("cwd"), Path::new("/"));
        assert!(proc_text(*id, "environ").contains("PHP_FCGI_CHILDREN=5\0"));
    }
    let mode = fs::metadata(site.path("s"))
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    UnixStream::connect(site.path("s")).expect("it listens");
    let again = spawn(&site, &[], &["/bin/sleep", "1000"]);
    assert_eq!(again.status.code(), Some(255));
    assert!(text(&again.stderr).starts_with("spawn-fcgi: socket is already in use, can't spawn"));
}

#[test]
fn what_cannot_be_said_is_done_all_the_same() {
    let site = Site::new();
    let pids = site.path("pids");
    let status = petrel()
        .arg("spawn")
        .arg("-s")
        .arg(site.path("s"))
        .arg("-P")
        .arg(&pids)
        .args(["--", "/bin/sleep", "1000"])
        .stdin(Stdio::null())
        .stdout(full())
        .stderr(full())
        .status();
    assert_eq!(status.expect("it starts").code(), Some(0));
    assert_eq!(Spawned::of(&pids).0.len(), 1);
}

#[test]
fn codes_and_messages_are_those_of_spawn_fcgi() {
    let site = Site::new();
    for (application, code, message) in [
        (&["/nonexistent"][..], 2, "child exited with: 2"),
        (&["/bin/sh", "-c", "exit 3"], 3, "child exited with: 3"),
        (&["/bin/sh", "-c", "exit 0"], 0, "child exited with: 0"),
        (&["/bin/sh", "-c", "kill -9 $$"], 1, "child signaled: 9"),
        (&[], 255, "no FastCGI application given"),
    ] {
        let mut output = spawn(&site, &[], application);
        // A child that lives for a tenth of a second counts as started. On a busy machine this program may
        // take that long to fail.
        let deadline = Instant::now() + PATIENCE;
        while !application.is_empty() && output.status.code() != Some(code) {
            assert!(Instant::now() < deadline, "{application:?}: {output:?}");
            fs::remove_file(site.path("s")).expect("it has its socket");
            output = spawn(&site, &[], application);
        }
        assert_eq!(output.status.code(), Some(code), "{application:?}");
        let told = text(&output.stderr);
        assert!(
            told.starts_with(&format!("spawn-fcgi: {message}")),
            "{application:?}: {told}"
        );
        assert!(!site.path("s").exists(), "{application:?}");
    }
    for (options, message) in [
        (
            &["-p", "9000"][..],
            "either a Unix domain socket or a TCP-port, but not both",
        ),
        (
            &["-d", "/nonexistent"],
            "chdir('/nonexistent') failed: No such file or directory",
        ),
        (
            &["-P", "/nonexistent/p"],
            "opening PID-file '/nonexistent/p' failed: No such file",
        ),
        (
            &["-P", "/dev/null"],
            "PID-file exists and isn't regular file",
        ),
    ] {
        let output = spawn(&site, options, &["/bin/sleep", "1000"]);
        assert_eq!(output.status.code(), Some(255), "{options:?}");
        let told = text(&output.stderr);
        assert!(
            told.starts_with(&format!("spawn-fcgi: {message}")),
            "{options:?}: {told}"
        );
    }
    let output = run(&["spawn", "--", "/bin/true"]);
    assert_eq!(output.status.code(), Some(255));
    assert_eq!(
        text(&output.stderr),
        "petrel spawn: no socket given (use either -p or -s)\n"
    );
    let output = run(&["spawn", "-v"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("spawns FastCGI processes"));
    for help in ["-h", "-?"] {
        let output = run(&["spawn", help]);
        assert_eq!(output.status.code(), Some(0), "{help}");
        assert!(text(&output.stdout).contains("-F <FORKS>"), "{help}");
    }
}

#[test]
fn without_a_fork_the_program_takes_our_place() {
    let site = Site::new();
    let output = spawn(
        &site,
        &["-n"],
        &["/bin/sh", "-c", "echo $0 $1; exit 7", "a", "-b"],
    );
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "a -b\n");
    let output = spawn(&site, &["-n"], &["/nonexistent"]);
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert_eq!(told, "spawn-fcgi: exec failed: No such file or directory\n");
    let line = "/bin/sh -c 'exit 5'; exit 9";
    let output = petrel()
        .args([
            "spawn",
            "-a",
            "127.0.0.1",
            "-p",
            &free_port().to_string(),
            "-n",
            "-f",
            line,
        ])
        .output()
        .expect("started");
    // The shell replaces itself by the first command.
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
}

#[test]
fn a_file_is_not_removed_for_a_socket() {
    let site = Site::new();
    fs::write(site.path("s"), "precious").expect("written");
    let output = spawn(&site, &[], &["/bin/sleep", "1000"]);
    assert_eq!(output.status.code(), Some(255));
    assert_eq!(fs::read(site.path("s")).expect("there"), b"precious");
}

#[test]
fn root_is_given_up_and_the_socket_lies_in_the_chroot() {
    if !is_root_or_skip("root_is_given_up_and_the_socket_lies_in_the_chroot") {
        return;
    }
    let site = Site::new();
    crate::harness::open_to_all(&site);
    let pids = site.path("pids");
    let pids_name = pids.to_str().expect("a plain path");
    for (option, name) in [("-u", "root"), ("-g", "root"), ("-U", "root"), ("-G", "0")] {
        let output = spawn(&site, &[option, name], &["/bin/sleep", "1000"]);
        assert_eq!(output.status.code(), Some(255), "{option}");
        assert!(text(&output.stderr).contains("I will not set "), "{option}");
    }
    let options = ["-u", "www-data", "-U", "nobody", "-P", pids_name];
    let output = spawn(&site, &options, &["/bin/sleep", "1000"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let spawned = Spawned::of(&pids);
    let id = |name: &str| {
        let user = nix::unistd::User::from_name(name)
            .expect("looked up")
            .expect("known");
        (user.uid.as_raw(), user.gid.as_raw())
    };
    let process = fs::metadata(format!("/proc/{}", spawned.0[0])).expect("alive");
    assert_eq!((process.uid(), process.gid()), id("www-data"));
    let socket = fs::metadata(site.path("s")).expect("there");
    assert_eq!((socket.uid(), socket.gid()), id("nobody"));
    drop(spawned);

    // The program is looked up inside the chroot, where it does not exist.
    let root = site.path("root");
    let output = Command::new(site.path("spawn-fcgi"))
        .args(["-s", "/inner", "-P", pids_name, "-F", "1", "-c"])
        .arg(&root)
        .args(["--", "/bin/sleep", "1000"])
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(!root.join("inner").exists() && !Path::new("/inner").exists());
}
