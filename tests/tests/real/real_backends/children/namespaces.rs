//! What is seen of a backend in another network namespace, and by a server that may not ask the kernel.

use std::process::Command;

use petrel_tests::{Tree, petrel, skip};

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
