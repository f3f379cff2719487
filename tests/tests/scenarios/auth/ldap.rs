//! An LDAP server says whose password is right: a real slapd, and servers that answer nonsense.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{
    Authority, Builder, Component, Listens, Server, Tree, can_run, eventually, free_port, run,
};

use crate::auth::{HASTY, status};

const PEOPLE: &str = "dn: o=x
objectClass: organization
o: x

dn: ou=people,o=x
objectClass: organizationalUnit
ou: people

dn: uid=anna,ou=people,o=x
objectClass: account
objectClass: simpleSecurityObject
uid: anna
description: anna@example.org
userPassword: secret

dn: uid=bob,ou=people,o=x
objectClass: account
objectClass: simpleSecurityObject
uid: bob
userPassword: secret

dn: cn=service,o=x
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: service
userPassword: service

dn: ou=groups,o=x
objectClass: organizationalUnit
ou: groups

dn: cn=staff,ou=groups,o=x
objectClass: posixGroup
cn: staff
gidNumber: 1000
memberUid: anna

dn: cn=editors,ou=groups,o=x
objectClass: groupOfNames
cn: editors
member: uid=anna,ou=people,o=x
";

/// A slapd with [`PEOPLE`], in the clear and with StartTLS on the first port and `ldapi` in its tree, by TLS on the second
/// port.
fn slapd(authority: &Authority) -> (Component, u16, u16) {
    let identity = authority.identity("localhost");
    let (port, tls_port) = (free_port(), free_port());
    let tree = Tree::new();
    tree.directory("db");
    tree.write("people.ldif", PEOPLE);
    tree.write(
        "slapd.conf",
        format!(
            "include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {root}/slapd.pid
TLSCertificateFile {certificate}
TLSCertificateKeyFile {key}
database mdb
maxsize 10485760
suffix o=x
rootdn cn=root,o=x
directory {root}/db
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact=\"cn=service,o=x\" read by * none
",
            root = tree.root().display(),
            certificate = identity.certificate.display(),
            key = identity.key.display(),
        ),
    );
    let config = tree.path("slapd.conf");
    let mut add = Command::new("/usr/sbin/slapadd");
    add.arg("-f")
        .arg(&config)
        .arg("-l")
        .arg(tree.path("people.ldif"));
    let added = run(&mut add, Duration::from_secs(60));
    assert_eq!(added.code(), 0, "{}", added.errors);
    let socket = unix_url(&tree);
    let urls = format!("ldap://127.0.0.1:{port}/ ldaps://127.0.0.1:{tls_port}/ {socket}");
    let mut command = Command::new("/usr/sbin/slapd");
    command
        .arg("-f")
        .arg(&config)
        .args(["-h", &urls, "-d", "0"]);
    let slapd = Component::start(tree, &mut command, &Listens::Unix("ldapi"));
    (slapd, port, tls_port)
}

/// The socket `ldapi` there.
fn unix_url(tree: &Tree) -> String {
    let path = tree.path("ldapi").display().to_string();
    format!("ldapi://{}", path.replace('/', "%2F"))
}

/// A server whose users are those of the LDAP server at `url`; `/staff/` and `/editors/` are for groups.
fn asking(url: &str, more: &str) -> Builder {
    let rule = |prefix: &str, require: &str| {
        format!(
            "\"/{prefix}/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"{require}\" )"
        )
    };
    let rules = [
        rule("private", "valid-user"),
        rule("staff", "group=cn=staff,ou=groups,o=x"),
        rule("editors", "user=carl|group=cn=editors,ou=groups,o=x"),
    ];
    Server::build()
        .file("www/private/index.html", "private")
        .file("www/staff/index.html", "staff")
        .file("www/editors/index.html", "editors")
        .file("www/index.html", "open")
        .config(&format!(
            "server.modules += ( \"mod_auth\", \"mod_authn_ldap\", \"mod_status\" )
status.statistics-url = \"/counters\"
auth.backend = \"ldap\"
auth.backend.ldap.hostname = \"{url}\"
auth.backend.ldap.base-dn = \"ou=people,o=x\"
auth.backend.ldap.filter = \"(&(objectClass=account)(uid=?))\"
auth.backend.ldap.bind-dn = \"cn=service,o=x\"
auth.backend.ldap.bind-pw = \"service\"
auth.require = ( {} )
{HASTY}
{more}",
            rules.join(", ")
        ))
}

