//! What the server process gives up when it is started by root. Without root these tests are skipped.

use std::fs;
use std::os::unix::process::CommandExt;

use crate::harness::{Site, fetch, is_root, is_root_or_skip, open_to_all, proc_text, wait_until};
use rustix::process::Signal;

/// The fields of /proc/PID/status, without the tabs between values.
fn status(pid: i32, field: &str) -> Vec<String> {
    let text = proc_text(pid, "status");
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.expect("a field of every process")
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_server_process_is_its_user_for_good_and_the_keeper_stays_root() {
    if !is_root_or_skip("the_server_process_is_its_user_for_good_and_the_keeper_stays_root") {
        return;
    }
    let site = Site::new();
    open_to_all(&site);
    let server = site.start("server.username = \"www-data\"\nserver.groupname = \"nogroup\"");
    let child = server.only_child();
    let user = nix::unistd::User::from_name("www-data")
        .expect("looked up")
        .expect("a Debian user");
    let group = nix::unistd::Group::from_name("nogroup")
        .expect("looked up")
        .expect("a Debian group");
    assert_eq!(status(child, "Uid"), vec![user.uid.to_string(); 4]);
    assert_eq!(status(child, "Gid"), vec![group.gid.to_string(); 4]);
    assert!(!status(child, "Groups").contains(&"0".to_owned()));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(status(child, set), ["0000000000000000"], "{set}");
    }
    assert_eq!(status(server.pid(), "Uid"), vec!["0"; 4]);
    for task in fs::read_dir(format!("/proc/{child}/task")).expect("alive") {
        let task = task
            .expect("alive")
            .file_name()
            .to_string_lossy()
            .parse()
            .expect("an id");
        assert_eq!(
            status(task, "Uid"),
            vec![user.uid.to_string(); 4],
            "every thread"
        );
    }
    // The log is in a directory that the server's user cannot write to. It can still be reopened, because the
    // keeper does that.
    fs::rename(site.path("error.log"), site.path("error.log.1")).expect("rotated");
    server.signal(Signal::HUP);
    wait_until("the new log", &mut || {
        site.error_log().contains("logs reopened")
    });
    server.signal(Signal::USR1);
    wait_until("a reload", &mut || {
        site.error_log().contains("configuration reloaded")
    });
    fetch(site.port, "/hello.txt").expect("served");
}

/// Starts the server with its document root as the chroot, so that paths begin there.
fn start_in_chroot(site: &Site, more: &str) -> crate::harness::Server {
    let root = site.path("root").display().to_string();
    let file = site.configure(&format!("server.chroot = \"{root}\"\n{more}"));
    let text = fs::read_to_string(&file)
        .expect("there")
        .replace(
            &format!("server.document-root = \"{root}\""),
            "server.document-root = \"/\"",
        )
        .replace(&site.path("error.log").display().to_string(), "/error.log");
    fs::write(&file, text).expect("written");
    let mut command = crate::harness::petrel();
    crate::harness::Server::spawn(command.args(["-D", "-f"]).arg(file))
}

#[test]
fn a_chroot_is_the_root_of_the_server_process() {
    if !is_root_or_skip("a_chroot_is_the_root_of_the_server_process") {
        return;
    }
    let site = Site::new();
    open_to_all(&site);
    let server = start_in_chroot(&site, "");
    server.wait_for("an answer", || {
        fetch(site.port, "/hello.txt").is_ok_and(|(head, _)| head.starts_with("HTTP/1.1 200 "))
    });
    let root = fs::read_link(format!("/proc/{}/root", server.only_child())).expect("alive");
    assert_eq!(root, site.path("root"));
    assert_eq!(
        fs::read_link(format!("/proc/{}/root", server.pid()))
            .expect("alive")
            .to_str(),
        Some("/")
    );
    let log = || fs::read_to_string(site.path("root/error.log")).unwrap_or_default();
    // The file system is known although the chroot has no /proc.
    wait_until("a known file system", &mut || {
        log().contains("; \"/\" is on ")
    });
    server.signal(Signal::USR1);
    wait_until("a reload", &mut || log().contains("configuration reloaded"));
}

