//! Debian's lighttpd package: its unchanged configuration under Petrel and under lighttpd.

use std::path::PathBuf;
use std::process::Command;
use std::thread;

use petrel_tests::{
    Finished, PATIENCE, Response, Tree, curl, is_installed, package, petrel, run, skip,
};
use rustix::process::Signal;

use crate::real_input::isolated::{Isolated, isolated};

/// The path of the package's configuration where [`machine`] is mounted.
const CONFIGURATION: &str = "/etc/lighttpd/lighttpd.conf";

/// The packages with files for lighttpd.
const PACKAGES: [&str; 4] = [
    "lighttpd",
    "lighttpd-mod-deflate",
    "lighttpd-mod-openssl",
    "javascript-common",
];

/// A machine on which these packages were just installed, with these files of conf-available enabled.
fn machine(enabled: &[&str]) -> Tree {
    let tree = Tree::new();
    for name in PACKAGES {
        tree.copy(unpacked(name).join("etc/lighttpd"), "lighttpd");
    }
    tree.copy(unpacked("lighttpd").join("usr/share/lighttpd"), "share");
    tree.copy(unpacked("media-types").join("etc/mime.types"), "mime.types");
    tree.directory("lighttpd/conf-enabled");
    for name in enabled {
        let available = format!("lighttpd/conf-available/{name}");
        assert!(tree.path(&available).exists(), "{name} is in no package");
        let link = format!("lighttpd/conf-enabled/{name}");
        tree.symlink(format!("../conf-available/{name}"), &link);
    }
    tree.write("javascript/jquery/jquery.js", SCRIPT);
    tree.write("www/index.lighttpd.html", welcome());
    tree.write("www/page.html", "<p>a page</p>\n".repeat(1000));
    tree.write("www/notes.txt", "some notes\n".repeat(1000));
    tree.write("www/sub/file.css", "p { }\n");
    tree.write("www/sub/library.inc", "secret");
    tree.write("www/sub/backup~", "secret");
    tree.write("www/script.php", "<?php /* secret */ print 6 * 7;");
    tree.write("www/script.pl", "secret");
    tree.write("www/\u{e4} b.txt", "named with an umlaut and a space");
    tree.write("www/README", "read me");
    tree.write("www/unknown.qqq", "?");
    tree.write("srv/www.example.com/htdocs/index.html", "the default host");
    tree.write("srv/b.example.org/htdocs/index.html", "host b");
    tree
}

/// The content of a script library.
const SCRIPT: &str = "window.jQuery = {};\n";

/// The files of one of the packages that [`isolated`] needs.
fn unpacked(name: &str) -> PathBuf {
    package(name).unwrap_or_else(|why| panic!("{why}"))
}

/// The page that the package installs in a new document root.
fn welcome() -> Vec<u8> {
    let page = unpacked("lighttpd").join("usr/share/lighttpd/index.html");
    std::fs::read(page).expect("the package has a page")
}

fn start_petrel(enabled: &[&str]) -> Isolated {
    let petrel = petrel().to_str().expect("a plain path");
    Isolated::start(machine(enabled), &[petrel, "-D", "-f", CONFIGURATION], 80)
}

fn start_lighttpd(enabled: &[&str]) -> Isolated {
    Isolated::start(
        machine(enabled),
        &["lighttpd", "-D", "-f", CONFIGURATION],
        80,
    )
}

/// Runs Petrel with these arguments on `tree`, a [`machine`], until it ends.
fn run_petrel(tree: &Tree, arguments: &[&str]) -> Finished {
    let petrel = petrel().to_str().expect("a plain path");
    Isolated::run(tree, &[&[petrel], arguments].concat())
}

#[test]
fn the_stock_configuration_is_accepted() {
    isolated("the_stock_configuration_is_accepted", || {
        let finished = run_petrel(&machine(&[]), &["-tt", "-f", CONFIGURATION]);
        assert_eq!(finished.code(), 0, "{}", finished.errors);
        assert!(
            !finished.errors.contains("Warning: "),
            "{}",
            finished.errors
        );
    });
}

