//! Backends that people run, behind Petrel, started by these tests and ended with them.
//!
//! They come from Debian's packages, which `cargo xtask test` installs; flup comes from PyPI. A test
//! whose backend cannot be had says that it is skipped, and why.

mod cgi;
mod component;
mod dokuwiki;
mod node;
mod perl_and_ruby;
mod php;
mod python;
mod tls;
mod tomcat;

/// A body that shows what was lost, doubled or changed on its way.
fn numbers(count: usize) -> String {
    (0..count).map(|number| format!("{number},")).collect()
}

/// POST of `body` to `target` on a connection of its own.
fn post(server: &petrel_tests::Server, target: &str, body: &str) -> petrel_tests::Response {
    server.exchange(format!(
        "POST {target} HTTP/1.1\r\nHost: petrel.test\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ))
}
