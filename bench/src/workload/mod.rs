//! What is requested of every server, and what the response must be: one table.
//!
//! A workload names the [`Service`] it needs; a peer names those it provides, and is left out of the
//! workloads that it cannot serve. Knows nothing of servers or sockets. Files are in [`files`], scripts that
//! run in servers in [`scripts`], rules in [`rewriting`], users in [`passwords`], stories in [`stories`].

pub mod files;
pub mod passwords;
pub mod rewriting;
pub mod scripts;
pub mod stories;

use crate::backend::{self, Cgi, Kind, Route};
use crate::install::Package;
use files::{File, Script, TREE_FILES};
use passwords::Login;
use scripts::InServer;
use std::time::Duration;
use stories::{Htaccess, Lookup, Story, Way};

/// A group of workloads that is run and reported together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Files from the document root.
    Static,
    /// Requests passed on to backends.
    Gateway,
    /// 512 KiB made by PHP, sent by PHP or by the server.
    Tempfile,
    /// The tables of the article "Reducing Requests-Setup-Costs".
    Article,
    /// The tables of the article "Reducing the Number of stat() Calls Made by Apache".
    Stat,
    /// Scripts that run in the server.
    Lua,
    /// Lua and PHP by FastCGI.
    FcgiMagnet,
    /// Responses from the server's cache.
    Cache,
    /// Static files while other requests wait.
    SlowRedis,
    /// Files and backends over TLS and HTTP/2.
    Tls,
    /// A file behind rules that rewrite URLs.
    Rewrite,
    /// A file behind Basic authentication.
    Passwords,
}

/// Something a server must be able to do for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Serve files below a document root.
    Files,
    /// Pass requests on to a backend.
    Gateway(Route),
    /// Pass on responses of PHP that do not fit into a socket's buffer.
    LargeAnswers,
    /// Send a temporary file that a backend names, and remove it.
    SendTempfile,
    /// Pass requests on to PHP, over a new connection each.
    Reconnect,
    /// Pass requests on by FastCGI, over persistent connections.
    KeepFastCgi,
    /// Run a script that makes the response.
    Scripts,
    /// Run a script that waits for a Redis.
    WaitingScripts,
    /// Cache a backend's responses and answer with them.
    PageCache(Route),
    /// Assemble a response from files, as a script of mod_cml says.
    Cml,
    /// Serve files over TLS 1.3 with HTTP/1.1.
    Tls,
    /// The same with the key exchange X25519MLKEM768.
    PostQuantumTls,
    /// Serve files over TLS 1.3 with HTTP/2.
    Http2,
    /// Serve files by HTTP/2 without TLS, to a client that begins with it.
    ClearHttp2,
    /// Pass on requests that arrive by HTTP/2 over TLS.
    Http2Gateway(Route),
    /// Rewrite URLs by regular expressions.
    Rewriting,
    /// Ask for passwords, by Basic authentication.
    Passwords,
    /// Answer the article's URLs by a handler in Perl.
    PerlStories,
    /// Answer the article's URLs by files, aliases, FastCGI and Lua.
    Stories,
    /// Run PHP: in the server, if it can do that, or else by php-fpm.
    PhpInside,
}

/// How the client talks to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol {
    /// TLS below HTTP, if any.
    pub tls: Option<Tls>,
    /// The version of HTTP.
    pub http: Http,
}

/// How the client's TLS connections begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The only key exchange that the client offers.
    pub key_exchange: KeyExchange,
    /// The kind that every handshake must be.
    pub handshake: Handshake,
}

/// A key exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyExchange {
    /// The one that every current server has.
    X25519,
    /// The same combined with ML-KEM-768.
    X25519MlKem768,
}

/// A kind of handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// With the server's certificate and signature.
    Full,
    /// With a ticket of an earlier connection.
    Resumed,
}

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    /// HTTP/1.1: a connection has one open request.
    One,
    /// HTTP/2: a connection has this many open requests, or as many as the server allows.
    Two { streams: u16 },
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The cost of a request.
    Requests,
    /// In addition, the memory of an idle connection.
    IdleConnections,
}

