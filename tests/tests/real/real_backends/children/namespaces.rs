//! What is seen of a backend in another network namespace, and by a server that may not ask the kernel.

use std::process::Command;

use petrel_tests::{Component, Listens, Speaks, Tree, can_run, eventually, petrel, skip};

use crate::real_backends::children::others::{APPLICATION, in_front_of_host};
use crate::real_backends::children::pool::{fast_behind_slow, fast_beside_slow, says_busy};
use crate::real_backends::children::{FpmSocket, Site, builder, can_run_fpm, site};

/// A container has one of its own. The server sees its own end of the connections, which is enough.
#[test]
fn a_php_fpm_in_another_network_namespace_is_seen() {
    let test = "a_php_fpm_in_another_network_namespace_is_seen";
    if !can_run_fpm(test) {
        return;
    }
    let may = Command::new("unshare").args(["--net", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        return skip(test, "network namespaces need root");
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_fpm_through(&["unshare", "--net"], &super::static_pool(4));
    fast_beside_slow(&site(&socket, 2), 4);
    fast_behind_slow(&site(&socket, 2), 4, "backend-accept", says_busy);
}

/// The kernel of a container behind a network shows nothing of its processes, and HTTP cannot ask. So all requests are
/// written at once, and none is said to have waited for a process.
#[test]
fn nothing_is_claimed_of_http_in_another_network_namespace() {
    let test = "nothing_is_claimed_of_http_in_another_network_namespace";
    if !can_run(test, &["/usr/bin/gunicorn", "unshare", "ip"]) {
        return;
    }
    let shell = |script: &str| Command::new("sh").args(["-euc", script]).status();
    let may = shell("unshare --net ip link add one type veth peer name other");
    if !may.is_ok_and(|status| status.success()) {
        return skip(test, "a network between namespaces needs root");
    }
    // Other runs of this test have other networks.
    let id = std::process::id();
    let network = format!("198.18.{}.{}", id / 64 % 256, id % 64 * 4);
    let (network, number) = network.rsplit_once('.').expect("four numbers");
    let number: u32 = number.parse().expect("a number");
    let (ours, theirs) = (
        format!("{network}.{}", number + 1),
        format!("{network}.{}", number + 2),
    );
    let tree = Tree::new();
    tree.write("app.py", APPLICATION);
    let host = format!("\"host\" => \"{theirs}\", \"port\" => 8000");
    let site = in_front_of_host(Speaks::Http, &tree, &host, 1);
    let script = format!(
        "ip link add eth0 type veth peer name petrel{id} netns {id}
        ip address add {theirs}/30 dev eth0
        ip link set eth0 up
        exec /usr/bin/gunicorn --timeout 300 --workers 2 --bind unix:gunicorn.sock --bind {theirs}:8000 app:application"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-euc", &script]);
    // The devices go with it.
    let _gunicorn = Component::start(tree, &mut command, &Listens::Unix("gunicorn.sock"));
    let script = format!("ip address add {ours}/30 dev petrel{id}\nip link set petrel{id} up");
    let done = shell(&script);
    assert!(done.is_ok_and(|status| status.success()), "{script}");

    let mut held = site.hold(2, "all");
    let mut others: Vec<_> = (0..20).map(|_| site.ask("/fast.php?x")).collect();
    let are_written = eventually(|| {
        let backend = site.backend();
        backend["requests"] == 22 && backend["waiting"] == 0
    });
    assert!(are_written, "{}", site.backend());
    assert_eq!(site.count("fast"), 0, "no process is free");
    site.end("all");
    for client in held.iter_mut().chain(&mut others) {
        assert_eq!(client.response().text(), "done");
    }
    for request in site.logged("/fast.php?x", 20) {
        let stages = &request.stages;
        assert_eq!(request.stage("backend-accept"), 0, "{stages:?}");
        assert!(request.stage("backend-first-byte") > 0, "{stages:?}");
        assert!(
            !request.waits.contains("processes busy"),
            "{}",
            request.waits
        );
    }
}

/// Runs its arguments under a filter that makes socket(AF_NETLINK) fail with EAFNOSUPPORT, as
/// `RestrictAddressFamilies` of a systemd unit does.
const WITHOUT_NETLINK: &str = r#"
my ($machine) = (POSIX::uname())[4];
my ($prctl, $socket) = $machine eq 'x86_64' ? (157, 41) : (167, 198);
sub instruction { pack('SCCL', @_) }
my $program = instruction(0x20, 0, 0, 0)      # the number of the system call
    . instruction(0x15, 0, 3, $socket)
    . instruction(0x20, 0, 0, 16)             # its first argument
    . instruction(0x15, 0, 1, 16)             # AF_NETLINK
    . instruction(0x06, 0, 0, 0x00050061)     # fail with EAFNOSUPPORT
    . instruction(0x06, 0, 0, 0x7fff0000);    # allow
my $filter = pack('Sx6P', length($program) / 8, $program);
syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
syscall($prctl, 22, 2, $filter, 0, 0) == 0 or die "seccomp: $!";
exec @ARGV or die "exec: $!";
"#;

/// The children of php-fpm say themselves when they are free, so nothing is lost but who waits at the kernel.
#[test]
fn php_fpm_is_asked_where_the_kernel_may_not_be() {
    let test = "php_fpm_is_asked_where_the_kernel_may_not_be";
    if !can_run_fpm(test) {
        return;
    }
    let is_known = matches!(std::env::consts::ARCH, "x86_64" | "aarch64");
    if !petrel_tests::can_run(test, &["perl"]) {
        return;
    }
    if !is_known {
        return skip(test, "the filter is for x86_64 and aarch64");
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(4);
    let start = || {
        let mut command = Command::new("perl");
        command
            .args(["-MPOSIX", "-e", WITHOUT_NETLINK])
            .arg(petrel())
            .arg("-D");
        let directive = format!(
            "server.modules += ( \"mod_fastcgi\" )\nfastcgi.server = ( \".php\" => (( {} )) )",
            socket.host()
        );
        Site {
            server: builder(2).config(&directive).start_as(command),
        }
    };
    fast_beside_slow(&start(), 4);
    fast_behind_slow(&start(), 4, "backend-accept", says_busy);
}
