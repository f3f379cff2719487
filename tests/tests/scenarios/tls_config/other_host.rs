//! Requests that a trusted proxy or a script turns into requests for another host: that host's rule for clients counts.

use petrel_tests::{Authority, Identity, Server, curl, free_port, is_installed, skip};

/// Hosts with authorities of their own for clients. `strict.example` enforces its rule, the others only tell.
struct Hosts {
    server: Server,
    port: u16,
    /// One whose certificate is good for `a.example`, one for the other hosts.
    clients: [Identity; 2],
    _authorities: [Authority; 2],
}

fn hosts() -> Hosts {
    let authorities = [Authority::new(), Authority::new()];
    let host = authorities[0].identity("a.example");
    let clients = [
        authorities[0].identity("alice"),
        authorities[1].identity("bob"),
    ];
    let port = free_port();
    let server = Server::build()
        .file("www/index.html", "hello")
        .file(
            "host.lua",
            "lighty.r.req_attr['uri.authority'] = lighty.r.req_header['X-Host']",
        )
        .config(&format!(
            r#"
            server.modules += ( "mod_openssl", "mod_extforward", "mod_magnet" )
            lua.max-run-time = 1000
            extforward.forwarder = ( "127.0.0.1" => "trust" )
            extforward.headers = ( "Forwarded" )
            extforward.params = ( "host" => "enable" )
            $REQUEST_HEADER["X-Host"] != "" {{ magnet.attract-raw-url-to = ( var.dir + "/host.lua" ) }}
            $SERVER["socket"] == "127.0.0.1:{port}" {{ ssl.engine = "enable" }}
            ssl.pemfile = "{}"
            ssl.privkey = "{}"
            ssl.verifyclient.activate = "enable"
            ssl.verifyclient.username = "SSL_CLIENT_S_DN_CN"
            ssl.verifyclient.enforce = "disable"
            ssl.verifyclient.ca-file = "{}"
            $HTTP["host"] =~ "^(strict|lenient)\." {{ ssl.verifyclient.ca-file = "{}" }}
            $HTTP["host"] == "strict.example" {{ ssl.verifyclient.enforce = "enable" }}
            $HTTP["host"] == "open.example" {{ ssl.verifyclient.activate = "disable" }}
            magnet.attract-response-start-to = ( var.dir + "/tell.lua" )
            "#,
            host.certificate.display(),
            host.key.display(),
            authorities[0].file().display(),
            authorities[1].file().display(),
        ))
        .file(
            "tell.lua",
            "local e = lighty.r.req_env\n\
             lighty.r.resp_header['X-Client'] = (e.SSL_CLIENT_VERIFY or '-') .. ' ' .. (e.REMOTE_USER or '-') .. ' ' ..\n\
                 (e.SSL_CLIENT_S_DN_CN or '-')",
        )
        .start();
    Hosts {
        server,
        port,
        clients,
        _authorities: authorities,
    }
}

impl Hosts {
    /// What a client is told on connections to `a.example`, for each of these fields one request on the same connection.
    fn ask(&self, client: Option<&Identity>, fields: &[&str]) -> Vec<String> {
        let url = format!("https://a.example:{}/", self.port);
        let resolve = format!("a.example:{}:127.0.0.1", self.port);
        let mut arguments = Vec::new();
        for field in fields {
            if !arguments.is_empty() {
                arguments.push("--next");
            }
            arguments.extend(["-k", "--resolve", &resolve, "--max-time", "20"]);
            arguments.extend(["-o", "/dev/null", "-w", "%{http_code} %header{x-client}\n"]);
            arguments.extend(["-H", field]);
            if let Some(client) = client {
                let files = [&client.certificate, &client.key];
                let [certificate, key] = files.map(|path| path.to_str().expect("ASCII"));
                arguments.extend(["--cert", certificate, "--key", key]);
            }
            arguments.push(&url);
        }
        let answer = curl(&arguments).text();
        answer.lines().map(str::to_owned).collect()
    }
}

#[test]
fn the_rule_of_the_host_that_a_proxy_names_counts() {
    let test = "the_rule_of_the_host_that_a_proxy_names_counts";
    if !is_installed("curl") {
        return skip(test, "there is no curl");
    }
    let hosts = hosts();
    let [alice, bob] = &hosts.clients;
    let named = |host: &str| format!("Forwarded: for=192.0.2.1;host={host}");
    let (strict, lenient, open) = (
        named("strict.example"),
        named("lenient.example"),
        named("open.example"),
    );
    let none = "X: 1";
    for field in ["X-Host: strict.example", &strict] {
        for client in [None, Some(alice), Some(bob)] {
            let answers = hosts.ask(client, &[none, field]);
            assert!(answers[1].starts_with("421 "), "{field}: {answers:?}");
        }
    }
    let alice_s = hosts.ask(Some(alice), &[none, &lenient, none, &open, &strict]);
    let failed = "FAILED:unable to get local issuer certificate - -";
    assert_eq!(
        alice_s[..4],
        [
            "200 SUCCESS alice alice",
            &*format!("200 {failed}"),
            "200 SUCCESS alice alice",
            "200 - - -",
        ]
    );
    let bob_s = hosts.ask(Some(bob), &[&lenient, none, &lenient, &open]);
    assert_eq!(
        bob_s,
        [
            "200 SUCCESS bob bob",
            &*format!("200 {failed}"),
            "200 SUCCESS bob bob",
            "200 - - -"
        ]
    );
    assert!(hosts.server.log().contains("rules for clients"));
}