/// One thing to measure.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name on the command line and in the JSON.
    pub name: &'static str,
    /// Name in tables and plots.
    pub title: &'static str,
    /// Which suite it belongs to.
    pub suite: Suite,
    /// What a server must be able to do.
    pub needs: Service,
    /// The backend it needs.
    pub backend: Option<Kind>,
    /// Whether the server's connections to the backend are persistent, if the server can do that.
    pub backend_reuse: Reuse,
    /// What is requested.
    pub urls: Urls,
    /// The status every reply must have.
    pub status: u16,
    /// Whether client connections are persistent.
    pub reuse: Reuse,
    /// How long to warm up caches.
    pub warm_up: WarmUp,
    /// How the client talks to the server.
    pub protocol: Protocol,
    /// Numbers of client connections if none are given; empty: the suite's.
    pub connections: &'static [u16],
    /// What is measured.
    pub aim: Aim,
}

/// Which URLs are requested.
#[derive(Clone, Copy, Debug)]
pub enum Urls {
    /// Always this file.
    File(&'static File),
    /// The files of the tree, in a random order that is the same for every server.
    Tree(Age),
    /// A path that does not exist.
    Missing,
    /// A path of this many bytes below a prefix that belongs to the backend; no such file exists.
    Virtual(&'static str, usize),
    /// A script in the document root.
    Script(&'static Script),
    /// A path that belongs to the backend, and what the backend prints for it.
    Printing(&'static str, &'static str),
    /// A path that belongs to the backend, and the length of its response.
    Sized(&'static str, u64),
    /// A script that runs in the server.
    InServer(&'static InServer),
    /// The directory of the page that mod_cml assembles.
    Cml,
    /// A file behind this many rules, each for the pages of one section ([`rewriting`]).
    Rewritten(&'static File, u32, Match),
    /// A file that requires a password ([`passwords`]).
    Guarded(&'static File, Login),
    /// One of the article's URLs ([`stories`]).
    Story(Story),
}

/// When files were changed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// When the comparison began, or earlier.
    Any,
    /// Just before the server starts.
    Young,
}

/// Whether a rule matches the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The last rule matches, and leads to the file.
    Hit,
    /// None matches: the file itself is requested.
    Miss,
}

/// What happens to a connection after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// It carries the next request.
    Keep,
    /// The client closes it and opens another.
    Close,
}

/// Load before the measured run.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// At least this long,
    pub time: Duration,
    /// and at least this many requests,
    pub requests: u64,
    /// but never longer than this.
    pub time_max: Duration,
}

/// The workloads of `suite` named in `names`, or all of them; in the order of the table.
pub fn choose(suite: Suite, names: &[String]) -> Result<Vec<&'static Workload>, String> {
    let of_suite = || WORKLOADS.iter().filter(|workload| workload.suite == suite);
    let known = |name: &String| of_suite().any(|workload| workload.name == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let all: Vec<_> = of_suite().map(|workload| workload.name).collect();
        return Err(format!(
            "no workload {unknown}; there are {}",
            all.join(", ")
        ));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|other| other == name);
    Ok(of_suite()
        .filter(|workload| wanted(workload.name))
        .collect())
}

impl Protocol {
    /// HTTP/1.1 in the clear.
    pub const PLAIN: Self = Self {
        tls: None,
        http: Http::One,
    };
}

impl Workload {
    /// Numbers of client connections if none are given.
    pub fn usual_connections(&self) -> &'static [u16] {
        match self.connections {
            [] => self.suite.connections(),
            own => own,
        }
    }

    /// The requested paths, without a host.
    pub fn paths(&self) -> Vec<String> {
        match self.urls {
            Urls::File(file) | Urls::Guarded(file, _) => vec![format!("/{}", file.name)],
            Urls::Tree(age) => (0..TREE_FILES)
                .map(|n| format!("/{}", files::tree_path(age, n)))
                .collect(),
            Urls::Missing => vec!["/no/such-file.html".to_owned()],
            Urls::Virtual(prefix, bytes) => vec![virtual_path(prefix, bytes)],
            Urls::Script(script) => vec![format!("/{}", script.name)],
            Urls::Printing(path, _) | Urls::Sized(path, _) => vec![path.to_owned()],
            Urls::InServer(script) => script.paths.iter().map(|path| (*path).into()).collect(),
            Urls::Cml => vec![format!("/{}/", files::CML_DIRECTORY)],
            Urls::Rewritten(_, rules, Match::Hit) => vec![rewriting::page(rules - 1)],
            Urls::Rewritten(file, _, Match::Miss) => vec![format!("/{}", file.name)],
            Urls::Story(story) => vec![story.path()],
        }
    }

    /// Header fields of every request in addition to the usual ones.
    pub fn request_fields(&self) -> &'static str {
        match self.urls {
            Urls::InServer(script) => script.request_fields,
            Urls::Guarded(..) => passwords::FIELD,
            _ => "",
        }
    }

