//! Backends that are not asked: HTTP and uwsgi, and FastCGI libraries that do not answer.

use std::process::Command;
use std::thread;
use std::time::Duration;

use petrel_tests::{Component, Listens, Speaks, Tree, can_run, eventually, free_port};

use crate::real_backends::children::{NOTED, Site, builder};

/// The scripts as a WSGI application. `STATE` is the directory in which scripts and tests meet.
pub(super) const APPLICATION: &str = r#"
import os, time
STATE = open('state-directory').read()
def path(name):
    return os.path.join(STATE, name)
def note(name):
    with open(path(name), 'a') as file:
        file.write('%d\n' % os.getpid())
def wait_for(name):
    while not os.path.exists(path(name)):
        time.sleep(0.002)
class Closing:
    def __iter__(self):
        return iter([b'page'])
    def close(self):
        note('closing')
        wait_for('end')
        note('closed')
def application(environ, start_response):
    # Which of the two has the path depends on the protocol.
    path_info = environ.get('SCRIPT_NAME', '') + environ.get('PATH_INFO', '')
    name = path_info.rpartition('/')[2]
    length = ('Content-Length', '4')
    if name == 'closing.php':
        start_response('200 OK', [length])
        return Closing()
    if name == 'slow.php':
        note('slow')
        wait_for(environ['QUERY_STRING'].partition('=')[2])
    else:
        note('fast')
    start_response('200 OK', [length])
    return [b'done']
"#;

/// A Perl program with libfcgi, which answers GET_VALUES only with its next reply. It has as many processes as its
/// argument says.
const PERL: &str = r#"
use FCGI;
my $socket = FCGI::OpenSocket('perl.sock', 100);
for (2 .. $ARGV[0]) { last unless fork }
open(my $file, '<', 'state-directory');
my $state = <$file>;
sub note { open(my $file, '>>', "$state/$_[0]"); syswrite($file, "$$\n"); }
my $request = FCGI::Request(\*STDIN, \*STDOUT, \*STDERR, \%ENV, $socket);
while ($request->Accept() >= 0) {
    if ($ENV{SCRIPT_NAME} eq '/slow.php') {
        note('slow');
        my ($until) = $ENV{QUERY_STRING} =~ /until=(.*)/;
        select(undef, undef, undef, 0.002) until -e "$state/$until";
    } else {
        note('fast');
    }
    print "Content-Type: text/plain\r\n\r\ndone";
}
"#;

/// A Ruby program whose library dies of a GET_VALUES that names a value.
const RUBY: &str = r##"
require 'fcgi'
state = File.expand_path('../state', __FILE__)
FCGI.each do |request|
  File.open(File.join(state, 'fast'), 'a') { |file| file.syswrite("#{$$}\n") }
  request.out.print "Content-Type: text/plain\r\n\r\ndone"
  request.finish
end
"##;

/// A CGI program for fcgiwrap, whose name says whether it is slow.
const CGI: &str = r#"#!/bin/sh
name=$(basename "$0" .php)
cd "$(dirname "$0")/../state" || exit 1
echo $$ >> "$name"
if [ "$name" = slow ]; then
    while [ ! -e "${QUERY_STRING#*=}" ]; do sleep 0.01; done
fi
printf 'Content-Type: text/plain\r\n\r\ndone'
"#;

