//! Which certificate a client gets.

use petrel_tests::{Server, Tree, eventually, free_port};

use crate::tls_config::pki::{self, ECDSA, RSA, ask, has_openssl, s_client, together};

fn two_hosts(tree: &Tree) {
    pki::authority(tree, "ca");
    // Below the authority, one that signs: its certificate goes along.
    tree.write("extensions", "basicConstraints=critical,CA:TRUE\n");
    pki::sign(tree, "ca", "middle", "/CN=middle", ECDSA, "-days 30");
    pki::certificate(tree, "middle", "a-ec", "a.example", ECDSA);
    pki::certificate(tree, "middle", "a-rsa", "a.example", RSA);
    pki::certificate(tree, "ca", "b", "b.example", ECDSA);
    // In no order at all.
    tree.write(
        "a.pem",
        together(
            tree,
            &[
                "ca.crt",
                "middle.crt",
                "a-rsa.key",
                "a-ec.crt",
                "a-rsa.crt",
                "a-ec.key",
            ],
        ),
    );
}

const TWO_HOSTS: &str = r#"
    server.modules += ( "mod_openssl", "mod_redirect", "mod_accesslog" )
    accesslog.filename = var.dir + "/access.log"
    accesslog.format = "%{SSL_PROTOCOL}e %{SSL_CIPHER}e %{SSL_CIPHER_USEKEYSIZE}e %{SSL_CLIENT_VERIFY}e %V"
    ssl.pemfile = var.dir + "/a.pem"
    $HTTP["host"] =~ "^b\." {
        ssl.pemfile = var.dir + "/b.crt"
        ssl.privkey = var.dir + "/b.key"
    }
    $HTTP["scheme"] == "http" { url.redirect = ( "" => "https://${url.authority}${url.path}${qsa}" ) }
"#;

#[test]
fn each_client_gets_the_certificate_of_its_host_and_kind() {
    if !has_openssl("each_client_gets_the_certificate_of_its_host_and_kind") {
        return;
    }
    let (port, old_port) = (free_port(), free_port());
    let server = Server::build()
        .tree(two_hosts)
        .file("www/index.html", "hello")
        .config(&format!(
            "{TWO_HOSTS}\n$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ ssl.engine = \"enable\" }}
            $SERVER[\"socket\"] == \"127.0.0.1:{old_port}\" {{
                ssl.engine = \"enable\"
                ssl.openssl.ssl-conf-cmd = ( \"MaxProtocol\" => \"TLSv1.2\" )
            }}"
        ))
        .start();
    // The suites of TLS 1.3 that it offers as well do not count.
    let words = "-servername a.example -cipher ECDHE-RSA-AES256-GCM-SHA384";
    let said = s_client(&server, old_port, words);
    assert!(
        said.contains("ECDHE-RSA-AES256-GCM-SHA384") && said.contains("hello"),
        "{said}"
    );
    for (version, spoken) in [("--http2", "hello2"), ("--http1.1", "hello1.1")] {
        let said = ask(
            &server,
            "a.example",
            port,
            &[version, "-w", "%{http_version}"],
        );
        assert_eq!(said.text(), spoken, "{}", said.errors);
    }
    for host in ["a.example", "b.example"] {
        assert_eq!(ask(&server, host, port, &[]).text(), "hello", "{host}");
    }
    for (words, expected) in [
        (
            "-servername a.example -tls1_3",
            ["Server Temp Key: X25519", "id-ecPublicKey"],
        ),
        (
            "-servername a.example -tls1_3 -sigalgs rsa_pss_rsae_sha256",
            ["CN = a.example", "rsaEncryption"],
        ),
        (
            "-servername a.example -tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384",
            ["ECDHE-RSA-AES256-GCM-SHA384", "rsaEncryption"],
        ),
        (
            "-servername a.example -tls1_2",
            ["ECDHE-ECDSA", "id-ecPublicKey"],
        ),
        // No name, and one that no condition knows: what stands outside all conditions.
        ("-noservername", ["CN = a.example", "hello"]),
        ("-servername c.example", ["CN = a.example", "hello"]),
    ] {
        let said = s_client(&server, port, &format!("{words} -CAfile ca.crt -showcerts"));
        for part in expected {
            assert!(said.contains(part), "{words}: no {part} in {said}");
        }
        assert!(
            said.contains("Verify return code: 0 (ok)"),
            "{words}: {said}"
        );
        // The certificate, and the one above it; not the authority's own.
        assert_eq!(
            said.matches("-----BEGIN CERTIFICATE-----").count(),
            2,
            "{words}: {said}"
        );
    }
    for old in ["-tls1", "-tls1_1"] {
        let said = s_client(&server, port, &format!("{old} -cipher ALL:@SECLEVEL=0"));
        assert!(
            !said.contains("hello") && said.contains("Cipher is (NONE)"),
            "{said}"
        );
    }
    for line in [
        "TLSv1.3 TLS_AES_128_GCM_SHA256 128 - a.example",
        "TLSv1.2 ECDHE-RSA-AES256-GCM-SHA384 256 - a.example",
    ] {
        assert!(
            eventually(|| server.tree().text("access.log").contains(line)),
            "{line}"
        );
    }
}