/// The number of connections that the server has made to LDAP servers.
fn connects(server: &Server) -> u64 {
    let text = server.get("/counters").text();
    let lines = text.lines().filter(|line| line.starts_with("store.ldap "));
    let counts = lines.filter_map(|line| line.split_once(".connects: "));
    counts
        .map(|(_, count)| count.parse::<u64>().expect("a number"))
        .sum()
}

fn can_run_slapd(test: &str) -> bool {
    can_run(test, &["/usr/sbin/slapd", "/usr/lib/ldap/back_mdb.so"])
}

/// It takes so long because slapd starts, and curl asks each of five servers more than twenty times.
#[test]
fn slapd_says_whose_password_is_right() {
    if !can_run_slapd("auth::slapd_says_whose_password_is_right") {
        return;
    }
    let authority = Authority::new();
    let (slapd, port, tls_port) = slapd(&authority);
    let ca = format!(
        "auth.backend.ldap.ca-file = \"{}\"",
        authority.file().display()
    );
    let agreed = format!("{ca}\nauth.backend.ldap.starttls = \"enable\"");
    for (url, more) in [
        (format!("ldap://127.0.0.1:{port}"), ""),
        (format!("ldap://localhost:{port}"), &agreed),
        (format!("ldaps://localhost:{tls_port}"), &ca),
        (unix_url(&slapd.tree), ""),
        // The first one is away.
        (format!("127.0.0.1:1, ldap://127.0.0.1:{port}/"), ""),
    ] {
        let server = asking(&url, more).start();
        let ask = |user: &str, target: &str| status(&server, user, target, &[]);
        for (user, target, expected) in [
            ("anna:secret", "/private/", "200"),
            ("bob:secret", "/private/", "200"),
            ("anna:wrong", "/private/", "401"),
            ("anna:", "/private/", "401"),
            (":", "/private/", "401"),
            ("none:secret", "/private/", "401"),
            // What a name has in it means nothing to the filter.
            ("*:secret", "/private/", "401"),
            ("ann*:secret", "/private/", "401"),
            ("anna)(uid=bob:secret", "/private/", "401"),
            ("anna\\:secret", "/private/", "401"),
            ("anna:secret", "/staff/", "200"),
            ("bob:secret", "/staff/", "401"),
            ("bob:secret", "/editors/", "401"),
        ] {
            assert_eq!(ask(user, target), expected, "{url} {user} {target}");
        }
        server.expect_log("(mod_auth.c.853) password doesn\'t match for /private/ ");
        server.expect_log(" username: none IP: 127.0.0.1\n");
        // Connections are kept.
        let before = connects(&server);
        for _ in 0..10 {
            assert_eq!(ask("anna:secret", "/private/"), "200");
        }
        let workers = 2 * std::thread::available_parallelism().map_or(1, usize::from) as u64;
        assert!(connects(&server) - before <= workers, "{url}");
    }
    let member = "auth.backend.ldap.groupmember = \"member\"";
    let server = asking(&format!("ldap://127.0.0.1:{port}"), member).start();
    assert_eq!(status(&server, "anna:secret", "/editors/", &[]), "200");
    assert_eq!(status(&server, "bob:secret", "/editors/", &[]), "401");
}

