//! What a rule about client certificates does beyond their authority: depth, names, an end in between, and what scripts are
//! told.

use petrel_tests::{Server, Tree, eventually, free_port};

use crate::tls_config::pki::{self, ECDSA, ask, has_openssl, openssl, s_client, together};

/// What a script says of the connection.
const SCRIPT: &str = r#"
local names = { "SSL_PROTOCOL", "SSL_CIPHER", "SSL_CIPHER_USEKEYSIZE", "SSL_CLIENT_VERIFY", "SSL_CLIENT_S_DN_CN",
    "REMOTE_USER", "SSL_CLIENT_CERT" }
local said = {}
for _, name in ipairs(names) do
    said[#said + 1] = name .. "=" .. tostring(lighty.r.req_env[name])
end
lighty.r.resp_body.set(table.concat(said, "\n"))
return 200
"#;

/// Clients below an authority, below another one that it has signed, and below one of another name; and a server with a
/// key of Ed25519.
fn files(tree: &Tree) {
    pki::authority(tree, "ca");
    pki::authority(tree, "second");
    tree.write("extensions", "basicConstraints=critical,CA:TRUE\n");
    pki::sign(tree, "ca", "between", "/CN=between", ECDSA, "-days 30");
    tree.write("extensions", "extendedKeyUsage=clientAuth\n");
    for (authority, name) in [("ca", "direct"), ("between", "below"), ("second", "other")] {
        let subject = format!("/O=Example/CN={name}");
        pki::sign(tree, authority, name, &subject, ECDSA, "-days 30");
    }
    tree.write("below.crt", together(tree, &["below.crt", "between.crt"]));
    pki::certificate(tree, "ca", "server", "a.example", "-newkey ed25519");
    tree.write("server.pem", together(tree, &["server.crt", "server.key"]));
    tree.write("both-ca.crt", together(tree, &["ca.crt", "second.crt"]));
    tree.write("say.lua", SCRIPT);
}

fn server(ports: &[(u16, &str)]) -> Server {
    let sockets: String = ports
        .iter()
        .map(|(port, rule)| {
            format!(
                "$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ ssl.engine = \"enable\"\n{rule} }}\n"
            )
        })
        .collect();
    Server::build()
        .tree(files)
        .config(&format!(
            r#"
            server.modules += ( "mod_openssl", "mod_magnet" )
            lua.max-run-time = 1000
            magnet.attract-raw-url-to = ( var.dir + "/say.lua" )
            ssl.pemfile = var.dir + "/server.pem"
            ssl.ca-file = var.dir + "/both-ca.crt"
            ssl.verifyclient.activate = "enable"
            ssl.verifyclient.username = "SSL_CLIENT_S_DN_CN"
            {sockets}
            "#
        ))
        .start()
}

fn ask_as(server: &Server, name: &str, port: u16) -> String {
    let path = |end: &str| server.tree().path(&format!("{name}.{end}"));
    let (certificate, key) = (path("crt"), path("key"));
    let shown = [
        "--cert",
        certificate.to_str().expect("a plain path"),
        "--key",
        key.to_str().expect("a plain path"),
    ];
    ask(server, "a.example", port, &shown).text()
}

#[test]
fn depth_and_names_limit_whose_certificates_are_good() {
    if !has_openssl("depth_and_names_limit_whose_certificates_are_good") {
        return;
    }
    let lenient = "ssl.verifyclient.enforce = \"disable\"\n";
    let shallow = "ssl.verifyclient.depth = 1\n";
    let named = "ssl.verifyclient.ca-dn-file = var.dir + \"/second.crt\"\n";
    let rules = ["", shallow, named];
    let ports: Vec<(u16, u16)> = rules.iter().map(|_| (free_port(), free_port())).collect();
    let rules: Vec<(u16, String)> = rules
        .iter()
        .zip(&ports)
        .flat_map(|(rule, (strict, looks))| {
            [
                (*strict, (*rule).to_owned()),
                (*looks, format!("{rule}{lenient}")),
            ]
        })
        .collect();
    let rules: Vec<(u16, &str)> = rules
        .iter()
        .map(|(port, rule)| (*port, rule.as_str()))
        .collect();
    let server = server(&rules);
    const GOOD: &str = "SUCCESS";
    for ((strict, lenient), expected) in ports.iter().zip([
        [GOOD, GOOD, GOOD],
        [GOOD, "FAILED:certificate chain too long", GOOD],
        [
            "FAILED:certificate rejected",
            "FAILED:certificate rejected",
            GOOD,
        ],
    ]) {
        for (name, verify) in ["direct", "below", "other"].into_iter().zip(expected) {
            let said = ask_as(&server, name, *lenient);
            let line = format!("SSL_CLIENT_VERIFY={verify}\n");
            assert!(said.contains(&line), "{name}: {said}");
            let is_told = said.contains(&format!("SSL_CLIENT_S_DN_CN={name}\n"));
            assert_eq!(is_told, verify == GOOD, "{said}");
            let said = ask_as(&server, name, *strict);
            assert_eq!(said.contains(&line), verify == GOOD, "{name}: {said}");
            assert_eq!(said.is_empty(), verify != GOOD, "{name}: {said}");
        }
    }
}

#[test]
fn scripts_are_told_of_the_connection_and_get_the_certificate_if_it_is_exported() {
    if !has_openssl("scripts_are_told_of_the_connection_and_get_the_certificate_if_it_is_exported")
    {
        return;
    }
    let (with, without) = (free_port(), free_port());
    let server = server(&[
        (with, "ssl.verifyclient.exportcert = \"enable\""),
        (without, ""),
    ]);
    let said = ask_as(&server, "direct", with);
    let told = "SSL_PROTOCOL=TLSv1.3\nSSL_CIPHER=TLS_AES_128_GCM_SHA256\nSSL_CIPHER_USEKEYSIZE=128\n\
         SSL_CLIENT_VERIFY=SUCCESS\nSSL_CLIENT_S_DN_CN=direct\nREMOTE_USER=direct\n";
    let exported = said.strip_prefix(told).unwrap_or_else(|| panic!("{said}"));
    let certificate = openssl(server.tree().root(), "x509 -in direct.crt");
    assert_eq!(
        exported.trim(),
        format!("SSL_CLIENT_CERT={}", certificate.trim())
    );
    let said = ask_as(&server, "direct", without);
    assert_eq!(said, format!("{told}SSL_CLIENT_CERT=nil"));
    // The key of the server is one that few have.
    let shown = s_client(&server, with, "-cert direct.crt -key direct.key");
    let shown = shown.to_lowercase();
    assert!(shown.contains("peer signature type: ed25519"), "{shown}");
}

/// The certificate of a client that ends in a few seconds, below `ca`.
fn brief(tree: &Tree, name: &str) {
    let root = tree.root();
    tree.write("index.txt", "");
    tree.write("serial", "77\n");
    tree.write(
        "ca.conf",
        "[ca]\ndefault_ca=one\n[one]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=any\n\
         [any]\ncommonName=supplied\n",
    );
    let request =
        format!("req -new {ECDSA} -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}");
    openssl(root, &request);
    let end = petrel_tests::run(
        std::process::Command::new("date").args(["-u", "-d", "+5 seconds", "+%Y%m%d%H%M%SZ"]),
        petrel_tests::PATIENCE,
    );
    openssl(
        root,
        &format!(
            "ca -batch -notext -config ca.conf -keyfile ca.key -cert ca.crt -in {name}.csr -out {name}.crt -extfile extensions \
             -startdate 20200101000000Z -enddate {}",
            end.text().trim()
        ),
    );
}

/// It takes so long because the certificate must end, five seconds after it is made.
#[test]
fn a_session_is_not_resumed_beyond_the_end_of_the_certificate() {
    if !has_openssl("a_session_is_not_resumed_beyond_the_end_of_the_certificate") {
        return;
    }
    let (strict, lenient) = (free_port(), free_port());
    let server = server(&[
        (strict, ""),
        (lenient, "ssl.verifyclient.enforce = \"disable\""),
    ]);
    brief(server.tree(), "brief");
    let good = "SSL_CLIENT_VERIFY=SUCCESS";
    let ask = |version: &str, port: u16, more: &str| {
        let words =
            format!("{version} -servername a.example -cert brief.crt -key brief.key {more}");
        s_client(&server, port, &words)
    };
    let versions = ["-tls1_2", "-tls1_3"];
    for version in versions {
        for port in [strict, lenient] {
            let first = ask(version, port, &format!("-sess_out {version}.{port}"));
            assert!(
                first.contains(good),
                "the certificate has ended too soon: {first}"
            );
        }
    }
    let has_ended = || !ask("-tls1_3", strict, "").contains(good);
    assert!(eventually(has_ended));
    for version in versions {
        let said = ask(version, strict, &format!("-sess_in {version}.{strict}"));
        assert!(!said.contains("SSL_CLIENT_VERIFY"), "{said}");
        let said = ask(version, lenient, &format!("-sess_in {version}.{lenient}"));
        assert!(
            said.contains("SSL_CLIENT_VERIFY=FAILED:certificate has expired"),
            "{said}"
        );
    }
}

/// A file for `ssl.stek-file`: times, and a name and keys of this byte.
fn stek(byte: u8, expires_s: u32) -> Vec<u8> {
    let mut file = Vec::new();
    for number in [0, 1, expires_s] {
        file.extend_from_slice(&u32::to_ne_bytes(number));
    }
    file.extend([byte; 80]);
    file
}

/// It takes so long because the second key expires after eight seconds, enough for a slow machine to use it first.
#[test]
fn a_changed_file_of_ticket_keys_counts_and_the_last_one_is_taken_until_it_expires() {
    if !has_openssl(
        "a_changed_file_of_ticket_keys_counts_and_the_last_one_is_taken_until_it_expires",
    ) {
        return;
    }
    let port = free_port();
    let server = Server::build()
        .tree(|tree| {
            pki::authority(tree, "ca");
            pki::certificate(tree, "ca", "server", "a.example", ECDSA);
            tree.write("server.pem", together(tree, &["server.crt", "server.key"]));
            tree.write("stek", stek(0xa1, u32::MAX));
        })
        .file("www/index.html", "hello")
        .config(&format!(
            "server.modules += ( \"mod_openssl\" )\nssl.stek-file = var.dir + \"/stek\"\n\
             ssl.pemfile = var.dir + \"/server.pem\"\n\
             $SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ ssl.engine = \"enable\" }}"
        ))
        .start();
    let session = |words: &str| s_client(&server, port, &format!("-servername a.example {words}"));
    // A ticket begins with the name of its key.
    let is_by = |shown: &str, byte: &str| {
        let name = format!("0000 - {}-", [byte; 8].join(" "));
        shown.contains(&name)
    };
    let first = session("-sess_out first");
    assert!(is_by(&first, "a1"), "{first}");
    let now_s = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let now_s = now_s.expect("it is later").as_secs() as u32;
    server.tree().replace("stek", stek(0xb2, now_s + 8));
    server.expect_log("stek has changed, and counts");
    assert!(eventually(|| is_by(&session("-sess_out second"), "b2")));
    for name in ["first", "second"] {
        let again = session(&format!("-sess_in {name}"));
        assert!(again.contains("Reused"), "{name}: {again}");
    }
    // The second one expires. The first goes on, and makes tickets again: it is the one that is left.
    assert!(eventually(|| session("-sess_in second").contains("New, ")));
    assert!(session("-sess_in first").contains("Reused"));
}