#[test]
fn the_plain_port_sends_clients_to_the_other() {
    if !has_openssl("the_plain_port_sends_clients_to_the_other") {
        return;
    }
    let port = free_port();
    let server = Server::build()
        .tree(two_hosts)
        .file("www/index.html", "hello")
        .config(&format!(
            "{TWO_HOSTS}\n$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ ssl.engine = \"enable\" }}"
        ))
        .start();
    let response = server.get("/x?y");
    assert_eq!(response.status, 301);
    let location = response.field("Location").expect("a location");
    assert!(
        location.starts_with("https://") && location.ends_with("/x?y"),
        "{location}"
    );
    // Who asks one port for two hosts on one connection gets no answer of the other's certificate.
    let said = s_client(&server, port, "-servername b.example");
    assert!(said.contains("421 "), "{said}");
}

#[test]
fn a_listener_inside_a_host_speaks_tls_and_refuses_names_without_a_certificate() {
    if !has_openssl("a_listener_inside_a_host_speaks_tls_and_refuses_names_without_a_certificate") {
        return;
    }
    let port = free_port();
    // A request's Host has the port, and does not match: it is answered as by a host that no condition knows.
    let nested = format!(
        "$HTTP[\"host\"] =~ \"^a\\.example$\" {{\n    $SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{\n\
         ssl.engine = \"enable\"\nssl.pemfile = var.dir + \"/a.pem\"\n    }}\n}}"
    );
    let modules = "server.modules += ( \"mod_openssl\" )\nssl.engine = \"disable\"";
    let start = |outside: &str| {
        Server::build()
            .tree(two_hosts)
            .file("www/index.html", "hello")
            .config(&format!("{modules}\n{outside}\n{nested}"))
            .start()
    };
    let server = start("");
    assert_eq!(ask(&server, "a.example", port, &[]).text(), "hello");
    let code = ["-o", "/dev/null", "-w", "%{http_code}"];
    let of_another = [&code[..], &["-H", "Host: b.example"]].concat();
    assert_eq!(ask(&server, "a.example", port, &of_another).text(), "421");
    for words in ["-servername b.example", "-noservername"] {
        let said = s_client(&server, port, words);
        let is_refused = said.contains("unrecognized name") && !said.contains("hello");
        assert!(is_refused, "{words}: {said}");
    }
    let url = format!("http://127.0.0.1:{port}/");
    let plain = petrel_tests::curl(&[&code[..], &[&url]].concat());
    assert_eq!(plain.text(), "400");
    server.expect_log("the listener speaks TLS with every client");
    drop(server);

    let server = start("ssl.pemfile = var.dir + \"/b.crt\"\nssl.privkey = var.dir + \"/b.key\"");
    for (words, name) in [
        ("-servername a.example", "CN = a.example"),
        ("-servername b.example", "CN = b.example"),
        ("-noservername", "CN = b.example"),
    ] {
        let said = s_client(&server, port, words);
        assert!(said.contains(name), "{words}: {said}");
    }
}
