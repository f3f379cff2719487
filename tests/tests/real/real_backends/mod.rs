//! Well-known backends behind Petrel. The tests start and end them.
//!
//! They come from Debian's packages, which `cargo xtask test` installs; flup comes from PyPI. If a backend is
//! missing, its test prints that it is skipped, and why.

mod cgi;
mod children;
mod dokuwiki;
mod gitweb;
mod node;
mod opentelemetry;
mod perl_and_ruby;
mod php;
mod phpsysinfo;
mod python;
mod tls;
mod tomcat;

/// A body in which lost, duplicated or changed parts can be seen.
fn numbers(count: usize) -> String {
    (0..count).map(|number| format!("{number},")).collect()
}

/// Sends a POST of `body` to `target` on a new connection.
fn post(server: &petrel_tests::Server, target: &str, body: &str) -> petrel_tests::Response {
    server.exchange(format!(
        "POST {target} HTTP/1.1\r\nHost: petrel.test\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}
