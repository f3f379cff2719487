//! FastCGI programs in Perl and Ruby: one listens by itself, one is started by the server.

use std::process::Command;

use petrel_tests::{Component, Listens, Server, Tree, can_run};

use crate::real_backends::{numbers, post};

const PERL: &str = r#"
use FCGI;
my $socket = FCGI::OpenSocket('perl.sock', 16);
my $request = FCGI::Request(\*STDIN, \*STDOUT, \*STDERR, \%ENV, $socket);
while ($request->Accept() >= 0) {
    my $body = '';
    my $left = $ENV{CONTENT_LENGTH} || 0;
    while ($left > 0) {
        my $read = read(STDIN, $body, $left, length $body);
        last unless $read;
        $left -= $read;
    }
    print "Content-Type: text/plain\r\nX-Pid: $$\r\n\r\n";
    print "$ENV{REQUEST_METHOD} $ENV{QUERY_STRING} $body";
}
"#;

const RUBY: &str = r##"
require 'fcgi'
FCGI.each do |request|
  body = request.in.read
  env = request.env
  request.out.print "Content-Type: text/plain\r\nX-Pid: #{$$}\r\n\r\n"
  request.out.print "#{env['REQUEST_METHOD']} #{env['QUERY_STRING']} #{body}"
  request.finish
end
"##;

/// Checks that both must pass.
fn works(server: &Server, target: &str) {
    let mut client = server.client();
    for number in 0..30 {
        let response = client.get(&format!("{target}?{number}"));
        assert_eq!(
            response.text(),
            format!("GET {number} "),
            "{target}: {response}"
        );
        assert!(response.field("X-Pid").is_some());
    }
    for count in [1, 10_000, 100_000] {
        let body = numbers(count);
        let answer = post(server, &format!("{target}?q"), &body).text();
        assert!(
            answer == format!("POST q {body}"),
            "{target}: {} bytes",
            body.len()
        );
    }
}

#[test]
fn perl_fcgi() {
    if !can_run(
        "perl_fcgi",
        &["perl", "/var/lib/dpkg/info/libfcgi-perl.list"],
    ) {
        return;
    }
    let tree = Tree::new();
    tree.write("server.pl", PERL);
    let mut command = Command::new("perl");
    let perl = Component::start(tree, command.arg("server.pl"), &Listens::Unix("perl.sock"));
    let server = Server::build()
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(&format!(
            "fastcgi.server = ( \"/perl\" => (( \"socket\" => \"{}\", \
             \"check-local\" => \"disable\" )) )",
            perl.path("perl.sock")
        ))
        .start();
    works(&server, "/perl/x");
}

#[test]
fn ruby_fcgi_that_the_server_starts() {
    let test = "ruby_fcgi_that_the_server_starts";
    if !can_run(test, &["ruby", "/usr/lib/ruby/vendor_ruby/fcgi.rb"]) {
        return;
    }
    let server = Server::build()
        .file("app.rb", RUBY)
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config(
            "fastcgi.server = ( \"/ruby\" => (( \"bin-path\" => \"/usr/bin/ruby \" + var.dir + \
             \"/app.rb\", \"socket\" => var.dir + \"/ruby.sock\", \"max-procs\" => 2, \
             \"check-local\" => \"disable\" )) )",
        )
        .start();
    works(&server, "/ruby/x");
}
