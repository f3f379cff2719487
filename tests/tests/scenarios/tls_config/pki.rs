//! Certificates for one test, made by openssl.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use petrel_tests::{Finished, Server, Tree, curl, is_installed, skip};

/// Says whether openssl is there; else the test says that it is skipped.
pub(crate) fn has_openssl(test: &str) -> bool {
    let has = is_installed("openssl");
    if !has {
        skip(test, "there is no openssl");
    }
    has
}

/// Runs openssl in the tree with these words as arguments.
#[track_caller]
pub(crate) fn openssl(directory: &Path, words: &str) -> String {
    let finished = petrel_tests::run(
        Command::new("openssl")
            .current_dir(directory)
            .args(words.split_whitespace()),
        petrel_tests::PATIENCE,
    );
    assert!(
        finished.status.success(),
        "openssl {words}: {}",
        finished.text()
    );
    finished.text()
}

/// An authority: `NAME.crt` and `NAME.key`.
pub(crate) fn authority(tree: &Tree, name: &str) {
    openssl(
        tree.root(),
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.crt -days 30 \
             -subj /CN={name}"
        ),
    );
}

/// A certificate for `host` by the authority: `NAME.crt`, `NAME.key`. `key` is what openssl req says for its kind.
pub(crate) fn certificate(tree: &Tree, authority: &str, name: &str, host: &str, key: &str) {
    tree.write(
        "extensions",
        format!("subjectAltName=DNS:{host}\nbasicConstraints=CA:FALSE\n"),
    );
    sign(
        tree,
        authority,
        name,
        &format!("/C=DE/O=Example/CN={host}"),
        key,
        "-days 30",
    );
}

/// A certificate below an authority, with the extensions in the file `extensions`.
pub(crate) fn sign(tree: &Tree, authority: &str, name: &str, subject: &str, key: &str, days: &str) {
    let root = tree.root();
    openssl(
        root,
        &format!("req -new {key} -nodes -keyout {name}.key -out {name}.csr -subj {subject}"),
    );
    openssl(
        root,
        &format!(
            "x509 -req -in {name}.csr -CA {authority}.crt -CAkey {authority}.key -CAcreateserial -out {name}.crt {days} \
             -extfile extensions"
        ),
    );
}

/// What is in these files of the tree, one behind the other.
pub(crate) fn together(tree: &Tree, names: &[&str]) -> Vec<u8> {
    let read = |name: &&str| std::fs::read(tree.path(name)).expect("a file of the test");
    names.iter().flat_map(read).collect()
}

/// Asks for `https://HOST:PORT/` by curl, which trusts the authority in `ca`. Answers body and what `-w` prints.
pub(crate) fn ask(server: &Server, host: &str, port: u16, more: &[&str]) -> Finished {
    let url = format!("https://{host}:{port}/");
    let resolve = format!("{host}:{port}:127.0.0.1");
    let ca = server.tree().path("ca.crt").display().to_string();
    let mut arguments = vec![
        "--cacert",
        &ca,
        "--resolve",
        &resolve,
        "--max-time",
        "20",
        &url,
    ];
    arguments.extend(more);
    curl(&arguments)
}

/// What openssl s_client says of a connection on which it asks for `/`.
pub(crate) fn s_client(server: &Server, port: u16, words: &str) -> String {
    let mut child = Command::new("openssl")
        .current_dir(server.tree().root())
        .args([
            "s_client",
            "-connect",
            &format!("127.0.0.1:{port}"),
            "-ign_eof",
        ])
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("openssl starts");
    let mut input = child.stdin.take().expect("a pipe");
    // One that was refused reads nothing.
    let _ = input.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    drop(input);
    let output = child.wait_with_output().expect("openssl ends");
    [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

/// The kind of key that is made fastest.
pub(crate) const ECDSA: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256";
pub(crate) const RSA: &str = "-newkey rsa:2048";