    /// Header fields that every reply must have.
    pub fn reply_fields(&self) -> &'static [&'static str] {
        match self.urls {
            Urls::InServer(script) => script.reply_fields,
            _ => &[],
        }
    }

    /// Length of the body of every reply; `None` if the server may choose (error pages).
    pub fn body_bytes(&self) -> Option<u64> {
        match self.urls {
            Urls::File(file) | Urls::Rewritten(file, ..) | Urls::Guarded(file, _) => {
                Some(file.bytes)
            }
            Urls::Tree(_) => Some(files::TREE_FILE_BYTES),
            Urls::Missing => None,
            Urls::Virtual(..) => Some(backend::BODY_BYTES),
            Urls::Script(script) => Some((script.prints)().len() as u64),
            Urls::Printing(_, text) => Some(text.len() as u64),
            Urls::Sized(_, bytes) => Some(bytes),
            Urls::InServer(script) => {
                let first = script.paths.first().copied().unwrap_or_default();
                Some((script.prints)(first).len() as u64)
            }
            Urls::Cml => Some(files::CML_PRINTS.len() as u64),
            Urls::Story(story) => Some(story.body().len() as u64),
        }
    }

    /// The body that the reply to `path` must have; `None` if the server may choose.
    pub fn body(&self, path: &str) -> Option<Vec<u8>> {
        let bytes = self.body_bytes()?;
        Some(match self.urls {
            Urls::Virtual(..) | Urls::Sized(..) => backend::body(bytes),
            Urls::Script(script) => (script.prints)(),
            Urls::Printing(_, text) => text.into(),
            Urls::InServer(script) => (script.prints)(path).into_bytes(),
            Urls::Cml => files::CML_PRINTS.into(),
            Urls::Story(story) => story.body().into_bytes(),
            Urls::Rewritten(file, ..) => files::content(file.name, bytes),
            _ => files::content(path.trim_start_matches('/'), bytes),
        })
    }
}

impl Suite {
    /// The directory of its results, below the one for all.
    pub fn directory(self) -> &'static str {
        match self {
            Self::Static => "",
            Self::Gateway => "gateway",
            Self::Tempfile => "tempfile",
            Self::Article => "article",
            Self::Stat => "stat",
            Self::Lua => "lua",
            Self::FcgiMagnet => "fcgi-magnet",
            Self::Cache => "cache",
            Self::SlowRedis => "slow-redis",
            Self::Tls => "tls",
            Self::Rewrite => "rewrite",
            Self::Passwords => "passwords",
        }
    }

    /// Numbers of client connections if none are given.
    pub fn connections(self) -> &'static [u16] {
        match self {
            Self::Static | Self::Gateway | Self::Lua | Self::FcgiMagnet | Self::Cache => &[64, 1],
            Self::Tempfile => &[1, 16],
            Self::Article => &[1],
            Self::Stat => &[30],
            Self::SlowRedis => &[FAST_CONNECTIONS],
            Self::Tls => &[16],
            Self::Rewrite | Self::Passwords => &[64],
        }
    }

    /// Servers to run if none are named; empty: all that can do any of it.
    pub fn servers(self) -> &'static [&'static str] {
        match self {
            Self::FcgiMagnet => &["petrel", "nginx", "lighttpd"],
            Self::Cache => &["petrel", "nginx", "apache", "haproxy", "floor"],
            Self::Article => &["petrel", "nginx", "lighttpd", "apache"],
            Self::Stat => &["petrel", "apache"],
            _ => &[],
        }
    }

    /// The tools it uses in addition to this program's own client.
    pub fn tools(self) -> &'static [Package] {
        match self {
            Self::Article => &[
                ("perf", "linux-perf"),
                ("strace", "strace"),
                ("ab", "apache2-utils"),
                ("nginx", "libnginx-mod-http-lua"),
                ("lighttpd", "lighttpd-modules-lua"),
                ("apache2", "libapache2-mod-perl2"),
            ],
            Self::Stat => &[
                ("perf", "linux-perf"),
                ("strace", "strace"),
                ("ab", "apache2-utils"),
                ("apache2", "libapache2-mod-perl2"),
            ],
            Self::Gateway => &[("perf", "linux-perf"), ("apache2", "libapache2-mod-php")],
            Self::Lua => &[
                ("perf", "linux-perf"),
                ("nginx", "libnginx-mod-http-lua"),
                ("lighttpd", "lighttpd-modules-lua"),
                ("apache2", "libapache2-mod-perl2"),
            ],
            Self::SlowRedis => &[
                ("nginx", "libnginx-mod-http-lua"),
                ("nginx", "lua-nginx-redis"),
            ],
            Self::Tls => &[("perf", "linux-perf"), ("lighttpd", "lighttpd-mod-openssl")],
            _ => &[("perf", "linux-perf")],
        }
    }
}

