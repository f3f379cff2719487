//! Debian's filter of fail2ban for lighttpd reads Petrel's error log.

use std::process::Command;

use petrel_tests::{PATIENCE, Server, package, run, skip};

#[test]
fn the_stock_filter_counts_each_wrong_password() {
    let test = "the_stock_filter_counts_each_wrong_password";
    let fail2ban = package("fail2ban").unwrap_or_else(|why| panic!("{why}"));
    let python = Command::new("python3").arg("-V").output();
    if !python.is_ok_and(|output| output.status.success()) {
        return skip(test, "there is no python3");
    }
    let server = Server::build()
        .file("www/basic/a.txt", "a")
        .file("www/digest/a.txt", "a")
        .file("users", "anna:secret\n")
        .config(
            "server.modules += ( \"mod_auth\", \"mod_authn_file\" )
            server.feature-flags = ( \"auth.delay-invalid-creds\" => \"disable\" )
            auth.backend = \"plain\"
            auth.backend.plain.userfile = var.dir + \"/users\"
            auth.require = (
                \"/basic/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"valid-user\" ),
                \"/digest/\" => ( \"method\" => \"digest\", \"realm\" => \"R\", \"require\" => \"valid-user\" )
            )",
        )
        .start();
    let wrong = "Authorization: Basic YW5uYTp3cm9uZw==";
    for _ in 0..5 {
        let mut client = server.client();
        client.send(format!(
            "GET /basic/a.txt HTTP/1.1\r\nHost: a\r\n{wrong}\r\n\r\n"
        ));
        assert_eq!(client.response().status, 401);
    }
    // A request for one URL with the answer to a question about another one.
    let mut client = server.client();
    client.send(
        "GET /digest/a.txt HTTP/1.1\r\nHost: a\r\nAuthorization: Digest username=\"an) na\", realm=\"R\", \
         nonce=\"x\", uri=\"/(b)\", qop=auth, nc=00000001, cnonce=\"y\", \
         response=\"00000000000000000000000000000000\"\r\n\r\n",
    );
    assert_eq!(client.response().status, 400);
    server.expect_log("uri mismatch (/(b%29) IP: 127.0.0.1\n");
    let mut filter = Command::new("python3");
    filter
        .arg(fail2ban.join("usr/bin/fail2ban-regex"))
        .env("PYTHONPATH", fail2ban.join("usr/lib/python3/dist-packages"))
        .arg(server.tree().path("error.log"))
        .arg(fail2ban.join("etc/fail2ban/filter.d/lighttpd-auth.conf"));
    let found = run(&mut filter, PATIENCE).text();
    let all = "Failregex: 6 total";
    assert!(found.contains(all), "{found}\n{}", server.log());
}