/// It takes so long because Petrel prints each of more than twenty files twice, each time in namespaces of its own.
#[test]
fn each_file_of_the_packages_prints_as_a_configuration_that_prints_the_same() {
    let test = "each_file_of_the_packages_prints_as_a_configuration_that_prints_the_same";
    isolated(test, || {
        let tree = machine(&["90-javascript-alias.conf"]);
        let print = |file: &str| {
            let finished = run_petrel(&tree, &["-p", "-f", file]);
            assert_eq!(finished.code(), 0, "{file}: {}", finished.errors);
            finished.text()
        };
        let available = tree.names("lighttpd/conf-available").into_iter();
        let available = available.filter(|name| name.ends_with(".conf"));
        let mut files: Vec<String> = available
            .map(|name| format!("/etc/lighttpd/conf-available/{name}"))
            .collect();
        assert!(files.len() > 20, "{files:?}");
        files.push(CONFIGURATION.to_owned());
        for file in files {
            let printed = print(&file);
            tree.write("printed.conf", &printed);
            let again = tree.path("printed.conf").display().to_string();
            assert_eq!(print(&again), printed, "{file}");
        }
        let whole = print(CONFIGURATION);
        assert!(
            whole.contains("\".css\" => \"text/css;charset=utf-8\""),
            "{whole}"
        );
    });
}

#[test]
fn the_stock_configuration_serves() {
    isolated("the_stock_configuration_serves", || {
        let mut server = start_petrel(&["90-javascript-alias.conf", "99-unconfigured.conf"]);
        let welcome = welcome();
        let index = server.get("/");
        assert_eq!((index.status, &index.body), (200, &welcome));
        assert_eq!(server.client_ipv6().get("/").body, welcome);
        let script = server.get("/javascript/jquery/jquery.js");
        assert_eq!((script.status, script.text().as_str()), (200, SCRIPT));
        assert_eq!(script.field("Content-Type"), Some("text/javascript"));
        assert_eq!(server.get("/script.php").status, 403);
        assert_eq!(server.get("/sub/library.inc").status, 403);
        assert_eq!(server.tree.text("run/lighttpd.pid").trim(), "1");
        assert!(!server.tree.text("log/lighttpd/error.log").is_empty());

        server.signal(Signal::INT);
        assert_eq!(server.wait(), Some(0));
        assert_eq!(
            server
                .tree
                .names("run")
                .iter()
                .filter(|name| *name == "lighttpd.pid")
                .count(),
            0
        );
    });
}

#[test]
fn the_stock_file_for_tls_serves_on_ipv4_and_ipv6() {
    let test = "the_stock_file_for_tls_serves_on_ipv4_and_ipv6";
    if !is_installed("openssl") {
        return skip(test, "there is no openssl");
    }
    isolated(test, || {
        let tree = machine(&["10-ssl.conf", "99-unconfigured.conf"]);
        let pem = tree.path("lighttpd/server.pem").display().to_string();
        let key = tree.path("key.pem").display().to_string();
        let made = run(
            Command::new("openssl").args([
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=localhost",
                "-addext",
                "subjectAltName=DNS:localhost",
                "-keyout",
                &key,
                "-out",
                &pem,
            ]),
            PATIENCE,
        );
        assert!(made.status.success(), "{}", made.errors);
        let together = [tree.read("key.pem"), tree.read("lighttpd/server.pem")].concat();
        tree.write("lighttpd/server.pem", together);
        let petrel = petrel().to_str().expect("a plain path");
        let server = Isolated::start(tree, &[petrel, "-D", "-f", CONFIGURATION], 443);
        for address in ["127.0.0.1", "[::1]"] {
            let resolve = format!("localhost:443:{address}");
            let page = curl(&[
                "--cacert",
                &pem,
                "--resolve",
                &resolve,
                "https://localhost/page.html",
            ]);
            assert!(
                page.text().starts_with("<p>a page</p>"),
                "{address}: {} {}",
                page.errors,
                server.output()
            );
        }
    });
}

