//! What backends receive about a request, compared with lighttpd if that is installed.

use std::collections::BTreeMap;

use petrel_tests::{Backend, Record, Server, Speaks, Tree, is_installed, skip};

use crate::gateway::{OPTIONS, in_front_of};

/// Petrel and lighttpd with the same configuration, each with a backend that records requests.
struct Pair {
    petrel: (Server, Backend),
    lighttpd: (Server, Backend),
    differences: Vec<String>,
}

/// Variables that always differ, or that the test's backend adds.
const BY_NATURE: [&str; 5] = [
    "SERVER_SOFTWARE",
    "REMOTE_PORT",
    "SERVER_PORT",
    "(id)",
    "(keep)",
];

impl Pair {
    /// `config` makes the directive from the backend.
    fn start(
        speaks: Speaks,
        make: impl Fn(&Tree),
        config: impl Fn(&Backend) -> String,
    ) -> Option<Pair> {
        if !is_installed("lighttpd") {
            skip("gateway environment", "lighttpd is not installed");
            return None;
        }
        let note = || Backend::start(speaks, |exchange| exchange.say("noted"));
        let builder = |backend: &Backend| Server::build().tree(&make).config(&config(backend));
        let (ours, theirs) = (note(), note());
        Some(Pair {
            petrel: (builder(&ours).start(), ours),
            lighttpd: (builder(&theirs).start_lighttpd(), theirs),
            differences: Vec::new(),
        })
    }

    /// Sends a request to both, and records how the variables differ.
    fn send(&mut self, request: &str) -> &mut Pair {
        let ours = hear(&self.petrel, request);
        let theirs = hear(&self.lighttpd, request);
        match (&ours, &theirs) {
            (Ok(ours), Ok(theirs)) => {
                for (name, value) in ours {
                    match theirs.get(name) {
                        Some(other) if other == value => {}
                        // RFC 3875 4.1.14 does not allow an empty one.
                        Some(other) if name == "SERVER_NAME" && other.is_empty() => {}
                        other => self
                            .differences
                            .push(format!("{request:?}: {name} {value:?} for {other:?}")),
                    }
                }
                for name in theirs.keys().filter(|name| !ours.contains_key(*name)) {
                    let value = &theirs[name];
                    self.differences
                        .push(format!("{request:?}: no {name}, which is {value:?}"));
                }
            }
            _ if ours == theirs => {}
            // ARCHITECTURE.md explains this difference.
            (Err(405), Err(501)) => {}
            _ => self
                .differences
                .push(format!("{request:?}: {ours:?} for {theirs:?}")),
        }
        self
    }

    fn get(&mut self, target: &str) -> &mut Pair {
        self.send(&format!(
            "GET {target} HTTP/1.1\r\nHost: petrel.test\r\n\r\n"
        ))
    }

    #[track_caller]
    fn expect_no_difference(&self) {
        let list = self.differences.join("\n");
        assert!(self.differences.is_empty(), "unlike lighttpd:\n{list}");
    }
}

/// What the backend received of a request, or the status if it received nothing.
fn hear(side: &(Server, Backend), request: &str) -> Result<BTreeMap<String, String>, u16> {
    let (server, backend) = side;
    let before = backend.requests().len();
    let status = server.exchange(request).status;
    let requests = backend.requests();
    let Some(record) = requests.get(before) else {
        return Err(status);
    };
    let root = server.tree().root().display().to_string();
    let port = server.port().to_string();
    let kept = record
        .params
        .iter()
        .filter(|(name, _)| !BY_NATURE.contains(&name.as_str()));
    Ok(kept
        .map(|(name, value)| {
            let value = value.replace(&root, "TREE").replace(&port, "PORT");
            (name.clone(), value)
        })
        .collect())
}

fn files(tree: &Tree) {
    tree.write("www/index.php", "")
        .write("www/a.php", "")
        .write("www/dir/b.php", "")
        .write("www/dir/index.php", "")
        .write("www/plain.txt", "plain")
        .directory("www/app");
}

