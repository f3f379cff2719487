//! Files and settings that cannot be used, each told with its place.

use petrel_tests::{Server, Tree};

use crate::tls_config::pki::{self, ECDSA, has_openssl, openssl, together};

fn files(tree: &Tree) {
    pki::authority(tree, "ca");
    pki::certificate(tree, "ca", "one", "a.example", ECDSA);
    pki::certificate(tree, "ca", "two", "a.example", ECDSA);
    tree.write("good.pem", together(tree, &["one.crt", "one.key"]));
    tree.write("empty.pem", "");
    openssl(
        tree.root(),
        "pkey -in one.key -aes128 -passout pass:secret -out locked.key",
    );
    openssl(
        tree.root(),
        "ec -in one.key -aes128 -passout pass:secret -out old-locked.key",
    );
    tree.directory("directory");
    pki::sign(tree, "ca", "old", "/CN=old", ECDSA, "-days -1");
    tree.write("extensions", "1.3.6.1.5.5.7.1.24=DER:3003020105\n");
    pki::sign(tree, "ca", "stapled", "/CN=stapled", ECDSA, "-days 30");
    tree.write("old.pem", together(tree, &["old.crt", "old.key"]));
    tree.write(
        "stapled.pem",
        together(tree, &["stapled.crt", "stapled.key"]),
    );
}

#[track_caller]
fn check(lines: &str) -> (i32, String) {
    let config = format!("server.modules += ( \"mod_openssl\" )\nssl.engine = \"enable\"\n{lines}");
    let finished = Server::build()
        .tree(files)
        .file("www/x", "")
        .config(&config)
        .check(&["-tt"]);
    (finished.code(), finished.errors)
}

/// It takes so long because openssl makes all keys and certificates anew for each of more than twenty settings.
#[test]
fn what_cannot_be_used_refuses_the_start_and_is_told_with_its_place() {
    if !has_openssl("what_cannot_be_used_refuses_the_start_and_is_told_with_its_place") {
        return;
    }
    let good = "ssl.pemfile = var.dir + \"/good.pem\"\n";
    for (lines, message) in [
        (
            String::new(),
            "ssl.engine needs a certificate: ssl.pemfile is not set",
        ),
        (
            "ssl.pemfile = var.dir + \"/empty.pem\"".into(),
            "empty.pem: it is empty",
        ),
        (
            "ssl.pemfile = var.dir + \"/missing.pem\"".into(),
            "missing.pem: it cannot be read: No such file",
        ),
        (
            "ssl.pemfile = var.dir + \"/directory\"".into(),
            "directory: it cannot be read: is a directory",
        ),
        (
            "ssl.pemfile = var.dir + \"/one.crt\"".into(),
            "one.crt: it has no private key",
        ),
        (
            "ssl.pemfile = var.dir + \"/one.crt\"\nssl.privkey = var.dir + \"/two.key\"".into(),
            "two.key: the key does not belong to the certificate",
        ),
        (
            "ssl.pemfile = var.dir + \"/one.crt\"\nssl.privkey = var.dir + \"/locked.key\"".into(),
            "locked.key: its private key needs a passphrase",
        ),
        (
            "ssl.pemfile = var.dir + \"/one.crt\"\nssl.privkey = var.dir + \"/old-locked.key\""
                .into(),
            "old-locked.key: its private key needs a passphrase",
        ),
        (
            "ssl.pemfile = var.dir + \"/stapled.pem\"".into(),
            "(must-staple), and there is no file with one",
        ),
        (
            "ssl.pemfile = var.dir + \"/stapled.pem\"\nssl.stapling-file = var.dir + \"/missing\""
                .into(),
            "(must-staple), and of the file with it, it cannot be read",
        ),
        (
            "ssl.pemfile = var.dir + \"/stapled.pem\"\nssl.stapling-file = var.dir + \"/ca.crt\""
                .into(),
            "(must-staple), and of the file with it, it is no successful OCSP response",
        ),
        (
            format!("{good}$HTTP[\"url\"] =^ \"/a\" {{ ssl.verifyclient.activate = \"enable\" }}"),
            "ssl.verifyclient.activate counts in the handshake",
        ),
        (
            format!("{good}$HTTP[\"host\"] == \"a\" {{ ssl.engine = \"enable\" }}"),
            "the listener would speak in the clear",
        ),
        (
            format!("{good}ssl.ca-file = var.dir + \"/one.key\""),
            "one.key: it has no certificate",
        ),
        (
            format!("{good}ssl.verifyclient.ca-crl-file = var.dir + \"/ca.crt\""),
            "ca.crt: it has no revocation list",
        ),
        (
            format!("{good}ssl.stek-file = var.dir + \"/ca.crt\""),
            "ca.crt: it is no session ticket key",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"MaxProtocol\" => \"TLSv1.1\" )"),
            "no version of TLS is left",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"Protocol\" => \"-ALL, TLSv1\" )"),
            "no version of TLS is left",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"CipherString\" => \"AES128-SHA\" )"),
            "nothing in the list of ciphers is to be had",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"VerifyMode\" => \"Require\" )"),
            "VerifyMode is not read",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"MinProtocol\" => \"TLSv9\" )"),
            "is no version of TLS",
        ),
        (
            format!("{good}ssl.ec-curve = \"brainpoolP256r1\""),
            "nothing in ssl.ec-curve is to be had",
        ),
    ] {
        let (code, said) = check(&lines);
        assert_eq!(code, 255, "{lines}: {said}");
        assert!(said.contains(message), "{lines}: {said}");
        assert!(said.contains("petrel.conf:"), "{lines}: {said}");
    }
}

