use petrel_engine::testing::{Answer, Site};

use super::super::options::testing::host;
use super::*;
use crate::testing::Tree;

/// The variables of `answer`'s exchange, one per line.
fn variables(answer: &Answer, host: &BackendHost, body: BodyLength) -> String {
    let mut lines = String::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    build(answer.exchange(), host, body, &mut |name, value| {
        lines += &format!("{}={}\n", text(name), text(value));
    });
    lines
}

/// A backend with these options in addition to its address.
fn backend(options: &str) -> BackendHost {
    host(&format!("\"host\" => \"a\"{options}"))
}

/// The values of the variables `names`, in the format of `variables`.
fn some(lines: &str, names: &[&str]) -> String {
    let is_wanted = |line: &&str| {
        names
            .iter()
            .any(|name| line.starts_with(&format!("{name}=")))
    };
    lines
        .lines()
        .filter(is_wanted)
        .map(|line| format!("{line}\n"))
        .collect()
}

fn site(tree: &Tree, config: &str) -> Site {
    tree.site(
        config,
        &[
            &crate::setenv::MODULE,
            &crate::alias::MODULE,
            &crate::index_file::MODULE,
        ],
    )
}

const SCRIPT: &[&str] = &[
    "SCRIPT_NAME",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "SCRIPT_FILENAME",
    "DOCUMENT_ROOT",
];

// Names, values and order are what lighttpd 1.4.69 sends for the same request.
#[test]
fn a_request_for_a_script_has_lighttpds_variables() {
    let tree = Tree::new(&[("a.php", "")]);
    let site = site(&tree, "server.tag = \"tag\"");
    let answer = site.request(
        "GET /a.php/in%20fo/x?q=1&b HTTP/1.1\r\nHost: A.Example:80\r\nUser-Agent: ua\r\n\
         Content-Type: t/x\r\nConnection: close\r\n\r\n",
    );
    let root = tree.path("");
    let root = root.trim_end_matches('/');
    assert_eq!(
        variables(&answer, &backend(""), BodyLength::None),
        format!(
            "CONTENT_LENGTH=0\nQUERY_STRING=q=1&b\nREQUEST_URI=/a.php/in%20fo/x?q=1&b\n\
             REDIRECT_STATUS=200\nSCRIPT_NAME=/a.php\nPATH_INFO=/in fo/x\n\
             PATH_TRANSLATED={root}/in fo/x\nSCRIPT_FILENAME={root}/a.php\nDOCUMENT_ROOT={root}\n\
             REQUEST_METHOD=GET\nSERVER_PROTOCOL=HTTP/1.1\nSERVER_SOFTWARE=tag\n\
             GATEWAY_INTERFACE=CGI/1.1\nREQUEST_SCHEME=http\nSERVER_PORT=80\n\
             SERVER_ADDR=127.0.0.1\nSERVER_NAME=a.example\nREMOTE_ADDR=127.0.0.1\n\
             REMOTE_PORT=40000\nHTTP_HOST=a.example\nHTTP_USER_AGENT=ua\nCONTENT_TYPE=t/x\n\
             HTTP_CONNECTION=close\n"
        )
    );
}

#[test]
fn an_upgrade_has_a_variable_only_where_the_backend_may_agree_to_it() {
    let tree = Tree::new(&[("a.php", "")]);
    let answer = site(&tree, "").request(
        "GET /a.php HTTP/1.1\r\nHost: h\r\nConnection: upgrade, http2-settings\r\n\
         Upgrade: h2c, websocket\r\nHTTP2-Settings: x\r\n\r\n",
    );
    for (option, expected) in [
        ("", None),
        (", \"upgrade\" => \"enable\"", Some("websocket")),
    ] {
        let lines = variables(&answer, &backend(option), BodyLength::None);
        let mut upgrades = lines
            .lines()
            .filter_map(|line| line.strip_prefix("HTTP_UPGRADE="));
        assert_eq!(upgrades.next(), expected, "{lines}");
        assert!(!lines.contains("HTTP2_SETTINGS"), "{lines}");
    }
}