/// A path that looks like a page of an application with its own routing.
fn virtual_path(prefix: &str, bytes: usize) -> String {
    let mut path = prefix.to_owned();
    while path.len() < bytes {
        path.push_str("/2007/reducing-request-setup-costs");
    }
    path.truncate(bytes);
    path
}

/// All workloads. Names are unique.
pub static WORKLOADS: &[Workload] = &[
    on_file("100b", "static 100 B", &files::SMALL),
    on_file("4k", "static 4 KiB", &files::PAGE),
    on_file("100k", "static 100 KiB", &files::PICTURE),
    on_file("10m", "static 10 MiB", &files::DOWNLOAD),
    Workload {
        name: "tree",
        title: "10,000 × 4 KiB at random",
        urls: Urls::Tree(Age::Any),
        warm_up: EVERY_FILE,
        ..on_file("", "", &files::PAGE)
    },
    Workload {
        name: "tree-young",
        title: "the same, just changed",
        urls: Urls::Tree(Age::Young),
        warm_up: EVERY_FILE,
        ..on_file("", "", &files::PAGE)
    },
    Workload {
        name: "404",
        title: "404",
        urls: Urls::Missing,
        status: 404,
        ..on_file("", "", &files::SMALL)
    },
    Workload {
        reuse: Reuse::Close,
        ..on_file("connect", "new connection each", &files::SMALL)
    },
    on_backend(
        "fastcgi",
        "FastCGI, native responder",
        Kind::FastCgi,
        Urls::Virtual("/fcgi", 16),
    ),
    on_backend(
        "fastcgi-531",
        "FastCGI, 531-byte virtual URL",
        Kind::FastCgi,
        Urls::Virtual("/fcgi", 531),
    ),
    on_backend(
        "fastcgi-tcp",
        "FastCGI, native responder, TCP",
        Kind::FastCgiTcp,
        Urls::Virtual("/fcgi", 16),
    ),
    on_backend(
        "php",
        "php-fpm, print \"123\"",
        Kind::PhpFpm,
        Urls::Script(&files::PRINT_123),
    ),
    on_backend(
        "php-tcp",
        "php-fpm, print \"123\", TCP",
        Kind::PhpFpmTcp,
        Urls::Script(&files::PRINT_123),
    ),
    Workload {
        needs: Service::PhpInside,
        connections: &[16],
        ..on_backend(
            "php-inside",
            "PHP, print \"123\" (Apache: mod_php)",
            Kind::PhpFpm,
            Urls::Script(&files::PRINT_123),
        )
    },
    on_backend(
        "php-40k-unix",
        "php-fpm, 40 KB, unix socket",
        Kind::PhpFpm,
        Urls::Script(&files::PRINT_40K),
    ),
    on_backend(
        "php-40k-tcp",
        "php-fpm, 40 KB, TCP",
        Kind::PhpFpmTcp,
        Urls::Script(&files::PRINT_40K),
    ),
    on_backend(
        "http",
        "HTTP/1.1 backend",
        Kind::Http,
        Urls::Virtual("/http", 16),
    ),
    on_large_script("inline", "512 KiB from PHP, inline", &files::INLINE),
    Workload {
        needs: Service::SendTempfile,
        ..on_large_script(
            "send-tempfile",
            "512 KiB, send-tempfile",
            &files::SEND_TEMPFILE,
        )
    },
    Workload {
        reuse: Reuse::Close,
        needs: Service::Reconnect,
        backend_reuse: Reuse::Close,
        ..of_article("php-close", "PHP without keep-alive", Kind::PhpCgi(CGI))
    },
    Workload {
        needs: Service::Reconnect,
        backend_reuse: Reuse::Close,
        ..of_article("php-reconnect", "PHP, client keep-alive", Kind::PhpCgi(CGI))
    },
    of_article("php-kept", "PHP, FastCGI kept too", Kind::PhpCgi(CGI)),
    of_article(
        "php-patched",
        "PHP patched, kept too",
        Kind::PhpCgi(CGI_PATCHED),
    ),
    of_article("php-fpm", "php-fpm, kept too", Kind::PhpFpm),
    of_language("perl", "Perl FCGI", Kind::Perl),
    of_language("python", "Python flup", Kind::Python),
    Workload {
        // Its library closes each connection after one request, even if asked to keep it open.
        backend_reuse: Reuse::Close,
        ..of_language("ruby", "Ruby fcgi", Kind::Ruby)
    },
    of_language("lua-fastcgi", "Lua, fcgi-magnet", Kind::FcgiMagnet),
    Workload {
        suite: Suite::Article,
        ..in_server(
            "in-core",
            "Lua in the server (Apache: Perl)",
            &scripts::PRINT,
        )
    },
    Workload {
        needs: Service::PageCache(Route::Php),
        urls: Urls::Script(&files::CACHED_123),
        ..of_article("cached", "PHP's page from the cache", Kind::PhpFpm)
    },
    Workload {
        suite: Suite::Article,
        needs: Service::Cml,
        urls: Urls::Cml,
        ..on_file("cml", "index.cml, cache hit", &files::SMALL)
    },
    in_server("lua-print", "print 123 in the server", &scripts::PRINT),
    in_server(
        "lua-print-old",
        "print 123 in the server, old names",
        &scripts::PRINT_OLD,
    ),
    in_server("lua-page", "page of 2 KiB, with a module", &scripts::PAGE),
    in_server("lua-flat", "the same page, one script", &scripts::FLAT),
    Workload {
        suite: Suite::FcgiMagnet,
        ..on_backend(
            "fcgi-lua",
            "Lua, fcgi-magnet, print \"123\"",
            Kind::FcgiMagnet,
            Urls::Script(&files::LUA_123),
        )
    },
    Workload {
        suite: Suite::FcgiMagnet,
        ..on_backend(
            "fcgi-php",
            "PHP, php-fpm, print \"123\"",
            Kind::PhpFpm,
            Urls::Script(&files::PRINT_123),
        )
    },
    beside_cache("file-100b", "a file of 100 B", &files::SMALL),
    cached("cache-100b", "cached, 100 B", files::SMALL.bytes),
    beside_cache("file-4k", "a file of 4 KiB", &files::PAGE),
    cached("cache-4k", "cached, 4 KiB", files::PAGE.bytes),
    beside_cache("file-100k", "a file of 100 KiB", &files::PICTURE),
    cached("cache-100k", "cached, 100 KiB", files::PICTURE.bytes),
    Workload {
        connections: &[64],
        ..over_tls("tls-4k", "HTTP/1.1 over TLS, 4 KiB", &files::PAGE)
    },
    over_http2("h2-4k", "HTTP/2 over TLS, 4 KiB", &files::PAGE, STREAMS),
    Workload {
        needs: Service::ClearHttp2,
        protocol: Protocol {
            tls: None,
            ..HTTP2_OVER_TLS
        },
        ..over_http2(
            "h2c-4k",
            "HTTP/2 in the clear, 4 KiB",
            &files::PAGE,
            STREAMS,
        )
    },
    over_tls("tls-1m", "HTTP/1.1 over TLS, 1 MiB", &files::PHOTOGRAPH),
    over_tls("tls-10m", "HTTP/1.1 over TLS, 10 MiB", &files::DOWNLOAD),
    over_http2("h2-1m", "HTTP/2 over TLS, 1 MiB", &files::PHOTOGRAPH, 1),
    over_http2("h2-10m", "HTTP/2 over TLS, 10 MiB", &files::DOWNLOAD, 1),
    handshakes("handshake", "full handshake, X25519", X25519),
    handshakes("resumed", "resumed handshake, X25519", RESUMED),
    Workload {
        needs: Service::PostQuantumTls,
        ..handshakes(
            "handshake-pq",
            "full handshake, X25519MLKEM768",
            POST_QUANTUM,
        )
    },
    Workload {
        needs: Service::PostQuantumTls,
        ..handshakes(
            "resumed-pq",
            "resumed handshake, X25519MLKEM768",
            POST_QUANTUM_RESUMED,
        )
    },
    behind_http2(
        "h2-fastcgi",
        "HTTP/2 over TLS, FastCGI",
        Kind::FastCgi,
        Urls::Virtual("/fcgi", 16),
    ),
    behind_http2(
        "h2-http",
        "HTTP/2 over TLS, HTTP/1.1 backend",
        Kind::Http,
        Urls::Virtual("/http", 16),
    ),
    Workload {
        connections: IDLE,
        aim: Aim::IdleConnections,
        ..over_tls("tls-idle", "waiting, HTTP/1.1 over TLS", &files::PAGE)
    },
    Workload {
        connections: IDLE,
        aim: Aim::IdleConnections,
        ..over_http2("h2-idle", "waiting, HTTP/2 over TLS", &files::PAGE, 1)
    },
    of_perl(
        "stat-default",
        "default",
        3,
        Htaccess::Sought,
        Lookup::DocumentRoot,
    ),
    of_perl("stat-noht", "noht", 3, Htaccess::Off, Lookup::DocumentRoot),
    of_perl("stat-alias", "alias", 3, Htaccess::Sought, Lookup::Alias),
    of_perl("stat-trans", "trans", 3, Htaccess::Sought, Lookup::Trans),
    of_perl(
        "stat-noht-alias",
        "noht+alias",
        3,
        Htaccess::Off,
        Lookup::Alias,
    ),
    of_perl(
        "stat-noht-trans",
        "noht+trans",
        3,
        Htaccess::Off,
        Lookup::Trans,
    ),
    of_perl(
        "stat-default-1",
        "default, 1 section",
        1,
        Htaccess::Sought,
        Lookup::DocumentRoot,
    ),
    of_perl(
        "stat-default-5",
        "default, 5 sections",
        5,
        Htaccess::Sought,
        Lookup::DocumentRoot,
    ),
    told("root-1", "document root, 1 section", 1, Way::DocumentRoot),
    told("root-3", "document root, 3 sections", 3, Way::DocumentRoot),
    told("root-5", "document root, 5 sections", 5, Way::DocumentRoot),
    told("alias-1", "alias.url, 1 section", 1, Way::Alias),
    told("alias-3", "alias.url, 3 sections", 3, Way::Alias),
    told("alias-5", "alias.url, 5 sections", 5, Way::Alias),
    routed("route-1", "FastCGI route, 1 section", "/fcgi/perl"),
    routed(
        "route-3",
        "FastCGI route, 3 sections",
        "/fcgi/perl/mod_perl/summary",
    ),
    routed(
        "route-5",
        "FastCGI route, 5 sections",
        "/fcgi/perl/mod_perl/summary/foo/bar",
    ),
    told("script-1", "Lua script, 1 section", 1, Way::Script),
    told("script-3", "Lua script, 3 sections", 3, Way::Script),
    told("script-5", "Lua script, 5 sections", 5, Way::Script),
    guarded("login-remembered", "log-in, remembered", Login::Remembered),
    guarded("login-first", "log-in, hashed", Login::First),
    behind_rules("rewrite-none", "no rule", 0, Match::Miss),
    behind_rules("rewrite-1-hit", "1 rule, it matches", 1, Match::Hit),
    behind_rules("rewrite-1-miss", "1 rule, none matches", 1, Match::Miss),
    behind_rules(
        "rewrite-50-hit",
        "50 rules, the last matches",
        50,
        Match::Hit,
    ),
    behind_rules("rewrite-50-miss", "50 rules, none matches", 50, Match::Miss),
    behind_rules(
        "rewrite-10000-hit",
        "10,000 rules, the last matches",
        10_000,
        Match::Hit,
    ),
    behind_rules(
        "rewrite-10000-miss",
        "10,000 rules, none matches",
        10_000,
        Match::Miss,
    ),
];