/// The stock file enables h2c.
#[test]
fn requests_for_h2c_are_answered_in_http_2() {
    isolated("requests_for_h2c_are_answered_in_http_2", || {
        let server = start_petrel(&["99-unconfigured.conf"]);
        for how in ["--http2", "--http2-prior-knowledge"] {
            let by_curl = curl(&[
                how,
                "--write-out",
                "%{http_version} %{http_code}",
                "--output",
                "/dev/null",
                "http://127.0.0.1/page.html",
            ]);
            assert_eq!(
                (by_curl.code(), by_curl.text().as_str()),
                (0, "2 200"),
                "{}",
                by_curl.errors
            );
        }
        assert_eq!(server.get("/page.html").status, 200);
    });
}

/// A request of the comparison.
struct Case {
    method: &'static str,
    target: &'static str,
    fields: &'static [(&'static str, &'static str)],
}

const fn get(target: &'static str) -> Case {
    Case {
        method: "GET",
        target,
        fields: &[],
    }
}

const fn get_with(target: &'static str, fields: &'static [(&'static str, &'static str)]) -> Case {
    Case {
        method: "GET",
        target,
        fields,
    }
}

const CASES: &[Case] = &[
    get("/"),
    get("/index.lighttpd.html"),
    get("/page.html"),
    get("/page.html?query=1"),
    get("/notes.txt"),
    get("/missing"),
    get("/missing/"),
    get("/page.html/behind"),
    get("/script.php"),
    get("/script.pl"),
    get("/sub"),
    get("/sub?x=y"),
    get("/sub/"),
    get("/sub/file.css"),
    get("/sub/library.inc"),
    get("/sub/backup~"),
    get("/README"),
    get("/unknown.qqq"),
    get("/%C3%A4%20b.txt"),
    get("/%c3%a4+b.txt"),
    get("/./sub/../page.html"),
    get("/sub%2ffile.css"),
    get("/sub//file.css"),
    get("/../../etc/passwd"),
    get("/%2e%2e/%2e%2e/etc/passwd"),
    get("/page.html%00"),
    get("/page%0a.html"),
    get("/doc/"),
    get("/doc/python3-doc/copyright"),
    get("/javascript/jquery/jquery.js"),
    get("/javascript/jquery"),
    get("/javascript"),
    get("/cgi-bin/"),
    get_with("/page.html", &[("Range", "bytes=3-8")]),
    get_with("/page.html", &[("Range", "bytes=-5")]),
    get_with("/page.html", &[("Range", "bytes=100000-")]),
    get_with(
        "/page.html",
        &[("If-Modified-Since", "Fri, 01 Jan 2038 00:00:00 GMT")],
    ),
    get_with("/page.html", &[("If-None-Match", "\"other\"")]),
    get_with("/page.html", &[("If-None-Match", "*")]),
    Case {
        method: "HEAD",
        target: "/page.html",
        fields: &[],
    },
    Case {
        method: "HEAD",
        target: "/missing",
        fields: &[],
    },
    Case {
        method: "POST",
        target: "/page.html",
        fields: &[("Content-Length", "0")],
    },
    Case {
        method: "OPTIONS",
        target: "*",
        fields: &[],
    },
];

/// What must be equal. Each server has its own bodies of errors, redirects and listings.
fn essence(case: &Case, response: &Response) -> String {
    let fields = ["Content-Type", "Location", "Content-Range", "Cache-Control"];
    let mut text = format!("{} {} -> {}", case.method, case.target, response.status);
    let has_own_body =
        matches!(response.status, 200 | 206) && !response.text().contains("<title>Index of");
    for field in fields {
        if has_own_body || field == "Location" {
            text.push_str(&format!(
                "; {field}: {}",
                response.field(field).unwrap_or("-")
            ));
        }
    }
    if has_own_body {
        let sum = response
            .body
            .iter()
            .fold(7_u64, |sum, byte| sum.rotate_left(5) ^ u64::from(*byte));
        text.push_str(&format!("; {} bytes, {sum:x}", response.body.len()));
    }
    text
}