#[test]
fn names_are_made_without_a_search_and_an_inexact_filter_lets_in_no_client() {
    if !can_run_slapd(
        "auth::names_are_made_without_a_search_and_an_inexact_filter_lets_in_no_client",
    ) {
        return;
    }
    let (_slapd, port, _) = slapd(&Authority::new());
    let url = format!("ldap://127.0.0.1:{port}");
    let named = "auth.backend.ldap.filter := \",ou=people,o=x\"";
    let server = asking(&url, named).start();
    for (user, expected) in [
        ("anna:secret", "200"),
        ("anna:wrong", "401"),
        ("none:secret", "401"),
        ("anna,ou=people:secret", "401"),
    ] {
        assert_eq!(status(&server, user, "/private/", &[]), expected, "{user}");
    }
    let inexact = "auth.backend.ldap.filter := \"(|(uid=?)(objectClass=account))\"";
    let server = asking(&url, inexact).start();
    assert_eq!(status(&server, "anna:secret", "/private/", &[]), "401");
    server.expect_log("auth.backend.ldap.filter finds more than one entry");
}

#[test]
fn a_server_that_is_away_or_refuses_the_service_lets_in_no_client() {
    if !can_run_slapd("auth::a_server_that_is_away_or_refuses_the_service_lets_in_no_client") {
        return;
    }
    let authority = Authority::new();
    let (slapd, port, tls_port) = slapd(&authority);
    let url = format!("ldap://127.0.0.1:{port}");
    let refused = asking(&url, "auth.backend.ldap.bind-pw := \"wrong\"").start();
    assert_eq!(status(&refused, "anna:secret", "/private/", &[]), "503");
    refused.expect_log("login: 49 (invalid credentials)");
    // Another authority has signed its certificate, or it is for another name.
    let other = Authority::new();
    for (name, ca) in [("localhost", &other), ("127.0.0.1", &authority)] {
        let ca = format!("auth.backend.ldap.ca-file = \"{}\"", ca.file().display());
        let server = asking(&format!("ldaps://{name}:{tls_port}"), &ca).start();
        assert_eq!(status(&server, "anna:secret", "/private/", &[]), "503");
        server.expect_log("certificate");
    }
    let cached = asking(&url, "auth.cache = ( \"max-age\" => 600 )").start();
    for target in ["/private/", "/staff/"] {
        assert_eq!(status(&cached, "anna:secret", target, &[]), "200");
    }
    drop(slapd);
    // What is remembered needs no server; and only that.
    for (user, target, expected) in [
        ("anna:secret", "/private/", "200"),
        ("anna:secret", "/staff/", "200"),
        ("anna:secret", "/editors/", "503"),
        ("anna:wrong", "/private/", "503"),
        ("bob:secret", "/private/", "503"),
    ] {
        assert_eq!(
            status(&cached, user, target, &[]),
            expected,
            "{user} {target}"
        );
    }
    cached.expect_log("users cannot be looked up: ldap 127.0.0.1");
    assert_eq!(cached.get("/").status, 200);
}

/// A server that answers each request with `reply`, and then says nothing.
fn nonsense(reply: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
                    if stream.write_all(reply).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// What a server does with a request that it does not answer.
#[derive(Clone, Copy)]
enum Unanswered {
    Kept,
    Closed,
}

/// A server that answers nothing, and how many bytes it has got.
fn unanswering(end: Unanswered) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let got = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&got);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), got) = (stream, Arc::clone(&counted)) else {
                return;
            };
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    got.fetch_add(count, Ordering::Relaxed);
                    if let Unanswered::Closed = end {
                        return;
                    }
                }
            });
        }
    });
    (port, got)
}