#[test]
fn a_body_has_its_length_first() {
    let tree = Tree::new(&[("a.php", "")]);
    let answer =
        site(&tree, "").request("POST /a.php HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    let lines = variables(&answer, &backend(""), BodyLength::Known(3));
    assert!(lines.starts_with("CONTENT_LENGTH=3\n"), "{lines}");
    assert!(lines.contains("\nHTTP_CONTENT_LENGTH=3\n"), "{lines}");
    let lines = variables(&answer, &backend(""), BodyLength::Unknown);
    assert!(lines.starts_with("QUERY_STRING="), "{lines}");
}

#[test]
fn paths_are_those_of_the_backend() {
    let tree = Tree::new(&[("a.php", ""), ("out/b.php", "")]);
    let site = site(&tree, "alias.url = ( \"/p/\" => \"ROOT/out/\" )");
    let root = tree.path("");
    let root = root.trim_end_matches('/');
    for (target, options, expected) in [
        (
            "/a.php/i",
            ", \"docroot\" => \"/dr/\"",
            "SCRIPT_NAME=/a.php\nPATH_INFO=/i\nPATH_TRANSLATED=/dr/i\nSCRIPT_FILENAME=/dr/a.php\nDOCUMENT_ROOT=/dr/\n",
        ),
        (
            "/a.php/i",
            ", \"broken-scriptfilename\" => \"enable\"",
            "SCRIPT_NAME=/a.php\nPATH_INFO=/i\nPATH_TRANSLATED=TREE/i\nSCRIPT_FILENAME=TREE/a.php/i\nDOCUMENT_ROOT=TREE\n",
        ),
        (
            "/a.php/i",
            ", \"broken-scriptfilename\" => \"enable\", \"docroot\" => \"/dr\"",
            "SCRIPT_NAME=/a.php\nPATH_INFO=/i\nPATH_TRANSLATED=/dr/i\nSCRIPT_FILENAME=/dr/a.php\nDOCUMENT_ROOT=/dr\n",
        ),
        (
            "/p/b.php/x",
            "",
            "SCRIPT_NAME=/p/b.php\nPATH_INFO=/x\nPATH_TRANSLATED=TREE/out/x\nSCRIPT_FILENAME=TREE/out/b.php\nDOCUMENT_ROOT=TREE/out/\n",
        ),
        (
            "/a.php/i",
            ", \"mode\" => \"authorizer\"",
            "SCRIPT_FILENAME=TREE/a.php\nDOCUMENT_ROOT=TREE\n",
        ),
    ] {
        let lines = variables(&site.get(target), &backend(options), BodyLength::None);
        assert_eq!(
            some(&lines, SCRIPT),
            expected.replace("TREE", root),
            "{target} {options}"
        );
    }
}

#[test]
fn an_authorizer_is_asked_without_the_body() {
    let tree = Tree::new(&[("x.txt", "")]);
    let host = backend(", \"mode\" => \"authorizer\"");
    let lines = variables(
        &site(&tree, "").get("/x.txt?q"),
        &host,
        BodyLength::Known(7),
    );
    assert!(
        lines.starts_with("QUERY_STRING=q\nREQUEST_URI=/x.txt?q\n"),
        "{lines}"
    );
}

#[test]
fn before_the_path_is_mapped_the_document_root_is_known() {
    let tree = Tree::new(&[]);
    let mut answer = site(&tree, "").get("/missing/x");
    answer.exchange_mut().physical = petrel_engine::exchange::Physical::default();
    let lines = variables(&answer, &backend(""), BodyLength::None);
    let root = tree.path("");
    let root = root.trim_end_matches('/');
    let expected =
        format!("SCRIPT_NAME=/missing/x\nSCRIPT_FILENAME={root}/missing/x\nDOCUMENT_ROOT={root}\n");
    assert_eq!(some(&lines, SCRIPT), expected);
}

#[test]
fn the_target_is_told_as_it_was_sent_and_as_it_is_now() {
    let tree = Tree::new(&[("a.php", "")]);
    let site = site(&tree, "");
    let names = ["REQUEST_URI", "REDIRECT_URI"];
    for (target, strip, expected) in [
        (
            "/fcgi/foo/b%2fb",
            "",
            "REQUEST_URI=/fcgi/foo/b%2fb\nREDIRECT_URI=/fcgi/foo/b/b\n",
        ),
        (
            "/fcgi/foo?x",
            "/fcgi",
            "REQUEST_URI=/foo?x\nREDIRECT_URI=/fcgi/foo?x\n",
        ),
        (
            "/fcgi/foo?x",
            "/fcgi/",
            "REQUEST_URI=/foo?x\nREDIRECT_URI=/fcgi/foo?x\n",
        ),
        ("/fcgi/foo?x", "/f", "REQUEST_URI=/fcgi/foo?x\n"),
        ("/fcgi/foo?x", "/fcgi/foo", "REQUEST_URI=/fcgi/foo?x\n"),
        ("/fcgi/foo?x", "/", "REQUEST_URI=/fcgi/foo?x\n"),
        ("http://X.y/p?x", "", "REQUEST_URI=/p?x\n"),
        ("http://X.y", "", "REQUEST_URI=/\n"),
    ] {
        let option = format!(", \"strip-request-uri\" => \"{strip}\"");
        let lines = variables(&site.get(target), &backend(&option), BodyLength::None);
        let expected = match strip {
            "" => expected,
            // Removing a prefix for the backend is no rewriting, so there is no REDIRECT_URI.
            _ => expected
                .split("REDIRECT")
                .next()
                .expect("there is a first part"),
        };
        assert_eq!(some(&lines, &names), expected, "{target} {strip}");
    }
}

#[test]
fn an_error_handler_learns_what_went_wrong() {
    let tree = Tree::new(&[("a.php", "")]);
    let site = site(&tree, "server.error-handler-404 = \"/a.php?err=1\"");
    let lines = variables(&site.get("/missing?x=y"), &backend(""), BodyLength::None);
    let names = [
        "QUERY_STRING",
        "REQUEST_URI",
        "REDIRECT_URI",
        "REDIRECT_STATUS",
        "SCRIPT_NAME",
    ];
    assert_eq!(
        some(&lines, &names),
        "QUERY_STRING=err=1\nREQUEST_URI=/missing?x=y\nREDIRECT_URI=/a.php?err=1\n\
         SCRIPT_NAME=/a.php\nREDIRECT_STATUS=404\n"
    );
}

#[test]
fn variables_of_modules_come_last_under_names_that_programs_can_read() {
    let tree = Tree::new(&[("a.php", "")]);
    let config = "setenv.add-environment = ( \"my-var\" => \"v\", \"lower.case\" => \"w\", \"A_1\" => \"\" )";
    let lines = variables(
        &site(&tree, config).get("/a.php"),
        &backend(""),
        BodyLength::None,
    );
    assert!(
        lines.ends_with("\nMY_VAR=v\nLOWER_CASE=w\nA_1=\n"),
        "{lines}"
    );
}

#[test]
fn the_server_has_a_name_also_without_a_host() {
    let tree = Tree::new(&[("a.php", "")]);
    let request = "GET /a.php HTTP/1.0\r\n\r\n";
    for (config, name) in [
        ("", "127.0.0.1"),
        ("server.name = \"srv.name\"", "srv.name"),
    ] {
        let lines = variables(
            &site(&tree, config).request(request),
            &backend(""),
            BodyLength::None,
        );
        let names = ["SERVER_NAME", "SERVER_PROTOCOL"];
        assert_eq!(
            some(&lines, &names),
            format!("SERVER_PROTOCOL=HTTP/1.0\nSERVER_NAME={name}\n")
        );
    }
    let answer = site(&tree, "").request("GET /a.php HTTP/1.1\r\nHost: [::1]:8\r\n\r\n");
    let lines = variables(&answer, &backend(""), BodyLength::None);
    assert!(lines.contains("\nSERVER_NAME=[::1]\n"), "{lines}");
}

#[test]
fn clients_that_a_proxy_vouches_for_are_the_clients() {
    let tree = Tree::new(&[("a.php", "")]);
    let mut answer = site(&tree, "").get("/a.php");
    let peer = Peer::Ip("[2001:db8::1]:7".parse().expect("an address"));
    answer
        .exchange_mut()
        .set_client(peer, petrel_engine::exchange::Scheme::Https);
    let lines = variables(&answer, &backend(""), BodyLength::None);
    let names = ["REQUEST_SCHEME", "HTTPS", "REMOTE_ADDR", "REMOTE_PORT"];
    assert_eq!(
        some(&lines, &names),
        "REQUEST_SCHEME=https\nHTTPS=on\nREMOTE_ADDR=2001:db8::1\nREMOTE_PORT=7\n"
    );
    answer
        .exchange_mut()
        .set_client(Peer::Unix, petrel_engine::exchange::Scheme::Http);
    let lines = variables(&answer, &backend(""), BodyLength::None);
    assert_eq!(
        some(&lines, &names[2..]),
        "REMOTE_ADDR=127.0.0.1:80\nREMOTE_PORT=0\n"
    );
}

#[test]
fn rules_of_1_5_change_what_a_script_is_told() {
    let tree = Tree::new(&[("a.php", "")]);
    let answer = site(&tree, "").get("/x.php/info?q");
    let rules = super::super::header_map::testing::extras(
        r#"proxy-core.rewrite-request = (
            "_scriptname" => ( "^(.*\.php)(/.*)?$" => "$1" ),
            "_pathinfo" => ( "\.php(/.*)$" => "$1" ),
            "_docroot" => ( "" => "/jail" ),
            "_uri" => ( "^/x(.*)" => "/y$1" ),
            "Host" => ( ".*" => "other" ) )"#,
    );
    let mut lines = String::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let add =
        &mut |name: &[u8], value: &[u8]| lines += &format!("{}={}\n", text(name), text(value));
    let host = backend("");
    build_rewritten(
        answer.exchange(),
        &host,
        BodyLength::None,
        &rules.rewriting,
        add,
    );
    let mut names = SCRIPT.to_vec();
    names.extend(["REQUEST_URI", "REQUEST_METHOD", "HTTP_HOST"]);
    assert_eq!(
        some(&lines, &names),
        "REQUEST_URI=/y.php/info?q\nSCRIPT_NAME=/x.php\nPATH_INFO=/info\n\
         PATH_TRANSLATED=/jail/info\nSCRIPT_FILENAME=/jail/x.php\nDOCUMENT_ROOT=/jail\n\
         REQUEST_METHOD=GET\nHTTP_HOST=other\n"
    );
}

#[test]
fn without_rules_nothing_is_rewritten() {
    let tree = Tree::new(&[("a.php", "")]);
    let answer = site(&tree, "").get("/a.php/i");
    let mut rewritten = Vec::new();
    let add = &mut |name: &[u8], value: &[u8]| rewritten.push((name.to_vec(), value.to_vec()));
    let host = backend("");
    build_rewritten(
        answer.exchange(),
        &host,
        BodyLength::None,
        &Rewriting::default(),
        add,
    );
    let mut plain = Vec::new();
    let add = &mut |name: &[u8], value: &[u8]| plain.push((name.to_vec(), value.to_vec()));
    build(answer.exchange(), &host, BodyLength::None, add);
    assert_eq!(rewritten, plain);
    assert!(plain.len() > 15);
}
