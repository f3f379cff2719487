//! `petrel serve DIR --tls`: a certificate authority of the user's own, which curl can be told to trust.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use petrel_tests::{Finished, Tree, curl, eventually, free_port, petrel};
use rustix::process::{Pid, Signal, kill_process};

/// A server that ends with the test.
struct Serving {
    child: Child,
    port: u16,
}

impl Serving {
    /// Starts it for a user whose home is `home` below the tree.
    fn start(tree: &Tree, home: &str) -> Serving {
        let port = free_port();
        let child = command(tree, home)
            .args(["--port", &port.to_string()])
            .stdout(std::fs::File::create(tree.path("output")).expect("a file"))
            .stderr(Stdio::null())
            .spawn()
            .expect("petrel can be run");
        let serving = Serving { child, port };
        assert!(eventually(|| serving.get(&[]).code() == CERTIFICATE_PROBLEM));
        serving
    }

    fn get(&self, arguments: &[&str]) -> Finished {
        let url = format!("https://localhost:{}/", self.port);
        curl(&[arguments, &["--noproxy", "*", "--ipv4", &url]].concat())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let _ = kill_process(pid.expect("a process has an id"), Signal::TERM);
        let _ = self.child.wait();
    }
}

fn command(tree: &Tree, home: &str) -> Command {
    let mut command = Command::new(petrel());
    command
        .arg("serve")
        .arg(tree.path("www"))
        .arg("--tls")
        .env("HOME", tree.path(home))
        .env_remove("XDG_DATA_HOME");
    command
}

fn tree() -> Tree {
    let tree = Tree::new();
    tree.write("www/index.html", "hello");
    tree
}

/// curl's exit code for a certificate of an authority that it does not trust.
const CERTIFICATE_PROBLEM: i32 = 60;
const AUTHORITY: &str = ".local/share/petrel/authority.pem";

#[test]
fn the_authority_is_made_once_and_can_be_trusted() {
    let tree = tree();
    let authority = format!("home/{AUTHORITY}");
    let file = tree.path(&authority).display().to_string();
    let serving = Serving::start(&tree, "home");
    assert_eq!(serving.get(&["--cacert", &file]).text(), "hello");
    let told = tree.text("output");
    assert!(told.contains(&format!("curl --cacert {file}")), "{told}");
    for (name, mode) in [
        ("", 0o700),
        ("/authority-key.pem", 0o600),
        ("/server-127.0.0.1.pem", 0o600),
    ] {
        let path = tree.path(&format!("home/.local/share/petrel{name}"));
        let found = std::fs::metadata(&path).expect("there").permissions();
        assert_eq!(found.mode() & 0o777, mode, "{}", path.display());
    }
    drop(serving);

    let first = tree.text(&authority);
    let again = Serving::start(&tree, "home");
    let beside = Serving::start(&tree, "home");
    for serving in [&again, &beside] {
        assert_eq!(serving.get(&["--cacert", &file]).text(), "hello");
    }
    assert_eq!(tree.text(&authority), first);
    assert!(tree.text("output").contains("petrel serve --help"));
}

#[test]
fn users_do_not_trust_each_other_s_authorities() {
    let tree = tree();
    let (one, _other) = (Serving::start(&tree, "one"), Serving::start(&tree, "other"));
    let of = |home: &str| {
        tree.path(&format!("{home}/{AUTHORITY}"))
            .display()
            .to_string()
    };
    assert_eq!(one.get(&["--cacert", &of("one")]).text(), "hello");
    let refused = one.get(&["--cacert", &of("other")]);
    assert_eq!(refused.code(), CERTIFICATE_PROBLEM);
}

#[test]
fn where_nothing_can_be_kept_it_says_so() {
    let tree = tree();
    tree.write("file", "not a directory");
    let complaint = |command: &mut Command| {
        let finished = petrel_tests::run(command, std::time::Duration::from_secs(30));
        assert_eq!(finished.code(), 255);
        finished.errors
    };
    let said = complaint(&mut command(&tree, "file"));
    assert!(
        said.contains("XDG_DATA_HOME may name another directory"),
        "{said}"
    );
    let said = complaint(command(&tree, "home").env_remove("HOME"));
    assert!(said.contains("neither XDG_DATA_HOME nor HOME"), "{said}");
}