#[test]
fn a_file_in_the_chroot_does_not_choose_the_groups() {
    if !is_root_or_skip("a_file_in_the_chroot_does_not_choose_the_groups") {
        return;
    }
    let site = Site::new();
    open_to_all(&site);
    fs::create_dir(site.path("root/etc")).expect("a directory");
    fs::write(site.path("root/etc/group"), "chosen:x:4242:www-data\n").expect("a file");
    let server = start_in_chroot(&site, "server.username = \"www-data\"");
    server.wait_for("an answer", || fetch(site.port, "/hello.txt").is_ok());
    let groups = status(server.only_child(), "Groups");
    assert!(!groups.contains(&"4242".to_owned()), "{groups:?}");
}

#[test]
fn a_directory_that_may_be_passed_and_not_read_is_served() {
    if !is_root_or_skip("a_directory_that_may_be_passed_and_not_read_is_served") {
        return;
    }
    for symlinks in ["enable", "disable"] {
        let site = Site::new();
        open_to_all(&site);
        fs::create_dir(site.path("root/closed")).expect("a directory");
        fs::write(site.path("root/closed/a.txt"), "a\n").expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        fs::set_permissions(site.path("root/closed"), mode).expect("ours");
        let _server = site.start(&format!(
            "server.username = \"www-data\"\nindex-file.names = ( \"a.txt\" )\n\
             server.follow-symlink = \"{symlinks}\""
        ));
        let (head, _) = fetch(site.port, "/closed/").expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{symlinks}: {head}");
    }
}

#[test]
fn a_link_of_the_server_s_user_does_not_make_root_write_elsewhere() {
    if !is_root_or_skip("a_link_of_the_server_s_user_does_not_make_root_write_elsewhere") {
        return;
    }
    let site = Site::new();
    open_to_all(&site);
    let server = site.start("server.username = \"www-data\"");
    fs::write(site.path("precious"), "untouched\n").expect("a file");
    // The link gets its owner before its final name, because the server watches that name and follows links
    // owned by root.
    let link = site.path("error.log.new");
    std::os::unix::fs::symlink("precious", &link).expect("a link");
    let user = nix::unistd::User::from_name("www-data").expect("looked up");
    let id = user.expect("a Debian user").uid.as_raw();
    std::os::unix::fs::lchown(&link, Some(id), None).expect("given away");
    fs::rename(&link, site.path("error.log")).expect("renamed");
    server.signal(Signal::HUP);
    server.signal(Signal::USR1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    fetch(site.port, "/hello.txt").expect("it serves on");
    let text = fs::read_to_string(site.path("precious")).expect("there");
    assert_eq!(text, "untouched\n");
}

#[test]
fn a_server_that_cannot_give_up_root_does_not_start() {
    if !is_root_or_skip("a_server_that_cannot_give_up_root_does_not_start") {
        return;
    }
    let site = Site::new();
    for line in [
        "server.username = \"root\"",
        "server.username = \"no-such-user\"",
        "server.groupname = \"root\"",
    ] {
        let (code, _, message) = site.launch(line).end();
        assert_eq!(code, Some(255), "{line}");
        assert!(
            message.contains("server.username") || message.contains("root"),
            "{message}"
        );
    }
}

#[test]
fn a_start_without_privileges_works_and_warns() {
    if !is_root_or_skip("a_start_without_privileges_works_and_warns") {
        return;
    }
    let site = Site::new();
    open_to_all(&site);
    // That user may have no access to the build directory.
    let program = site.path("petrel");
    fs::copy(crate::harness::petrel().get_program(), &program).expect("a copy");
    let file = site.configure("server.username = \"www-data\"");
    fs::write(site.path("error.log"), "").expect("created");
    std::os::unix::fs::chown(site.path("error.log"), Some(65534), None).expect("given away");
    let mut command = std::process::Command::new(program);
    let server =
        crate::harness::Server::spawn(command.args(["-D", "-f"]).arg(file).uid(65534).gid(65534));
    server.wait_for("an answer", || fetch(site.port, "/hello.txt").is_ok());
    assert_eq!(status(server.only_child(), "Uid"), vec!["65534"; 4]);
    server.signal(Signal::TERM);
    let (code, _, message) = server.end();
    assert_eq!(code, Some(0));
    assert!(
        message.contains("server.username has no effect"),
        "{message}"
    );
}

#[test]
fn limits_reach_the_server_process() {
    let site = Site::new();
    let server = site.start("server.max-fds = 777\nserver.core-files = \"enable\"");
    let limits = proc_text(server.only_child(), "limits");
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .expect("a limit");
    assert_eq!(files.split_whitespace().nth(3), Some("777"), "{files}");
    if is_root() {
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file"))
            .expect("a limit");
        assert!(core.contains("unlimited"), "{core}");
    }
}