#[test]
fn a_password_that_a_server_may_have_got_goes_to_no_other() {
    let more = "auth.backend.ldap.filter := \",ou=people,o=x\"
auth.backend.ldap.timeout = \"2000000\"";
    for end in [Unanswered::Kept, Unanswered::Closed] {
        let ((first, first_got), (second, second_got)) = (unanswering(end), unanswering(end));
        let url = format!("ldap://127.0.0.1:{first} ldap://127.0.0.1:{second}");
        let server = asking(&url, more).start();
        assert_eq!(status(&server, "anna:secret", "/private/", &[]), "503");
        assert_ne!(first_got.load(Ordering::Relaxed), 0);
        assert_eq!(second_got.load(Ordering::Relaxed), 0);
        server.expect_log("users cannot be looked up: ldap 127.0.0.1");
        // A server that cannot be reached has not got it.
        let url = format!("ldap://127.0.0.1:1 ldap://127.0.0.1:{second}");
        let server = asking(&url, more).start();
        assert_eq!(status(&server, "anna:secret", "/private/", &[]), "503");
        assert_ne!(second_got.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn wrong_passwords_count_for_the_entry_that_is_found() {
    if !can_run_slapd("auth::wrong_passwords_count_for_the_entry_that_is_found") {
        return;
    }
    let (_slapd, port, _) = slapd(&Authority::new());
    let more = "auth.backend.ldap.filter := \"(&(objectClass=account)(|(uid=?)(description=?)))\"
auth.lockout = ( \"failures\" => 3, \"address-failures\" => 0 )";
    let server = asking(&format!("ldap://127.0.0.1:{port}"), more).start();
    let ask = |user: &str| status(&server, user, "/private/", &[]);
    // What LDAP takes for one user is one user, and a name that only looks like an entry is not.
    for (user, expected) in [
        ("uid=anna,ou=people,o=x:a", "401"),
        ("uid=anna,ou=people,o=x:b", "401"),
        ("uid=anna,ou=people,o=x:c", "401"),
        ("uid=anna,ou=people,o=x:d", "429"),
        ("anna:a", "401"),
        ("ANNA@example.org:b", "401"),
        ("anna:secret", "200"),
        // A right password, by whichever name, has ended that count.
        ("anna:a", "401"),
        ("anna@example.org:b", "401"),
        ("Anna:c", "401"),
        ("anna:secret", "429"),
        ("anna@example.org:secret", "429"),
        ("bob:secret", "200"),
    ] {
        assert_eq!(ask(user), expected, "{user}");
    }
}

/// A server that answers the first request on a connection by a successful bind, and each further one by the same bytes
/// again.
fn repeating() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let (mut buffer, mut reply) = ([0; 4096], Vec::new());
            while stream.read(&mut buffer).is_ok_and(|count| count > 4) {
                if reply.is_empty() {
                    reply = b"\x30\x0c\x02\x01\x00\x61\x07\x0a\x01\x00\x04\x00\x04\x00".to_vec();
                    reply[4] = buffer[4];
                }
                if stream.write_all(&reply).is_err() {
                    break;
                }
            }
        }
    });
    port
}

#[test]
fn a_reply_to_an_earlier_bind_counts_for_no_other() {
    let named = "auth.backend.ldap.filter := \",ou=people,o=x\"\nserver.max-worker = 1";
    let server = asking(&format!("ldap://127.0.0.1:{}", repeating()), named).start();
    assert_eq!(status(&server, "anna:secret", "/private/", &[]), "200");
    // On the same connection.
    assert_eq!(status(&server, "bob:wrong", "/private/", &[]), "503");
    server.expect_log("it answers what it was not asked");
}