/// Sends all cases to a server, under these hosts.
fn ask(server: &Isolated, hosts: &[&str]) -> Vec<String> {
    let mut answers = Vec::new();
    for host in hosts {
        for case in CASES {
            let mut fields = vec![("Host", *host), ("User-Agent", "test \"1\"")];
            fields.extend(case.fields);
            let mut text = format!(
                "{} {} HTTP/1.1\r\nConnection: close\r\n",
                case.method, case.target
            );
            for (name, value) in fields {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
            let mut client = server.client();
            client.send(text + "\r\n");
            let response = match case.method {
                "HEAD" => client.response_to_head(),
                _ => client.response(),
            };
            answers.push(format!("{host}: {}", essence(case, &response)));
        }
    }
    answers
}

/// What Petrel answers differently on purpose.
const KNOWN_DIFFERENCES: &[&str] = &[
    // Petrel redirects before it checks access rules, in whatever order server.modules lists them: a denied
    // URL is denied at its new place.
    "www.example.com: GET /sub/library.inc -> 301; Location: http://example.com/",
    "www.example.com: GET /sub/backup~ -> 301; Location: http://example.com/",
    // As in later versions of lighttpd, a redirected POST stays a POST.
    "www.example.com: POST /page.html -> 308; Location: http://example.com/page.html",
];

/// Runs both servers on equal machines, one after the other, and compares their responses.
fn compare(name: &str, enabled: &'static [&'static str], hosts: &'static [&'static str]) {
    if let Some(why) = Isolated::hindrance() {
        return skip(name, &why);
    }
    let ask_in_thread = |start: fn(&[&str]) -> Isolated| {
        let work = move || {
            let mut server = start(enabled);
            let answers = ask(&server, hosts);
            // lighttpd buffers log lines until it has many, or ends.
            server.signal(Signal::INT);
            assert_eq!(server.wait(), Some(0));
            (answers, server.tree.text("log/lighttpd/access.log"))
        };
        thread::spawn(work).join().expect("see above")
    };
    let (lighttpd, lighttpd_log) = ask_in_thread(start_lighttpd);
    let (petrel, petrel_log) = ask_in_thread(start_petrel);
    let is_known = |answer: &str| {
        KNOWN_DIFFERENCES
            .iter()
            .any(|known| answer.starts_with(known))
    };
    let differences: Vec<String> = lighttpd
        .iter()
        .zip(&petrel)
        .filter(|(lighttpd, petrel)| lighttpd != petrel && !is_known(petrel))
        .map(|(lighttpd, petrel)| format!("lighttpd {lighttpd}\npetrel   {petrel}"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    let (lighttpd, petrel) = (without_times(&lighttpd_log), without_times(&petrel_log));
    let missing = |of: &[String], from: &[String]| -> Vec<String> {
        of.iter()
            .filter(|line| !from.contains(line))
            .cloned()
            .collect()
    };
    assert_eq!(
        (missing(&petrel, &lighttpd), missing(&lighttpd, &petrel)),
        (vec![], vec![])
    );
    assert_eq!(lighttpd.len(), petrel.len());
    assert!(
        petrel.len() > hosts.len() * CASES.len() / 2,
        "{}",
        petrel.len()
    );
}

/// Lines of the access log that are not compared: of refused targets, because lighttpd forgets the host in
/// them; of a host in [`KNOWN_DIFFERENCES`]; and of a listing, whose size differs.
const LOGGED_DIFFERENTLY: &[&str] = &[
    "HTTP/1.1\" 400 ",
    " www.example.com - ",
    "\"GET /sub/ HTTP/1.1\" 200 ",
];

/// The lines of an access log without the time in brackets, and without the size of error pages.
fn without_times(log: &str) -> Vec<String> {
    let without = |line: &str| {
        let (before, rest) = line.split_once('[').unwrap_or((line, ""));
        let (_, after) = rest.split_once(']').unwrap_or(("", rest));
        let is_served =
            after.contains(" 200 ") || after.contains(" 206 ") || after.contains(" 304 ");
        match after.rsplit_once("\" ") {
            _ if is_served => format!("{before}{after}"),
            Some(_) => before.to_owned() + &without_size(after),
            None => format!("{before}{after}"),
        }
    };
    let differs = |line: &&str| LOGGED_DIFFERENTLY.iter().any(|known| line.contains(known));
    log.lines()
        .filter(|line| !differs(line))
        .map(without)
        .collect()
}

/// `"GET / HTTP/1.1" 404 341 "-" "-"` without the 341.
fn without_size(line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    let size = words.iter().rposition(|word| word.parse::<u64>().is_ok());
    if let Some(size) = size {
        words.remove(size);
    }
    words.join(" ")
}

#[test]
fn enabled_modules_answer_as_under_lighttpd() {
    compare(
        "enabled_modules_answer_as_under_lighttpd",
        &[
            "05-setenv.conf",
            "10-accesslog.conf",
            "10-dir-listing.conf",
            "10-expire.conf",
            "10-no-www.conf",
            "90-javascript-alias.conf",
            "99-unconfigured.conf",
        ],
        &["localhost", "www.example.com", "example.com:8080"],
    );
}

#[test]
fn simple_vhost_answers_as_under_lighttpd() {
    compare(
        "simple_vhost_answers_as_under_lighttpd",
        &["10-simple-vhost.conf", "10-accesslog.conf"],
        &["b.example.org", "www.example.com", "other.example.org"],
    );
}

#[test]
fn evhost_answers_as_under_lighttpd() {
    compare(
        "evhost_answers_as_under_lighttpd",
        &["10-evhost.conf", "10-accesslog.conf"],
        &["b.example.org", "www.example.com", "localhost", "127.0.0.1"],
    );
}

/// Debian's deflate compresses these types, and stores the results as its own user.
#[test]
fn stock_deflate_compresses_once() {
    isolated("stock_deflate_compresses_once", || {
        let server = start_petrel(&["20-deflate.conf"]);
        let page = server.tree.read("www/page.html");
        for _ in 0..2 {
            let response =
                server
                    .client()
                    .request("GET", "/page.html", &[("Accept-Encoding", "gzip")]);
            assert_eq!(
                response.field("Content-Encoding"),
                Some("gzip"),
                "{response}"
            );
            assert_eq!(response.field("Vary"), Some("Accept-Encoding"));
            assert!(response.body.len() < page.len() / 10);
            assert_eq!(gunzipped(&response.body), page);
        }
        let is_kept = |path: &str| !server.tree.names(path).is_empty();
        assert!(is_kept("cache/compress"), "nothing is kept");
        for (target, fields) in [
            ("/page.html", &[("Accept-Encoding", "identity")]),
            ("/unknown.qqq", &[("Accept-Encoding", "gzip")]),
            ("/sub/file.css", &[("Accept-Encoding", "gzip")]),
        ] {
            let response = server.client().request("GET", target, fields);
            assert_eq!(
                (response.status, response.field("Content-Encoding")),
                (200, None),
                "{target}"
            );
        }
    });
}

fn gunzipped(packed: &[u8]) -> Vec<u8> {
    let tree = Tree::new();
    tree.write("body.gz", packed);
    let finished = run(
        Command::new("gzip").arg("-dc").arg(tree.path("body.gz")),
        PATIENCE,
    );
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    finished.output
}

#[test]
fn no_source_of_a_program_is_sent() {
    if !is_installed("php-cgi") {
        return skip("no_source_of_a_program_is_sent", "php-cgi is not installed");
    }
    isolated("no_source_of_a_program_is_sent", || {
        let server = start_petrel(&[
            "10-cgi.conf",
            "10-fastcgi.conf",
            "15-fastcgi-php.conf",
            "10-ssi.conf",
            "10-userdir.conf",
            "90-debian-doc.conf",
        ]);
        server
            .tree
            .write("www/page.shtml", "<!--#exec cmd=\"secret\" -->");
        for target in ["/script.php", "/script.php/x"] {
            let response = server.get(target);
            assert_eq!(response.text(), "42", "{target}: {response}");
        }
        for target in ["/cgi-bin/printenv", "/cgi-bin/", "/page.shtml", "/~root/x"] {
            let response = server.get(target);
            assert!(response.status >= 400, "{target}: {response}");
            assert!(!response.text().contains("secret"), "{target}: {response}");
        }
        assert_eq!(server.get("/page.html").status, 200);
    });
}