const fn on_file(name: &'static str, title: &'static str, file: &'static File) -> Workload {
    Workload {
        name,
        title,
        suite: Suite::Static,
        needs: Service::Files,
        backend: None,
        backend_reuse: Reuse::Keep,
        urls: Urls::File(file),
        status: 200,
        reuse: Reuse::Keep,
        warm_up: BRIEF,
        protocol: Protocol::PLAIN,
        connections: &[],
        aim: Aim::Requests,
    }
}

const fn on_backend(name: &'static str, title: &'static str, kind: Kind, urls: Urls) -> Workload {
    Workload {
        suite: Suite::Gateway,
        needs: match kind.route() {
            Some(route) => Service::Gateway(route),
            None => Service::WaitingScripts,
        },
        backend: Some(kind),
        urls,
        ..on_file(name, title, &files::SMALL)
    }
}

const fn on_large_script(
    name: &'static str,
    title: &'static str,
    script: &'static Script,
) -> Workload {
    Workload {
        suite: Suite::Tempfile,
        needs: Service::LargeAnswers,
        ..on_backend(name, title, Kind::PhpFpmTimed, Urls::Script(script))
    }
}

const fn of_article(name: &'static str, title: &'static str, kind: Kind) -> Workload {
    let urls = match kind.route() {
        Some(Route::Php) => Urls::Script(&files::PRINT_123),
        Some(Route::Lua) => Urls::Script(&files::LUA_123),
        _ => Urls::Printing("/fcgi/123", "123"),
    };
    Workload {
        suite: Suite::Article,
        needs: Service::KeepFastCgi,
        ..on_backend(name, title, kind, urls)
    }
}