/// It takes so long because openssl makes all keys and certificates anew for each of thirteen settings.
#[test]
fn what_is_less_than_it_says_is_told_and_starts() {
    if !has_openssl("what_is_less_than_it_says_is_told_and_starts") {
        return;
    }
    let good = "ssl.pemfile = var.dir + \"/good.pem\"\n";
    for (lines, message) in [
        (
            "ssl.pemfile = var.dir + \"/old.pem\"".to_owned(),
            "old.pem: the certificate has expired",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"MinProtocol\" => \"TLSv1\" )"),
            "TLS 1.2 is the least that is spoken",
        ),
        (
            format!("{good}ssl.cipher-list = \"ECDHE-RSA-AES128-SHA:HIGH\""),
            "there are no ciphers ECDHE-RSA-AES128-SHA",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"Curves\" => \"X448:X25519\" )"),
            "there are no groups X448",
        ),
        (
            format!("{good}ssl.openssl.ssl-conf-cmd = ( \"RecordPadding\" => \"1\" )"),
            "RecordPadding has no effect",
        ),
        (
            format!("{good}ssl.cipher-list = \"PROFILE=SYSTEM\""),
            "the default ciphers are offered",
        ),
        (
            format!("{good}ssl.stek-file = var.dir + \"/later\""),
            "later: it cannot be read: No such file",
        ),
        (
            format!("{good}ssl.acme-tls-1 = var.dir + \"/later\""),
            "later: it cannot be read: No such file",
        ),
        (
            format!("{good}ssl.use-sslv3 = \"enable\""),
            "SSLv3 is never spoken",
        ),
        (
            format!("{good}ssl.ech-opts = ( \"keydir\" => \"/x\" )"),
            "ssl.ech-opts",
        ),
        (
            format!("{good}ssl.verifyclient.activate = \"enable\""),
            "clients are refused",
        ),
        (
            format!("{good}$HTTP[\"host\"] == \"b\" {{ ssl.privkey = var.dir + \"/two.key\" }}"),
            "ssl.privkey has no effect",
        ),
    ] {
        let (code, said) = check(&lines);
        assert_eq!(code, 0, "{lines}: {said}");
        assert!(said.contains(message), "{lines}: {said}");
    }
    let (code, said) = check(&format!(
        "{good}ssl.openssl.ssl-conf-cmd = ( \"MinProtocol\" => \"TLSv1.2\", \"Options\" => \"-ServerPreference,-SessionTicket\" )"
    ));
    assert_eq!((code, said.contains("petrel.conf:")), (0, false), "{said}");
}
