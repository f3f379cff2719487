//! Certificates that change while the server runs, responses about their state, and challenges of ACME.

use petrel_tests::{Server, Tree, eventually, free_port};

use crate::tls_config::pki::{self, ECDSA, ask, has_openssl, openssl, s_client, together};

fn one_host(tree: &Tree) {
    pki::authority(tree, "ca");
    pki::certificate(tree, "ca", "server", "a.example", ECDSA);
    pki::certificate(tree, "ca", "next", "a.example", ECDSA);
    tree.directory("acme");
}

fn start(port: u16, more: &str) -> Server {
    Server::build()
        .tree(one_host)
        .file("www/index.html", "hello")
        .config(&format!(
            "server.modules += ( \"mod_openssl\" )
            ssl.pemfile = var.dir + \"/server.crt\"
            ssl.privkey = var.dir + \"/server.key\"
            {more}
            $SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ ssl.engine = \"enable\" }}"
        ))
        .start()
}

fn serial(server: &Server, port: u16) -> String {
    let shown = s_client(server, port, "-servername a.example");
    server.tree().write("shown.txt", shown);
    openssl(server.tree().root(), "x509 -in shown.txt -noout -serial")
}

#[test]
fn a_changed_certificate_counts_without_a_reload() {
    if !has_openssl("a_changed_certificate_counts_without_a_reload") {
        return;
    }
    let port = free_port();
    let server = start(port, "");
    let root = server.tree().root();
    let of = |name: &str| openssl(root, &format!("x509 -in {name}.crt -noout -serial"));
    let (first, next) = (of("server"), of("next"));
    assert_eq!(serial(&server, port), first);
    // A key that does not fit: what was there goes on.
    server
        .tree()
        .replace("server.crt", together(server.tree(), &["next.crt"]));
    server.expect_log(
        "cannot be used, what was read before goes on: the key does not belong to the certificate",
    );
    assert_eq!(serial(&server, port), first);
    server
        .tree()
        .replace("server.key", together(server.tree(), &["next.key"]));
    server.expect_log("server.key has changed, and counts for new connections");
    assert!(eventually(|| serial(&server, port) == next));
    // The same after the server process is replaced.
    server.signal(rustix::process::Signal::USR1);
    server.expect_log("configuration reloaded");
    assert_eq!(serial(&server, port), next);
    assert_eq!(ask(&server, "a.example", port, &[]).text(), "hello");
}

#[test]
fn a_response_about_the_certificate_is_sent_along() {
    if !has_openssl("a_response_about_the_certificate_is_sent_along") {
        return;
    }
    let port = free_port();
    let server = start(port, "ssl.stapling-file = var.dir + \"/response\"");
    let root = server.tree().root();
    assert!(s_client(&server, port, "-status").contains("OCSP response: no response sent"));
    let serial = serial(&server, port).trim().replace("serial=", "");
    server.tree().write(
        "index.txt",
        format!("V\t491231000000Z\t\t{serial}\tunknown\t/CN=a.example\n"),
    );
    let respond = |days: &str| {
        openssl(
            root,
            &format!(
                "ocsp -index index.txt -rsigner ca.crt -rkey ca.key -CA ca.crt -issuer ca.crt -cert server.crt \
                 -respout response.new {days}"
            ),
        );
        server.tree().rename("response.new", "response");
    };
    respond("-ndays 7");
    server.expect_log("response has changed, and counts");
    assert!(eventually(
        || s_client(&server, port, "-status").contains("OCSP Response Status: successful")
    ));
    // One that holds for a minute at most is of no use once that is over; one for another certificate is not sent.
    pki::certificate(server.tree(), "ca", "third", "a.example", ECDSA);
    server
        .tree()
        .replace("server.crt", together(server.tree(), &["third.crt"]));
    server
        .tree()
        .replace("server.key", together(server.tree(), &["third.key"]));
    server.expect_log("server.key has changed, and counts");
    assert!(eventually(
        || s_client(&server, port, "-status").contains("OCSP response: no response sent")
    ));
}

#[test]
fn a_challenge_is_answered_with_the_certificate_for_it() {
    if !has_openssl("a_challenge_is_answered_with_the_certificate_for_it") {
        return;
    }
    let port = free_port();
    let server = start(port, "ssl.acme-tls-1 = var.dir + \"/acme\"");
    let ask = || s_client(&server, port, "-servername n.example -alpn acme-tls/1");
    assert!(ask().contains("unrecognized name"), "{}", ask());
    pki::certificate(server.tree(), "ca", "acme/n.example", "n.example", ECDSA);
    server
        .tree()
        .rename("acme/n.example.key", "acme/n.example.key.pem");
    server
        .tree()
        .rename("acme/n.example.crt", "acme/n.example.crt.pem");
    assert!(eventually(|| {
        let said = ask();
        said.contains("ALPN protocol: acme-tls/1") && said.contains("CN = n.example")
    }));
    // Nothing is asked behind the handshake.
    let said = ask();
    assert!(!said.contains("HTTP/1.1"), "{said}");
    assert!(
        s_client(&server, port, "-servername n.example -alpn http/1.1").contains("CN = a.example")
    );
}

/// A response that the certificate `NAME.crt` is good.
fn respond(tree: &Tree, name: &str, file: &str) {
    let serial = openssl(tree.root(), &format!("x509 -in {name}.crt -noout -serial"));
    let serial = serial.trim().replace("serial=", "");
    tree.write(
        "index.txt",
        format!("V\t491231000000Z\t\t{serial}\tunknown\t/CN=a.example\n"),
    );
    openssl(
        tree.root(),
        &format!(
            "ocsp -index index.txt -rsigner ca.crt -rkey ca.key -CA ca.crt -issuer ca.crt -cert {name}.crt \
             -respout {file} -ndays 7"
        ),
    );
}

/// It takes so long because the server must notice two changes, and looks at its files once a second.
#[test]
fn a_certificate_that_needs_a_response_changes_together_with_it() {
    if !has_openssl("a_certificate_that_needs_a_response_changes_together_with_it") {
        return;
    }
    let port = free_port();
    let server = Server::build()
        .tree(|tree| {
            pki::authority(tree, "ca");
            tree.write(
                "extensions",
                "subjectAltName=DNS:a.example\n1.3.6.1.5.5.7.1.24=DER:3003020105\n",
            );
            for name in ["one", "two"] {
                pki::sign(tree, "ca", name, "/CN=a.example", ECDSA, "-days 30");
                tree.write(
                    &format!("{name}.pem"),
                    together(tree, &[&format!("{name}.crt"), &format!("{name}.key")]),
                );
            }
            tree.write("server.pem", together(tree, &["one.pem"]));
            respond(tree, "one", "response");
        })
        .file("www/index.html", "hello")
        .config(&format!(
            "server.modules += ( \"mod_openssl\" )
            $SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{
                ssl.engine = \"enable\"
                ssl.pemfile = var.dir + \"/server.pem\"
                ssl.stapling-file = var.dir + \"/response\"
            }}"
        ))
        .start();
    let first = serial(&server, port);
    let tree = server.tree();
    tree.replace("server.pem", together(tree, &["two.pem"]));
    server.expect_log("(must-staple), and the one there is is about another certificate");
    assert_eq!(serial(&server, port), first);
    respond(tree, "two", "response.new");
    tree.rename("response.new", "response");
    server.expect_log("server.pem has changed, and counts for new connections");
    assert!(eventually(|| {
        serial(&server, port) != first
            && s_client(&server, port, "-status").contains("OCSP Response Status: successful")
    }));
}