/// How the server finds the backend.
enum Place {
    Unix(&'static str),
    Port(u16),
}

/// A server in front of a backend in `tree` that has not been started yet.
fn in_front(speaks: Speaks, tree: &Tree, place: &Place) -> Site {
    let host = match place {
        Place::Unix(name) => format!("\"socket\" => \"{}\"", tree.path(name).display()),
        Place::Port(port) => format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
    };
    in_front_of_host(speaks, tree, &host, 2)
}

/// The same for the options of a host.
pub(super) fn in_front_of_host(speaks: Speaks, tree: &Tree, host: &str, workers: usize) -> Site {
    let (module, directive) = match speaks {
        Speaks::FastCgi => ("mod_fastcgi", "fastcgi.server"),
        Speaks::Http => ("mod_proxy", "proxy.server"),
        _ => ("mod_scgi", "scgi.server"),
    };
    let protocol = match speaks {
        Speaks::Uwsgi => "scgi.protocol = \"uwsgi\"\n",
        _ => "",
    };
    let server = builder(workers)
        .config(&format!(
            "server.modules += ( \"{module}\" )\n{protocol}\
             {directive} = ( \".php\" => (( {host}, \"check-local\" => \"disable\" )) )"
        ))
        .start();
    let state = server.tree().path("state").display().to_string();
    tree.write("state-directory", state);
    Site { server }
}

/// Slow requests have both processes. Twenty others wait in Petrel, and all are answered, each once.
fn others_wait_in_petrel(site: &Site) {
    let mut held = site.hold(2, "all");
    let mut others: Vec<_> = (0..20).map(|_| site.ask("/fast.php?x")).collect();
    // Each of the two workers has written a few to new connections, until the kernel said that none is accepted.
    let is_so = eventually(|| {
        site.backend()["waiting"]
            .as_u64()
            .is_some_and(|count| count >= 4)
    });
    assert!(is_so, "{}", site.backend());
    thread::sleep(NOTED);
    assert_eq!(site.count("fast"), 0);
    site.end("all");
    for client in held.iter_mut().chain(&mut others) {
        assert_eq!(client.response().text(), "done");
    }
    assert_eq!((site.count("slow"), site.count("fast")), (2, 20));
    let logged = site.logged("/fast.php?x", 20);
    for request in &logged {
        let stages = &request.stages;
        assert!(request.stage("backend-accept") > 0, "{stages:?}");
        // Some are told the others of these requests, whose end was the last thing they waited for. On a slow machine
        // some began before the worker had seen which requests have the processes.
        let told = [" processes busy: ", " was known to be free"];
        assert!(
            told.iter().any(|told| request.waits.contains(told)),
            "{}",
            request.waits
        );
    }
    let waits = || logged.iter().map(|request| request.waits.as_str());
    let note = "2 of 2 processes busy: 2x /slow.php, oldest ";
    let waits_text = || waits().collect::<Vec<_>>().join("\n");
    assert!(
        waits().any(|waits| waits.contains(note)),
        "{}",
        waits_text()
    );
}

fn gunicorn(place: &Place, options: &[&str]) -> (Component, Site) {
    let tree = Tree::new();
    tree.write("app.py", APPLICATION);
    let site = in_front(Speaks::Http, &tree, place);
    let (bind, listens) = match place {
        Place::Unix(name) => (format!("unix:{name}"), Listens::Unix(name)),
        Place::Port(port) => (format!("127.0.0.1:{port}"), Listens::Port(*port)),
    };
    let mut command = Command::new("/usr/bin/gunicorn");
    command
        .args(["--timeout", "300", "--bind", &bind])
        .args(options)
        .arg("app:application");
    (Component::start(tree, &mut command, &listens), site)
}

/// It takes so long because Python starts twice.
#[test]
fn requests_that_gunicorn_does_not_take_wait_in_petrel() {
    let test = "requests_that_gunicorn_does_not_take_wait_in_petrel";
    if !can_run(test, &["/usr/bin/gunicorn"]) {
        return;
    }
    for place in [Place::Unix("gunicorn.sock"), Place::Port(free_port())] {
        let (_gunicorn, site) = gunicorn(&place, &["--workers", "2"]);
        others_wait_in_petrel(&site);
    }
}

/// A request that comes while a thread runs `close()` may get its connection, where HTTP cannot ask whether it is free.
#[test]
fn requests_behind_a_slow_close_in_gunicorn_are_answered() {
    let test = "requests_behind_a_slow_close_in_gunicorn_are_answered";
    if !can_run(test, &["/usr/bin/gunicorn"]) {
        return;
    }
    let options = ["--worker-class", "gthread", "--threads", "4"];
    let (_gunicorn, site) = gunicorn(&Place::Unix("gunicorn.sock"), &options);
    assert_eq!(site.server.get("/closing.php").text(), "page");
    site.expect_count("closing", 1);
    let mut fast: Vec<_> = (0..10).map(|_| site.ask("/fast.php")).collect();
    site.end("end");
    for client in &mut fast {
        assert_eq!(client.response().text(), "done");
    }
    site.expect_count("closed", 1);
    assert_eq!(site.count("fast"), 10, "each ran once");
}

/// It takes so long because Python starts twice.
#[test]
fn requests_that_uwsgi_does_not_take_wait_in_petrel() {
    let test = "requests_that_uwsgi_does_not_take_wait_in_petrel";
    if !can_run(test, &["uwsgi_python3"]) {
        return;
    }
    for place in [Place::Unix("uwsgi.sock"), Place::Port(free_port())] {
        let tree = Tree::new();
        tree.write("app.py", APPLICATION);
        let site = in_front(Speaks::Uwsgi, &tree, &place);
        let (socket, listens) = match &place {
            Place::Unix(name) => ((*name).to_owned(), Listens::Unix(name)),
            Place::Port(port) => (format!("127.0.0.1:{port}"), Listens::Port(*port)),
        };
        let mut command = Command::new("uwsgi_python3");
        command
            .args(["--uwsgi-socket", &socket, "--wsgi-file", "app.py"])
            .args(["--master", "--processes", "2", "--need-app"])
            .args(["--die-on-term", "--disable-logging"]);
        let _uwsgi = Component::start(tree, &mut command, &listens);
        others_wait_in_petrel(&site);
    }
}

#[test]
fn requests_that_a_perl_program_does_not_take_wait_in_petrel() {
    let test = "requests_that_a_perl_program_does_not_take_wait_in_petrel";
    if !can_run(test, &["perl", "/var/lib/dpkg/info/libfcgi-perl.list"]) {
        return;
    }
    let tree = Tree::new();
    tree.write("server.pl", PERL);
    let site = in_front(Speaks::FastCgi, &tree, &Place::Unix("perl.sock"));
    let mut command = Command::new("perl");
    command.args(["server.pl", "2"]);
    let _perl = Component::start(tree, &mut command, &Listens::Unix("perl.sock"));
    // It is asked once, and does not answer.
    assert_eq!(site.server.get("/first.php").text(), "done");
    std::fs::remove_file(site.server.tree().path("state/fast")).expect("it ran");
    others_wait_in_petrel(&site);
}

/// The library ends with an exception when a connection closes on which no request came.
#[test]
fn a_ruby_program_outlives_the_questions() {
    let test = "a_ruby_program_outlives_the_questions";
    if !can_run(test, &["ruby", "/usr/lib/ruby/vendor_ruby/fcgi.rb"]) {
        return;
    }
    let server = builder(2)
        .file("app.rb", RUBY)
        .config(
            "server.modules += ( \"mod_fastcgi\" )
            fastcgi.server = ( \".php\" => (( \"bin-path\" => \"/usr/bin/ruby \" + var.dir + \"/app.rb\",
                \"socket\" => var.dir + \"/ruby.sock\", \"max-procs\" => 1, \"check-local\" => \"disable\" )) )",
        )
        .start();
    let site = Site { server };
    for _ in 0..3 {
        for _ in 0..10 {
            assert_eq!(site.server.get("/fast.php").text(), "done");
        }
        // Connections that nothing needs are closed after two seconds.
        thread::sleep(Duration::from_millis(2500));
        let mut clients: Vec<_> = (0..10).map(|_| site.ask("/fast.php")).collect();
        for client in &mut clients {
            assert_eq!(client.response().text(), "done");
        }
    }
    let ran = site.server.tree().text("state/fast");
    let first = ran.lines().next().expect("it ran");
    assert!(ran.lines().all(|pid| pid == first), "{ran}");
    assert_eq!(ran.lines().count(), 60);
}

/// fcgiwrap is FastCGI's libfcgi around programs of CGI, which come from the server's document root.
#[test]
fn requests_that_fcgiwrap_does_not_take_wait_in_petrel() {
    let test = "requests_that_fcgiwrap_does_not_take_wait_in_petrel";
    if !can_run(test, &["/usr/sbin/fcgiwrap"]) {
        return;
    }
    let tree = Tree::new();
    let site = in_front(Speaks::FastCgi, &tree, &Place::Unix("wrap.sock"));
    let of_server = site.server.tree();
    for name in ["www/slow.php", "www/fast.php"] {
        of_server.write(name, CGI).mode(name, 0o755);
    }
    let socket = format!("unix:{}", tree.path("wrap.sock").display());
    let mut command = Command::new("/usr/sbin/fcgiwrap");
    command.args(["-c", "2", "-s", &socket]);
    let _wrap = Component::start(tree, &mut command, &Listens::Unix("wrap.sock"));
    others_wait_in_petrel(&site);
}