/// For servers with persistent backend connections and for those without.
const fn of_language(name: &'static str, title: &'static str, kind: Kind) -> Workload {
    let of_article = of_article(name, title, kind);
    Workload {
        needs: on_backend(name, title, kind, of_article.urls).needs,
        ..of_article
    }
}

const fn in_server(name: &'static str, title: &'static str, script: &'static InServer) -> Workload {
    Workload {
        suite: Suite::Lua,
        needs: Service::Scripts,
        urls: Urls::InServer(script),
        ..on_file(name, title, &files::SMALL)
    }
}

const fn cached(name: &'static str, title: &'static str, bytes: u64) -> Workload {
    let (kind, urls) = (Kind::Cacheable(bytes), Urls::Sized("/http/page", bytes));
    Workload {
        suite: Suite::Cache,
        needs: Service::PageCache(Route::Http),
        ..on_backend(name, title, kind, urls)
    }
}

const fn beside_cache(name: &'static str, title: &'static str, file: &'static File) -> Workload {
    Workload {
        suite: Suite::Cache,
        ..on_file(name, title, file)
    }
}

const fn over_tls(name: &'static str, title: &'static str, file: &'static File) -> Workload {
    Workload {
        suite: Suite::Tls,
        needs: Service::Tls,
        protocol: HTTP1_OVER_TLS,
        ..on_file(name, title, file)
    }
}

