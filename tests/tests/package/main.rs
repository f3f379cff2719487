//! The Debian package: made, installed, started, reloaded, upgraded, removed and purged.

mod machine;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use machine::Machine;
use petrel_tests::{Address, Client, PATIENCE, eventually, is_installed, petrel, run, skip};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A machine on which the package of the tested program is installed.
fn installed(test: &str) -> Option<Machine> {
    for program in [
        "dpkg-shlibdeps",
        "logrotate",
        "nsenter",
        "ip",
        "systemd-analyze",
    ] {
        if !is_installed(program) {
            skip(test, &format!("there is no {program}"));
            return None;
        }
    }
    let machine = Machine::start(packages())
        .map_err(|why| skip(test, &why))
        .ok()?;
    // A petrel of the machine itself is none of ours, and neither is a server's index page.
    machine.run("dpkg --no-triggers --purge petrel 2>/dev/null; rm -f /var/www/html/index.html");
    install(&machine, "1.0");
    Some(machine)
}

/// Installs this version. Without triggers: man-db would read the pages of all packages.
fn install(machine: &Machine, version: &str) -> String {
    let archive = format!("/share/petrel_{version}_*.deb");
    machine.run(&format!(
        "dpkg --no-triggers --force-unsafe-io -i {archive}"
    ))
}

/// A directory with the package in the versions 1.0 and 1.1.
fn packages() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        for version in ["1.0", "1.1"] {
            let mut command = Command::new(&cargo);
            let options = ["--uncompressed", "--version", version, "--binary"];
            command
                .args(["xtask", "package"])
                // The program that runs the tests sets it for them.
                .env_remove("RUSTC_BOOTSTRAP")
                .args(options)
                .arg(petrel());
            command.arg("--out").arg(&directory).current_dir(ROOT);
            let made = run(&mut command, PATIENCE);
            assert_eq!(made.code(), 0, "{}{}", made.text(), made.errors);
        }
        directory
    })
}

/// The socket that the unit asks for.
fn listener(machine: &Machine) -> TcpListener {
    let port = machine.unit("petrel.socket", "ListenStream");
    TcpListener::bind(format!("[::]:{port}")).expect("the port is free there")
}

fn client() -> Client {
    Client::connect(&Address::Ip(SocketAddr::from(([127, 0, 0, 1], 80))))
}

fn stop(machine: &Machine, mut service: Child) {
    assert_eq!(machine.unit("petrel.service", "KillSignal"), "SIGINT");
    machine.run("kill -INT $(cat /run/petrel.pid)");
    assert_eq!(service.wait().expect("our child").code(), Some(0));
}

/// It takes so long because dpkg installs the package, and systemd and logrotate read its files.
#[test]
fn what_is_installed_serves_as_it_is() {
    let Some(machine) = installed("what_is_installed_serves_as_it_is") else {
        return;
    };
    let check = machine.try_run("petrel -tt -f /etc/petrel/petrel.conf");
    assert_eq!((check.code(), check.errors.as_str()), (0, ""));
    // systemd does not try a wrong configuration again.
    let wrong =
        machine.try_run("echo 'server.port = \"x' >/tmp/wrong.conf; petrel -D -f /tmp/wrong.conf");
    let prevented = machine.unit("petrel.service", "RestartPreventExitStatus");
    assert_eq!(wrong.code().to_string(), prevented);
    let units = "/usr/lib/systemd/system/petrel.service /usr/lib/systemd/system/petrel.socket";
    // It complains of other units as well, and then fails.
    let verified = machine.try_run(&format!("systemd-analyze verify --man=no {units}"));
    assert!(!verified.errors.contains("petrel"), "{}", verified.errors);
    for page in ["man1/petrel.1", "man1/petrel-top.1", "man5/petrel.conf.5"] {
        machine.run(&format!("test -s /usr/share/man/{page}.gz"));
    }
    machine.run("test -s /usr/share/bash-completion/completions/petrel");
    machine.run(
        "mkdir -p /var/www/html/.well-known && cd /var/www/html && echo public >.well-known/token",
    );
    machine.run("cd /var/www/html && echo secret >.env && echo '<?php' >x.php && echo text >x.txt");
    machine.inside(|| {
        let service = machine.start_service(&listener(&machine));
        let page = client().get("/");
        assert_eq!(page.status, 200);
        assert!(page.text().contains("The server runs"), "{page}");
        assert_eq!(client().get("/.env").status, 403);
        assert_eq!(client().get("/x.php").status, 403);
        assert_eq!(client().get("/.well-known/token").status, 200);
        let text = client().get("/x.txt");
        assert_eq!(text.field("Content-Type"), Some("text/plain;charset=utf-8"));

        machine.run("echo 'server.tag = \"of conf.d\"' >/etc/petrel/conf.d/tag.conf");
        machine.run(&machine.unit("petrel.service", "ExecReload"));
        assert_eq!(client().get("/").field("Server"), Some("of conf.d"));
        machine.run("petrel status");

        // The access log is rotated, and what comes next is in the new one.
        machine.run(
            "logrotate --force /etc/logrotate.d/petrel && test -s /var/log/petrel/access.log.1",
        );
        // The first of these requests may come before the server has seen the new file.
        let is_logged = || {
            client().get("/x.txt?after");
            machine
                .run("cat /var/log/petrel/access.log")
                .contains("?after")
        };
        assert!(eventually(is_logged), "the log is followed");
        let owner = machine.run("stat -c '%U %a' /var/log/petrel/access.log /var/log/petrel");
        assert_eq!(owner, "www-data 640\nroot 750\n");
        stop(&machine, service);
    });
}

