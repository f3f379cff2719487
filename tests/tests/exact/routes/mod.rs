//! The routes of the budget, each as a configuration with requests. Two tests hold the server against it: one
//! counts system calls, the other allocations.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixListener;
use std::thread;

use petrel_tests::{Tree, fastcgi_record};

#[path = "../../../../crates/petrel/src/costs/budget.rs"]
#[expect(dead_code, reason = "`petrel costs` uses more of it")]
mod budget;

pub(crate) use budget::{BUDGETS, Route};

/// A configuration, and requests that all cost what the budget of its route says.
pub(crate) struct RouteCase {
    /// Lines of the configuration; `var.dir` is the tree's root.
    pub(crate) config: String,
    /// URL paths.
    pub(crate) targets: &'static [&'static str],
    /// A field of each request.
    pub(crate) field: (&'static str, &'static str),
    /// The status of each response.
    pub(crate) status: u16,
    /// Where the socket of the backend is.
    _backend: Option<Tree>,
}

/// Writes the files that the routes need; `www` is the document root.
pub(crate) fn write_files(tree: &Tree) {
    tree.write("www/index.html", "hello")
        .write("www/small.txt", "x".repeat(100))
        .write("www/app.fcgi", "a program")
        .write("hello.lua", "lighty.content = { \"hello\" } return 200");
}

/// The cases of a route.
pub(crate) fn cases(route: Route) -> Vec<RouteCase> {
    let of_files = |targets, field, status| {
        vec![RouteCase {
            config: String::new(),
            targets,
            field,
            status,
            _backend: None,
        }]
    };
    let by_backend = |speaks: Language, key: &str, options: &str, targets| {
        let make = |address: BackendAddress| RouteCase {
            config: speaks.directive(key, &address.host, options),
            targets,
            field: PLAIN,
            status: 200,
            _backend: address.tree,
        };
        vec![make(on_unix_socket(speaks)), make(on_port(speaks))]
    };
    let check_nothing = ", \"check-local\" => \"disable\"";
    match route {
        Route::Static => of_files(&["/small.txt", "/"], PLAIN, 200),
        Route::NotModified => of_files(&["/small.txt", "/"], ("If-None-Match", "*"), 304),
        Route::Missing => of_files(&["/missing"], PLAIN, 404),
        Route::FastCgi => by_backend(Language::FastCgi, ".fcgi", "", &["/app.fcgi"]),
        Route::Virtual => by_backend(
            Language::FastCgi,
            "/app",
            check_nothing,
            &["/app/", "/app/x"],
        ),
        Route::Proxied => by_backend(Language::Http, "/app", "", &["/app/"]),
        Route::Lua => vec![RouteCase {
            config: "server.modules += ( \"mod_magnet\" )\n\
                     magnet.attract-raw-url-to = ( var.dir + \"/hello.lua\" )"
                .to_owned(),
            targets: &["/script"],
            field: PLAIN,
            status: 200,
            _backend: None,
        }],
        Route::CachedPage => {
            let mut cases = by_backend(Language::FastCgi, "/app", check_nothing, &["/app/"]);
            for case in &mut cases {
                let cache =
                    "server.modules += ( \"mod_page_cache\" )\npage-cache.enable = \"enable\"\n";
                case.config = format!("{cache}{}", case.config.replace(KEPT, CLOSED));
            }
            cases
        }
    }
}

const PLAIN: (&str, &str) = ("Accept", "*/*");

/// The idle connection is not closed while requests are counted, however slow the machine is.
const KEPT: &str = ", \"max-keep-alive-idle\" => 600";

/// Behind a cached page there is no idle connection: the worker would look now and then whether others wait for its
/// process.
const CLOSED: &str = ", \"max-keep-alive-idle\" => 0";

/// What a backend speaks.
#[derive(Clone, Copy)]
enum Language {
    FastCgi,
    Http,
}

impl Language {
    fn directive(self, key: &str, host: &str, options: &str) -> String {
        let (module, directive) = match self {
            Language::FastCgi => ("mod_fastcgi", "fastcgi.server"),
            Language::Http => ("mod_proxy", "proxy.server"),
        };
        format!(
            "server.modules += ( \"{module}\" )\n{directive} = ( \"{key}\" => (( {host}{KEPT}{options} )) )"
        )
    }

    fn reply(self) -> Vec<u8> {
        const STDOUT: u8 = 6;
        const END_REQUEST: u8 = 3;
        let head = "Content-Type: text/plain\r\nCache-Control: max-age=600\r\n";
        match self {
            Language::Http => {
                format!("HTTP/1.1 200 OK\r\n{head}Content-Length: 7\r\n\r\nat once").into_bytes()
            }
            Language::FastCgi => [
                fastcgi_record(STDOUT, 1, format!("{head}\r\nat once").as_bytes()),
                fastcgi_record(STDOUT, 1, b""),
                fastcgi_record(END_REQUEST, 1, &[0; 8]),
            ]
            .concat(),
        }
    }
}

/// The address of a backend that runs for the rest of the test.
struct BackendAddress {
    /// The address in the configuration.
    host: String,
    /// Where its socket is.
    tree: Option<Tree>,
}

fn on_unix_socket(speaks: Language) -> BackendAddress {
    let tree = Tree::new();
    let path = tree.path("socket");
    let listener = UnixListener::bind(&path).expect("a socket");
    answer(speaks, move || Ok(listener.accept()?.0));
    BackendAddress {
        host: format!("\"socket\" => \"{}\"", path.display()),
        tree: Some(tree),
    }
}

fn on_port(speaks: Language) -> BackendAddress {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    answer(speaks, move || {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    BackendAddress {
        host: format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
        tree: None,
    }
}

/// A backend that allocates nothing for a request, since allocations of all threads are counted. It answers
/// each piece that arrives: the server sends a small request at once.
fn answer<S: Read + Write + Send + 'static>(
    speaks: Language,
    accept: impl Fn() -> std::io::Result<S> + Send + 'static,
) {
    let reply = speaks.reply();
    thread::spawn(move || {
        while let Ok(mut stream) = accept() {
            let reply = reply.clone();
            thread::spawn(move || {
                let mut buffer = [0; 16 * 1024];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                    if stream.write_all(&reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
}