const fn over_http2(
    name: &'static str,
    title: &'static str,
    file: &'static File,
    streams: u16,
) -> Workload {
    Workload {
        needs: Service::Http2,
        protocol: Protocol {
            http: Http::Two { streams },
            ..HTTP2_OVER_TLS
        },
        ..over_tls(name, title, file)
    }
}

/// A new connection for each request, so that a request costs little more than a handshake.
const fn handshakes(name: &'static str, title: &'static str, tls: Tls) -> Workload {
    Workload {
        reuse: Reuse::Close,
        protocol: Protocol {
            tls: Some(tls),
            ..HTTP1_OVER_TLS
        },
        ..over_tls(name, title, &files::SMALL)
    }
}

const fn behind_http2(name: &'static str, title: &'static str, kind: Kind, urls: Urls) -> Workload {
    Workload {
        suite: Suite::Tls,
        needs: match kind.route() {
            Some(route) => Service::Http2Gateway(route),
            None => Service::Http2,
        },
        protocol: HTTP2_OVER_TLS,
        ..on_backend(name, title, kind, urls)
    }
}

const fn told(name: &'static str, title: &'static str, sections: usize, way: Way) -> Workload {
    Workload {
        suite: Suite::Stat,
        needs: match way {
            Way::Handler(..) => Service::PerlStories,
            _ => Service::Stories,
        },
        urls: Urls::Story(Story { way, sections }),
        ..on_file(name, title, &files::SMALL)
    }
}

const fn of_perl(
    name: &'static str,
    title: &'static str,
    sections: usize,
    htaccess: Htaccess,
    lookup: Lookup,
) -> Workload {
    told(name, title, sections, Way::Handler(htaccess, lookup))
}

const fn routed(name: &'static str, title: &'static str, path: &'static str) -> Workload {
    Workload {
        suite: Suite::Stat,
        needs: Service::Stories,
        ..on_backend(
            name,
            title,
            Kind::FastCgi,
            Urls::Sized(path, backend::BODY_BYTES),
        )
    }
}

const fn guarded(name: &'static str, title: &'static str, login: Login) -> Workload {
    Workload {
        suite: Suite::Passwords,
        needs: Service::Passwords,
        urls: Urls::Guarded(&files::SMALL, login),
        ..on_file(name, title, &files::SMALL)
    }
}

const fn behind_rules(
    name: &'static str,
    title: &'static str,
    rules: u32,
    asked: Match,
) -> Workload {
    Workload {
        suite: Suite::Rewrite,
        needs: Service::Rewriting,
        urls: Urls::Rewritten(&files::SMALL, rules, asked),
        ..on_file(name, title, &files::SMALL)
    }
}

