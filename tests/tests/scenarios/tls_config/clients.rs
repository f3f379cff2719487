//! Certificates of clients, and tickets.

use petrel_tests::{Server, Tree, eventually, free_port};

use crate::tls_config::pki::{self, ECDSA, ask, has_openssl, openssl, s_client, together};

fn with_clients(tree: &Tree) {
    pki::authority(tree, "ca");
    pki::authority(tree, "other-ca");
    pki::certificate(tree, "ca", "server", "a.example", ECDSA);
    tree.write("server.pem", together(tree, &["server.crt", "server.key"]));
    tree.write(
        "extensions",
        "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n",
    );
    for (authority, name) in [("ca", "good"), ("other-ca", "foreign"), ("ca", "revoked")] {
        pki::sign(
            tree,
            authority,
            name,
            &format!("/C=DE/O=Example,Inc./CN={name}"),
            ECDSA,
            "-days 30",
        );
    }
    pki::sign(tree, "ca", "old", "/CN=old", ECDSA, "-days -1");
    for (name, extensions) in [
        ("first", ""),
        ("authority", "basicConstraints=critical,CA:TRUE\n"),
    ] {
        tree.write("extensions", extensions);
        let subject = format!("/CN={name}");
        pki::sign(tree, "ca", name, &subject, ECDSA, "-days 30");
    }
    tree.write("index.txt", "");
    tree.write("crlnumber", "01\n");
    tree.write(
        "ca.conf",
        "[ca]\ndefault_ca=one\n[one]\ndatabase=index.txt\ncrlnumber=crlnumber\ndefault_md=sha256\ndefault_crl_days=30\n",
    );
    let root = tree.root();
    openssl(
        root,
        "ca -config ca.conf -keyfile ca.key -cert ca.crt -revoke revoked.crt",
    );
    openssl(
        root,
        "ca -config ca.conf -keyfile ca.key -cert ca.crt -gencrl -out ca.crl",
    );
}

const CLIENTS: &str = r#"
    server.modules += ( "mod_openssl", "mod_accesslog" )
    accesslog.filename = var.dir + "/access.log"
    accesslog.format = "%{SSL_CLIENT_VERIFY}e|%{SSL_CLIENT_S_DN}e|%{SSL_CLIENT_S_DN_CN}e|%{SSL_CLIENT_M_SERIAL}e|%{REMOTE_USER}e%{AUTH_TYPE}e"
    ssl.pemfile = var.dir + "/server.pem"
    ssl.ca-file = var.dir + "/ca.crt"
    ssl.verifyclient.ca-crl-file = var.dir + "/ca.crl"
    ssl.verifyclient.username = "SSL_CLIENT_S_DN_CN"
    ssl.verifyclient.activate = "enable"
"#;

/// A server that refuses at the first port, and looks at the second.
fn server() -> (Server, u16, u16) {
    let (strict, lenient) = (free_port(), free_port());
    let server = Server::build()
        .tree(with_clients)
        .file("www/index.html", "hello")
        .config(&format!(
            "{CLIENTS}
            $SERVER[\"socket\"] == \"127.0.0.1:{strict}\" {{ ssl.engine = \"enable\" }}
            $SERVER[\"socket\"] == \"127.0.0.1:{lenient}\" {{
                ssl.engine = \"enable\"
                ssl.verifyclient.enforce = \"disable\"
            }}"
        ))
        .start();
    (server, strict, lenient)
}

fn ask_as(server: &Server, name: &str, port: u16) -> String {
    let path = |end: &str| {
        server
            .tree()
            .path(&format!("{name}.{end}"))
            .display()
            .to_string()
    };
    let (certificate, key) = (path("crt"), path("key"));
    let shown = ["--cert", &certificate, "--key", &key];
    let shown = if name.is_empty() { &[][..] } else { &shown[..] };
    ask(server, "a.example", port, shown).text()
}