/// Requests that together cover every variable.
fn ask_everything(pair: &mut Pair) {
    for target in [
        "/a.php",
        "/a.php?",
        "/a.php?x=1&y=%20z",
        "/a.php/path/info",
        "/a.php/path%20info/?q",
        "/dir/b.php/",
        "/dir//b.php",
        "/dir/../a.php",
        "/dir/%62.php",
        "/missing.php",
        "/missing.php/x",
        "/",
        "/dir/",
        "/app",
        "/app/",
        "/app/some/path?query",
        "/app/a.php/x",
        "/application",
    ] {
        pair.get(target);
    }
    pair.send("GET /a.php HTTP/1.0\r\n\r\n")
        .send("GET /a.php HTTP/1.0\r\nHost: b.test:81\r\n\r\n")
        .send("GET http://abs.test:82/a.php?z HTTP/1.1\r\nHost: abs.test:82\r\n\r\n")
        .send(
            "HEAD /a.php HTTP/1.1\r\nHost: a\r\n\r\n"
                .replace("HEAD", "OPTIONS")
                .as_str(),
        )
        .send(
            "POST /a.php HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Type: x/y\r\n\r\nabc",
        )
        .send("POST /a.php HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        .send("PUT /a.php HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        .send(
            "GET /a.php HTTP/1.1\r\nHost: a\r\nX-Foo: 1\r\nCookie: a=b; c=d\r\nAccept: */*\r\n\
             Accept-Language: de\r\nX-Empty:\r\nUser-Agent: t/1 (x; y)\r\nReferer: http://r/\r\n\
             Authorization: Basic eDp5\r\nIf-None-Match: \"1\"\r\nX-2nd: 2\r\n\r\n",
        )
        .send(
            "GET /a.php HTTP/1.1\r\nHost: a\r\nX-Twice: 1\r\nX-Twice: 2\r\nCookie: a\r\n\
             Cookie: b\r\n\r\n",
        )
        .send("GET /a.php HTTP/1.1\r\nHost: a\r\nProxy: http://evil\r\nConnection: close\r\n\r\n");
}

fn compare(speaks: Speaks, key: &str, options: &str, more: &str) {
    let pair = Pair::start(speaks, files, |backend| {
        let comma = if options.is_empty() { "" } else { ", " };
        let options = format!("{options}{comma}\"disable-time\" => 0");
        format!("{}\n{more}", backend.directive(key, &options))
    });
    let Some(mut pair) = pair else { return };
    ask_everything(&mut pair);
    pair.expect_no_difference();
}

#[test]
fn scripts_by_suffix_as_in_lighttpd() {
    compare(
        Speaks::FastCgi,
        ".php",
        "",
        "index-file.names = ( \"index.php\" )",
    );
}

#[test]
fn scripts_by_suffix_need_not_exist_without_check_local() {
    compare(Speaks::FastCgi, ".php", OPTIONS, "");
}

#[test]
fn applications_by_prefix_as_in_lighttpd() {
    compare(Speaks::FastCgi, "/app", OPTIONS, "");
}

#[test]
fn applications_at_the_root_as_in_lighttpd() {
    compare(Speaks::FastCgi, "/", OPTIONS, "");
}

#[test]
fn fix_root_scriptname_as_in_lighttpd() {
    let options = format!("\"fix-root-scriptname\" => \"enable\", {OPTIONS}");
    compare(Speaks::FastCgi, "/", &options, "");
    compare(Speaks::Scgi, "/", &options, "");
}

#[test]
fn broken_scriptfilename_as_in_lighttpd() {
    let options = "\"broken-scriptfilename\" => \"enable\"";
    let pair = Pair::start(Speaks::FastCgi, files, |backend| {
        backend.directive(".php", options)
    });
    let Some(mut pair) = pair else { return };
    // Without path info lighttpd appends a slash.
    pair.get("/a.php/path/info")
        .get("/a.php/path%20info/?q")
        .get("/dir/b.php/")
        .get("/missing.php/x")
        .expect_no_difference();
}

#[test]
fn another_docroot_as_in_lighttpd() {
    compare(
        Speaks::FastCgi,
        ".php",
        "\"docroot\" => \"/srv/elsewhere\"",
        "",
    );
    compare(
        Speaks::FastCgi,
        "/app",
        &format!("\"docroot\" => \"/srv\", {OPTIONS}"),
        "",
    );
}

#[test]
fn strip_request_uri_as_in_lighttpd() {
    compare(
        Speaks::FastCgi,
        "/app",
        &format!("\"strip-request-uri\" => \"/app\", {OPTIONS}"),
        "",
    );
}

#[test]
fn scgi_and_uwsgi_as_in_lighttpd() {
    for speaks in [Speaks::Scgi, Speaks::Uwsgi] {
        compare(speaks, "/app", OPTIONS, "");
        compare(speaks, ".php", "", "");
    }
}

#[test]
fn variables_of_the_configuration_as_in_lighttpd() {
    let more = "server.modules += ( \"mod_setenv\" )\n\
        setenv.add-environment = ( \"APP_MODE\" => \"test\", \"HTTP_X\" => \"1\" )\n\
        setenv.add-request-header = ( \"X-Added\" => \"yes\" )";
    compare(Speaks::FastCgi, ".php", "", more);
}

#[test]
fn error_pages_by_a_backend_as_in_lighttpd() {
    for more in [
        "server.error-handler-404 = \"/a.php?from=404\"",
        "server.error-handler = \"/a.php\"",
    ] {
        compare(Speaks::FastCgi, ".php", "", more);
    }
}

#[test]
fn row_38_a_client_cannot_set_http_proxy() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| exchange.say("noted"));
        let server = in_front_of(&backend).start();
        let fields = [("Proxy", "http://evil"), ("PROXY", "http://evil")];
        assert_eq!(server.client().request("GET", "/app/", &fields).status, 200);
        let request = backend.last();
        for name in ["HTTP_PROXY", "Proxy"] {
            assert_eq!(request.all(name), Vec::<&str>::new(), "{speaks:?}");
        }
    }
}