const X25519: Tls = Tls {
    key_exchange: KeyExchange::X25519,
    handshake: Handshake::Full,
};
const RESUMED: Tls = Tls {
    handshake: Handshake::Resumed,
    ..X25519
};
const POST_QUANTUM: Tls = Tls {
    key_exchange: KeyExchange::X25519MlKem768,
    ..X25519
};
const POST_QUANTUM_RESUMED: Tls = Tls {
    handshake: Handshake::Resumed,
    ..POST_QUANTUM
};
const HTTP1_OVER_TLS: Protocol = Protocol {
    tls: Some(X25519),
    http: Http::One,
};
const HTTP2_OVER_TLS: Protocol = Protocol {
    tls: Some(X25519),
    http: Http::Two { streams: STREAMS },
};
/// Open requests on an HTTP/2 connection.
const STREAMS: u16 = 16;
/// So many that the server's memory without any connection does not matter.
const IDLE: &[u16] = &[2000];

/// The script that waits.
pub static WAITING: Workload = Workload {
    suite: Suite::SlowRedis,
    backend: Some(Kind::SlowRedis),
    needs: Service::WaitingScripts,
    ..in_server(
        "waiting",
        "a script that waits for Redis",
        &scripts::ASK_REDIS,
    )
};
/// The files beside it.
pub static BESIDE_WAITING: Workload = Workload {
    suite: Suite::SlowRedis,
    ..on_file("beside", "a file of 4 KiB beside it", &files::PAGE)
};
/// The same beside requests to an HTTP backend.
pub static BESIDE_REPLIES: Workload = Workload {
    backend: Some(Kind::Http),
    needs: Service::Gateway(Route::Http),
    ..BESIDE_WAITING
};
/// Connections that request those.
const FAST_CONNECTIONS: u16 = 64;

/// What many clients request of a small php-fpm: a script of 5 ms.
pub static SLEEP: Workload = Workload {
    urls: Urls::Script(&files::SLEEP_5_MS),
    needs: Service::Gateway(Route::Php),
    ..of_article("sleep", "5 ms in PHP", Kind::PhpFpm)
};

/// PHP as in the article: with a cache of compiled scripts.
const CGI: Cgi = Cgi {
    opcache: true,
    shebang: true,
};
const CGI_PATCHED: Cgi = Cgi {
    shebang: false,
    ..CGI
};

/// Each of two workers must serve (nearly) every file of the tree once: 100,000 draws leave out 0.7 %.
const EVERY_FILE: WarmUp = WarmUp {
    requests: 10 * TREE_FILES,
    time_max: Duration::from_secs(8),
    ..BRIEF
};
/// Enough for one hot file.
const BRIEF: WarmUp = WarmUp {
    time: Duration::from_millis(200),
    requests: 200,
    time_max: Duration::from_secs(3),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_titles_are_unique() {
        for (n, one) in WORKLOADS.iter().enumerate() {
            for other in &WORKLOADS[n + 1..] {
                assert_ne!(one.name, other.name);
                assert_ne!(one.title, other.title);
            }
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = choose(Suite::Static, &["nope".to_owned()]).unwrap_err();
        assert!(error.contains("nope") && error.contains("100k"), "{error}");
    }

    #[test]
    fn choosing_keeps_the_order_of_the_table() {
        let names = ["404".to_owned(), "100b".to_owned()];
        let chosen = choose(Suite::Static, &names).unwrap();
        assert_eq!(
            chosen.iter().map(|w| w.name).collect::<Vec<_>>(),
            ["100b", "404"]
        );
    }

    #[test]
    fn a_virtual_url_has_the_length_it_says() {
        let long = WORKLOADS.iter().find(|w| w.name == "fastcgi-531").unwrap();
        let paths = long.paths();
        assert_eq!(paths[0].len(), 531);
        assert!(paths[0].starts_with("/fcgi/"));
        assert_eq!(long.backend, Some(Kind::FastCgi));
    }

    #[test]
    fn every_path_of_the_tree_has_its_own_bytes() {
        let tree = WORKLOADS.iter().find(|w| w.name == "tree").unwrap();
        let paths = tree.paths();
        assert_eq!(paths.len() as u64, TREE_FILES);
        let (first, second) = (tree.body(&paths[0]).unwrap(), tree.body(&paths[1]).unwrap());
        assert_eq!(first.len() as u64, tree.body_bytes().unwrap());
        assert_ne!(first, second);
    }
}