#[test]
fn certificates_that_rustls_takes_from_no_client_are_told_in_words() {
    if !has_openssl("certificates_that_rustls_takes_from_no_client_are_told_in_words") {
        return;
    }
    let (server, strict, _) = server();
    for (name, words) in [
        ("first", "certificate of version 1"),
        ("authority", "certificate of an authority (CA:TRUE)"),
    ] {
        assert_ne!(ask_as(&server, name, strict), "hello", "{name}");
        server.expect_log(&format!(
            "(handshake) the client's certificate is refused: {words}"
        ));
    }
}

#[test]
fn a_client_is_verified_and_told_of() {
    if !has_openssl("a_client_is_verified_and_told_of") {
        return;
    }
    let (server, strict, lenient) = server();
    for (name, is_let_in, log) in [
        (
            "good",
            true,
            "SUCCESS|C = DE, O = \"Example,Inc.\", CN = good|good|",
        ),
        ("", false, "NONE|-|-|-|-"),
        (
            "foreign",
            false,
            "FAILED:unable to get local issuer certificate|-|-|-|-",
        ),
        ("revoked", false, "FAILED:certificate revoked|-|-|-|-"),
        ("old", false, "FAILED:certificate has expired|-|-|-|-"),
    ] {
        assert_eq!(
            ask_as(&server, name, strict) == "hello",
            is_let_in,
            "{name:?}"
        );
        assert_eq!(ask_as(&server, name, lenient), "hello", "{name:?}");
        let log = log.replace('"', "\\\"");
        assert!(
            eventually(|| server.tree().text("access.log").contains(&log)),
            "{name:?}: {}",
            server.tree().text("access.log")
        );
    }
    let log = server.tree().text("access.log");
    assert!(
        log.lines()
            .next()
            .is_some_and(|line| line.ends_with("|goodSSL_CLIENT_VERIFY")),
        "{log}"
    );
}

#[test]
fn a_ticket_does_not_lead_around_the_rule_for_clients() {
    if !has_openssl("a_ticket_does_not_lead_around_the_rule_for_clients") {
        return;
    }
    let (server, strict, lenient) = server();
    for version in ["-tls1_2", "-tls1_3"] {
        let session = format!("{version} -servername a.example");
        let with_certificate = format!("{session} -cert good.crt -key good.key");
        let first = s_client(
            &server,
            strict,
            &format!("{with_certificate} -sess_out strict.session"),
        );
        assert!(first.contains("hello"), "{first}");
        let again = s_client(
            &server,
            strict,
            &format!("{with_certificate} -sess_in strict.session"),
        );
        assert!(
            again.contains("Reused") && again.contains("hello"),
            "{again}"
        );
        s_client(
            &server,
            lenient,
            &format!("{session} -sess_out lenient.session"),
        );
        let same = s_client(
            &server,
            lenient,
            &format!("{session} -sess_in lenient.session"),
        );
        assert!(same.contains("Reused") && same.contains("hello"), "{same}");
        let other = s_client(
            &server,
            strict,
            &format!("{session} -sess_in lenient.session"),
        );
        assert!(
            !other.contains("Reused") && !other.contains("hello"),
            "{other}"
        );
    }
    // A reload goes on with the secret, as long as the rule is the same.
    let session = "-tls1_3 -servername a.example";
    s_client(
        &server,
        lenient,
        &format!("{session} -sess_out before.session"),
    );
    server.signal(rustix::process::Signal::USR1);
    server.expect_log("configuration reloaded");
    let after = s_client(
        &server,
        lenient,
        &format!("{session} -sess_in before.session"),
    );
    assert!(after.contains("Reused"), "{after}");
    // With another list of what is revoked tickets of before are worth nothing.
    let root = server.tree().root();
    openssl(
        root,
        "ca -config ca.conf -keyfile ca.key -cert ca.crt -revoke good.crt",
    );
    openssl(
        root,
        "ca -config ca.conf -keyfile ca.key -cert ca.crt -gencrl -out ca.crl",
    );
    server.expect_log("ca.crl has changed");
    assert!(eventually(|| ask_as(&server, "good", strict) != "hello"));
    let refused = s_client(
        &server,
        strict,
        &format!("{session} -cert good.crt -key good.key -sess_in strict.session"),
    );
    assert!(
        !refused.contains("Reused") && !refused.contains("hello"),
        "{refused}"
    );
}