/// It takes so long because dpkg installs two versions of the package.
#[test]
fn an_upgrade_refuses_no_connection() {
    let Some(machine) = installed("an_upgrade_refuses_no_connection") else {
        return;
    };
    machine.run("echo '# by the administrator' >>/etc/petrel/petrel.conf");
    machine.inside(|| {
        let socket = listener(&machine);
        let service = machine.start_service(&socket);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client().get("/").status, 200);
                    count += 1;
                    thread::sleep(std::time::Duration::from_millis(5));
                }
                count
            });
            assert_eq!(client().get("/").status, 200, "it has started");
            install(&machine, "1.1");
            let status = machine.try_run("petrel status -f /etc/petrel/petrel.conf");
            assert!(
                status.errors.contains("/usr/bin/petrel is newer"),
                "{}",
                status.errors
            );
            stop(&machine, service);
            let service = machine.start_service(&socket);
            assert_eq!(client().get("/").status, 200);
            let status = machine.try_run("petrel status -f /etc/petrel/petrel.conf");
            assert_eq!(status.errors, "");
            is_over.store(true, Ordering::Relaxed);
            assert!(asking.join().expect("no connection is refused") > 2);
            stop(&machine, service);
        });
    });
    machine.run("grep -q administrator /etc/petrel/petrel.conf");
}

/// It takes so long because dpkg installs the package twice and removes it twice.
#[test]
fn what_is_removed_leaves_the_configuration_and_what_is_purged_nothing() {
    let test = "what_is_removed_leaves_the_configuration_and_what_is_purged_nothing";
    let Some(machine) = installed(test) else {
        return;
    };
    machine.run("test -L /etc/systemd/system/multi-user.target.wants/petrel.service");
    machine.run("test -L /etc/systemd/system/sockets.target.wants/petrel.socket");
    machine.run("touch /var/log/petrel/error.log");
    for script in [
        "postinst configure 1.0",
        "postinst configure 1.0",
        "prerm upgrade 1.1",
    ] {
        machine.run(&format!("/var/lib/dpkg/info/petrel.{script}"));
    }
    machine.run("dpkg --no-triggers --remove petrel");
    machine.run(
        "test ! -e /usr/bin/petrel && test -s /etc/petrel/petrel.conf && test -d /var/log/petrel",
    );
    install(&machine, "1.0");
    machine.run("petrel -tt -f /etc/petrel/petrel.conf");
    machine.run("dpkg --no-triggers --purge petrel");
    let left = machine.run(
        "find /etc /usr /var -xdev -path '*petrel*' -not -path '/var/lib/dpkg/*' -not -path '/var/cache/*' \
         -cnewer /share -print || true",
    );
    assert_eq!(left, "");
}

/// It takes so long because dpkg installs the package three times.
#[test]
fn beside_another_server_it_is_not_enabled() {
    let test = "beside_another_server_it_is_not_enabled";
    let Some(machine) = installed(test) else {
        return;
    };
    machine.run("dpkg --no-triggers --purge petrel");
    machine.inside(|| {
        let _other = TcpListener::bind("127.0.0.1:80").expect("a port");
        let said = install(&machine, "1.0");
        assert!(
            said.contains("systemctl enable --now petrel.socket petrel.service"),
            "{said}"
        );
        machine.run("test ! -e /etc/systemd/system/sockets.target.wants/petrel.socket");
    });
    // An upgrade does not enable it either, though the port is free now.
    install(&machine, "1.0");
    machine.run("test ! -e /etc/systemd/system/sockets.target.wants/petrel.socket");
}