#[test]
fn row_38_an_underscore_does_not_pass_for_a_dash() {
    let fields = [
        ("X_Foo", "spoofed"),
        ("X-Foo", "real"),
        ("X_Forwarded-For", "spoofed"),
        ("Content_Length", "spoofed"),
        ("X.Foo", "spoofed"),
        ("Remote_User", "spoofed"),
        ("X!Forwarded!For", "spoofed"),
        ("HTTP2_Settings", "spoofed"),
    ];
    for speaks in [Speaks::FastCgi, Speaks::Scgi, Speaks::Uwsgi] {
        let request = hear_fields(speaks, &fields);
        assert_eq!(request.all("HTTP_X_FOO"), ["real"], "{speaks:?}");
        let mut values = request.params.iter().map(|(_, value)| value);
        assert!(
            !values.any(|value| value.contains("spoofed")),
            "{speaks:?}: {request:?}"
        );
    }
    // Backends may turn fields into variables themselves.
    for speaks in [Speaks::Http, Speaks::Ajp13] {
        let request = hear_fields(speaks, &fields);
        assert_eq!(request.all("X-Foo"), ["real"], "{speaks:?}");
        let mut values = request.params.iter().map(|(_, value)| value);
        assert!(
            !values.any(|value| value.contains("spoofed")),
            "{speaks:?}: {request:?}"
        );
    }
}