#[test]
fn nonsense_lets_in_no_client_and_holds_up_none() {
    // A success of a bind, for all that is asked; without its end; of another request; too long; no LDAP; nothing.
    for (reply, told) in [
        (
            &b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00"[..],
            "it answers what it was not asked",
        ),
        (
            b"\x30\x0c\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00",
            "in time",
        ),
        (
            b"\x30\x0c\x02\x01\x07\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            "it answers what it was not asked",
        ),
        (
            b"\x30\x84\x7f\xff\xff\xff\x02\x01\x02",
            "it sends a message that is too long",
        ),
        (
            b"\x30\x0c\x02\x01\x00\x78\x07\x0a\x01\x34\x04\x00\x04\x00",
            "it ends the connection",
        ),
        (
            b"\x30\x0d\x02\x01\x02\x61\x07\x0a\x01\x00\x04\x00\x04\x00",
            "in time",
        ),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "what it says is no LDAP",
        ),
        (b"", "in time"),
    ] {
        let port = nonsense(reply);
        // In microseconds. A busy machine needs some time to connect.
        let timeout = if told == "in time" {
            300_000
        } else {
            10_000_000
        };
        let timeout = format!("auth.backend.ldap.timeout = \"{timeout}\"");
        let server = asking(&format!("ldap://127.0.0.1:{port}"), &timeout).start();
        let mut slow = server.client();
        let request = "GET /private/ HTTP/1.1\r\nHost: petrel.test\r\nAuthorization: Basic YW5uYTpzZWNyZXQ=\r\n\r\n";
        let begun = Instant::now();
        slow.send(request);
        assert_eq!(server.get("/").status, 200);
        let answer = slow.response();
        assert_eq!(answer.status, 503, "{told}");
        assert_eq!(answer.field("Retry-After"), Some("2"));
        assert!(begun.elapsed() < Duration::from_secs(20), "{told}");
        server.expect_log(told);
    }
}

#[test]
fn a_configuration_that_protects_less_than_it_says_does_not_start() {
    let told = |more: &str| {
        let checked = asking("ldap://localhost", more).check(&["-tt"]);
        (checked.code(), checked.errors)
    };
    for (more, expected) in [
        (
            "auth.backend.ldap.hostname := \"http://a\"",
            "is none of ldap://, ldaps:// and ldapi://",
        ),
        (
            "auth.backend.ldap.hostname := \"ldaps://a\"\nauth.backend.ldap.starttls = \"enable\"",
            "speaks TLS at once",
        ),
        ("auth.backend.ldap.filter := \"(uid=anna)\"", "it has no ?"),
        (
            "auth.backend.ldap.filter := \"(uid=?\"",
            "a parenthesis is not closed",
        ),
        (
            "auth.backend.ldap.timeout = \"2s\"",
            "is a number of microseconds",
        ),
        (
            "auth.backend.ldap.starttls = \"enable\"\nauth.backend.ldap.ca-file = \"/nonexistent/ca.pem\"",
            "auth.backend.ldap.ca-file: /nonexistent/ca.pem",
        ),
    ] {
        let (code, errors) = told(more);
        assert_ne!(code, 0, "{more}");
        assert!(errors.contains(expected), "{expected}: {errors}");
    }
    // What the module does not use may be missing.
    let unused = "server.modules := ( \"mod_status\" )
auth.backend.ldap.starttls = \"enable\"
auth.backend.ldap.ca-file = \"/nonexistent/ca.pem\"";
    assert_eq!(told(unused).0, 0);
    let (code, errors) = told("auth.backend.ldap.timeout = \"2000\"");
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("is in microseconds"), "{errors}");
}

#[test]
fn a_server_that_comes_back_is_found() {
    if !can_run_slapd("auth::a_server_that_comes_back_is_found") {
        return;
    }
    let authority = Authority::new();
    let (slapd, port, _) = slapd(&authority);
    let url = format!("ldap://127.0.0.1:{port}");
    let server = asking(&url, "").start();
    let ask = || status(&server, "anna:secret", "/private/", &[]);
    assert_eq!(ask(), "200");
    // Connections that were kept are closed under the server.
    let pid = slapd.tree.text("slapd.pid").trim().to_owned();
    let kill = run(Command::new("kill").arg(&pid), Duration::from_secs(10));
    assert_eq!(kill.code(), 0);
    assert!(eventually(|| ask() == "503"));
    let mut command = Command::new("/usr/sbin/slapd");
    command
        .args(["-h", &format!("{url}/"), "-d", "0", "-f"])
        .arg(slapd.path("slapd.conf"));
    let _again = Component::start(Tree::new(), &mut command, &Listens::Port(port));
    assert!(eventually(|| ask() == "200"));
}
