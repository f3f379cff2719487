//! Errors of every module, and the cause of each. Debug builds check besides, at the end of each request,
//! that no error of the server's own lacks one.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use petrel_engine::testing::{Answer, Site};
use petrel_modules::MODULES;

struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let name = format!("petrel-causes-{}-{name}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for directory in ["www/dir", "lua"] {
            std::fs::create_dir_all(root.join(directory)).expect("a directory can be made");
        }
        for (path, content) in [
            ("www/a.txt", "a file"),
            ("www/a.php", "a source"),
            ("users", "anna:secret\n"),
            ("lua/error.lua", "error('boom')"),
            ("lua/syntax.lua", "return ("),
            ("lua/endless.lua", "while true do end"),
            (
                "lua/missing.lua",
                "lighty.content = { { filename = '/none' } } return 200",
            ),
            ("lua/told.lua", "return 403"),
            ("lua/told-text.lua", "lighty.content = { 'no' } return 503"),
        ] {
            std::fs::write(root.join(path), content).expect("a file can be written");
        }
        Tree(root)
    }

    fn site(&self, config: &str) -> Site {
        let root = self.0.display().to_string();
        let config = format!("server.document-root = \"ROOT/www\"\n{config}");
        Site::new(&config.replace("ROOT", &root), MODULES)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cause(answer: &Answer) -> (u16, String) {
    let cause = answer.exchange().response.cause();
    let name = cause.map_or("", |cause| cause.code.name());
    (answer.status(), name.to_owned())
}

fn request(line: &str) -> String {
    let (target, fields) = line.split_once('|').unwrap_or((line, ""));
    let target = match target.contains(' ') {
        true => target.to_owned(),
        false => format!("GET {target}"),
    };
    let fields: String = fields
        .split('|')
        .filter(|field| !field.is_empty())
        .map(|field| format!("{field}\r\n"))
        .collect();
    format!("{target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n")
}

#[tokio::test(flavor = "local")]
async fn every_error_has_its_cause() {
    let tree = Tree::new("all");
    let auth = "auth.backend = \"plain\" auth.backend.plain.userfile = \"ROOT/users\"\n\
        server.feature-flags = ( \"auth.delay-invalid-creds\" => \"disable\" )\n\
        auth.require = ( \"/\" => ( \"method\" => \"basic\", \"realm\" => \"r\", \"require\" => \"valid-user\" ) )";
    let links = "secdownload.secret = \"s\" secdownload.document-root = \"ROOT/www\" secdownload.uri-prefix = \"/s/\"";
    let lua = |name: &str| format!("magnet.attract-raw-url-to = ( \"ROOT/lua/{name}.lua\" )");
    let refusing = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let fastcgi = |place: &str| {
        format!("fastcgi.server = ( \"/app\" => (( {place}, \"check-local\" => \"disable\" )) )")
    };
    let files =
        "static-file.exclude-extensions = ( \".php\" ) static-file.disable-pathinfo = \"enable\"";
    for (config, line, status, name) in [
        (String::new(), "/a.txt", 200, ""),
        (String::new(), "/none", 404, "file-missing"),
        (String::new(), "/dir/", 403, "directory-denied"),
        (String::new(), "DELETE /a.txt", 405, "method-not-allowed"),
        (
            String::new(),
            "/a.txt|Range: bytes=9-",
            416,
            "range-unsatisfiable",
        ),
        (
            String::new(),
            "/a.txt|If-Match: \"x\"",
            412,
            "precondition-failed",
        ),
        (files.to_owned(), "/a.php", 403, "file-excluded"),
        (files.to_owned(), "/a.txt/info", 403, "path-info-denied"),
        (
            "url.access-deny = ( \".txt\" )".to_owned(),
            "/a.txt",
            403,
            "access-denied",
        ),
        (
            "url.access-allow = ( \".html\" )".to_owned(),
            "/a.txt",
            403,
            "access-not-allowed",
        ),
        (auth.to_owned(), "/a.txt", 401, "auth-required"),
        (
            auth.to_owned(),
            "/a.txt|Authorization: Basic YW5uYTp3cm9uZw==",
            401,
            "auth-failed",
        ),
        (
            auth.to_owned(),
            "/a.txt|Authorization: Basic !",
            400,
            "auth-malformed",
        ),
        (
            auth.replace("ROOT/users", "ROOT/none"),
            "/a.txt|Authorization: Basic YW5uYTp3cm9uZw==",
            503,
            "auth-users-unreadable",
        ),
        (
            links.to_owned(),
            "/s/00000000000000000000000000000000/00000000/a.txt",
            410,
            "link-expired",
        ),
        (
            "secdownload.secret = \"s\" secdownload.uri-prefix = \"/s/\"".to_owned(),
            "/a.txt",
            500,
            "link-unset",
        ),
        (
            "url.rewrite-repeat = ( \"^/(.*)\" => \"/x$1\" )".to_owned(),
            "/a.txt",
            500,
            "rewrite-endless",
        ),
        (
            "url.rewrite = ( \"^/a\" => \"none\" )".to_owned(),
            "/a.txt",
            500,
            "rewrite-no-url",
        ),
        (lua("error"), "/", 500, "lua-error"),
        (lua("syntax"), "/", 500, "lua-unloadable"),
        (lua("none"), "/", 500, "lua-unloadable"),
        (lua("endless"), "/", 500, "lua-time"),
        (lua("missing"), "/", 404, "lua-file-missing"),
        (lua("told"), "/", 403, ""),
        (lua("told-text"), "/", 503, ""),
        (
            fastcgi("\"socket\" => \"ROOT/none.sock\""),
            "/app",
            503,
            "gw-socket-missing",
        ),
        (
            fastcgi(&format!(
                "\"host\" => \"127.0.0.1\", \"port\" => {refusing}"
            )),
            "/app",
            503,
            "gw-connect-refused",
        ),
        (
            "server.error-handler = \"/none\"".to_owned(),
            "/none",
            404,
            "file-missing",
        ),
        (
            "server.error-handler-404 = \"/a.txt\"".to_owned(),
            "/none",
            200,
            "",
        ),
        (
            "server.error-handler = \"/a.txt\"".to_owned(),
            "/none",
            404,
            "file-missing",
        ),
    ] {
        let answer = tree.site(&config).request_async(&request(line)).await;
        assert_eq!(
            cause(&answer),
            (status, name.to_owned()),
            "{config}\n{line}"
        );
    }
}

#[test]
fn a_client_that_is_too_fast_is_told_so() {
    let tree = Tree::new("limit");
    let config = "limit.rules = ( \"few\" => ( \"rate\" => \"1/d\", \"burst\" => 1 ) )";
    let site = tree.site(config);
    let answers = [site.get("/a.txt"), site.get("/a.txt"), site.get("/a.txt")];
    assert_eq!(cause(&answers[2]), (429, "rate-limited".to_owned()));
}

#[tokio::test(flavor = "local")]
async fn a_backend_s_own_errors_have_none_and_details_tell_of_the_attempts() {
    let tree = Tree::new("details");
    let config = "fastcgi.server = ( \"/app\" => (( \"socket\" => \"ROOT/a.sock\", \"check-local\" => \"disable\" ), \
        ( \"socket\" => \"ROOT/b.sock\", \"check-local\" => \"disable\" )) )";
    let site = tree.site(config);
    let answer = site.request_async(&request("/app")).await;
    let found = answer.exchange().response.cause().expect("a cause");
    assert_eq!(
        (found.errno, found.attempts, found.is_reused, found.bytes),
        (2, 2, false, 0)
    );
    // Both are not tried again for a while.
    let answer = site.request_async(&request("/app")).await;
    assert_eq!(cause(&answer), (503, "gw-all-down".to_owned()));
}