#[test]
fn fields_with_underscores_are_passed_if_the_configuration_says_so() {
    let backend = Backend::start(Speaks::Http, |exchange| exchange.say("noted"));
    let pass = "proxy.underscores-in-headers = \"enable\"";
    let set = "server.modules += ( \"mod_setenv\" )
        setenv.set-request-header = ( \"By_Module\" => \"set\" )";
    let fields = [
        ("Remote_User", "joe"),
        ("X.Foo", "dot"),
        ("X_Forwarded-For", "spoofed"),
        ("Content_Length", "spoofed"),
        ("By_Module", "spoofed"),
    ];
    for (config, passed) in [("", false), (pass, true)] {
        let server = in_front_of(&backend).config(config).config(set).start();
        let response = server.client().request("GET", "/app/", &fields);
        assert_eq!(response.status, 200, "{response}");
        let request = backend.last();
        assert_eq!(request.param("Remote_User"), passed.then_some("joe"));
        assert_eq!(request.param("X.Foo"), passed.then_some("dot"));
        // Fields that look like the server's own are never passed on; those that a module set always are.
        assert_eq!(request.param("X_Forwarded-For"), None);
        assert_eq!(request.param("Content_Length"), None);
        assert_eq!(request.all("By_Module"), ["set"]);
    }
    let server = petrel_tests::Server::build()
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_http\" )")
        .config("proxy-core.protocol = \"http\"")
        .config(&format!("proxy-core.backends = ( \"{}\" )", backend.name()))
        .config("proxy-core.underscores-in-headers = \"enable\"")
        .start();
    let response = server.client().request("GET", "/", &fields);
    assert_eq!(response.status, 200, "{response}");
    assert_eq!(backend.last().param("Remote_User"), Some("joe"));
}

/// What a backend receives of a request with these fields.
fn hear_fields(speaks: Speaks, fields: &[(&str, &str)]) -> Record {
    let backend = Backend::start(speaks, |exchange| exchange.say("noted"));
    let server = in_front_of(&backend).start();
    let response = server.client().request("GET", "/app/", fields);
    assert_eq!(response.status, 200, "{speaks:?}: {response}");
    backend.last()
}

#[test]
fn a_client_cannot_set_what_only_the_server_says() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("noted"));
    let server = in_front_of(&backend).start();
    let fields = [
        ("Remote-User", "admin"),
        ("Redirect-Status", "0"),
        ("Https", "on"),
    ];
    server.client().request("GET", "/app/", &fields);
    let request = backend.last();
    assert_eq!(request.param("REMOTE_USER"), None);
    assert_eq!(request.param("REDIRECT_STATUS"), Some("200"));
    assert_eq!(request.param("HTTPS"), None);
    assert_eq!(request.param("HTTP_REMOTE_USER"), Some("admin"));
}

#[test]
fn a_proxy_tells_who_asked() {
    let backend = Backend::start(Speaks::Http, |exchange| exchange.say("noted"));
    let server = in_front_of(&backend).start();
    let fields = [("X-Forwarded-For", "192.0.2.1")];
    server.client().request("GET", "/app/x?y", &fields);
    let request = backend.last();
    assert_eq!(request.param("REQUEST_URI"), Some("/app/x?y"));
    assert_eq!(request.param("Host"), Some("petrel.test"));
    assert_eq!(
        request.param("X-Forwarded-For"),
        Some("192.0.2.1, 127.0.0.1")
    );
    assert_eq!(request.param("X-Forwarded-Proto"), Some("http"));
    assert_eq!(request.param("X-Host"), Some("petrel.test"));
}

#[test]
fn long_urls_and_heads_reach_every_protocol() {
    let long = "x".repeat(3000);
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| exchange.say("noted"));
        let server = in_front_of(&backend).start();
        let target = format!("/app/{}?{}", &long[..1500], &long[..500]);
        let response = server
            .client()
            .request("GET", &target, &[("X-Long", &long)]);
        assert_eq!(response.status, 200, "{speaks:?}: {response}");
        let request = backend.last();
        let uri = request.param("REQUEST_URI").unwrap_or_default();
        let query = request.param("QUERY_STRING").unwrap_or_default();
        let whole = match speaks {
            Speaks::Ajp13 => format!("{uri}?{query}"),
            _ => uri.to_owned(),
        };
        assert!(whole == target, "{speaks:?}: {whole}");
        let names = ["HTTP_X_LONG", "X-Long"];
        assert!(
            names.iter().any(|name| request.param(name) == Some(&long)),
            "{speaks:?}"
        );
    }
}
