//! Reloads with open requests: what the replaced server process finishes, what it releases, when it is cut
//! off, and the commands that reload and stop a server.

mod commands;
mod drain;
mod http2;
mod why;

use petrel_tests::{Backend, Builder, Client, Server, Speaks, eventually};
use rustix::process::Signal;

/// The access log: one line per request, with its status and URL.
const ACCESS_LOG: &str = "server.modules += ( \"mod_accesslog\" )\n\
    accesslog.filename = var.dir + \"/access.log\"\naccesslog.format = \"%s %U\"";

/// A browser's request for a WebSocket.
pub(crate) const HANDSHAKE: &str = "GET /app/TARGET HTTP/1.1\r\nHost: petrel.test\r\n\
    Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

pub(crate) const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// A backend that accepts every upgrade and then echoes, and answers everything else with its URL, except
/// that `hang`, with any query, never gets an answer.
fn application() -> Backend {
    Backend::start(Speaks::Http, |exchange| {
        if exchange.param("Upgrade") == "websocket" {
            exchange.raw(SWITCHING);
            loop {
                let bytes = exchange.receive(1 << 16);
                if bytes.is_empty() {
                    return exchange.close();
                }
                exchange.raw(&bytes);
            }
        }
        let target = exchange.target().to_owned();
        match target.contains("/hang") || target.ends_with("hang") {
            true => drop(exchange.hang()),
            false => exchange.say(&target),
        }
    })
}

/// The part of a configuration that sends requests to `backend`.
fn route_to(backend: &Backend) -> String {
    let options = "\"check-local\" => \"disable\"";
    backend.directive("/app", options) + "\nproxy.header = ( \"upgrade\" => \"enable\" )\n"
}

/// A server in front of `backend`, with a file of 32 MiB as well.
pub(crate) fn in_front_of(backend: &Backend, config: &str) -> Builder {
    let config = format!("{ACCESS_LOG}\n{}{config}", route_to(backend));
    Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; BIG])
        .config(&config)
}

const BIG: usize = 32 << 20;

/// Reloads the server with `tag` as its name, and waits until the new configuration is served. Returns how
/// many requests for `/` that took.
pub(crate) fn reload(server: &Server, tag: &str) -> usize {
    let tagged = format!("server.tag = \"{tag}\"\n{}", server.configuration());
    server.write_configuration(&tagged);
    server.signal(Signal::USR1);
    let mut asked = 0;
    let is_new = || {
        asked += 1;
        server.get("/").field("Server") == Some(tag)
    };
    assert!(eventually(is_new), "{tag} is not served:\n{}", server.log());
    asked
}

/// Opens a tunnel and checks that it works.
fn tunnel(server: &Server, name: &str) -> Client {
    let mut client = server.client();
    client.send(HANDSHAKE.replace("TARGET", name));
    assert_eq!(client.response().status, 101);
    echo(&mut client);
    client
}

/// Checks that the tunnel still works.
#[track_caller]
pub(crate) fn echo(tunnel: &mut Client) {
    tunnel.send("ping");
    assert_eq!(tunnel.read_bytes(4), b"ping");
}

/// A download that has begun, and whose rest does not fit into the buffers on the way.
fn download(server: &Server) -> Client {
    let mut client = server.client().with_receive_buffer(64 * 1024);
    client.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    client.read_bytes(100_000);
    client
}

/// How many server processes there are.
pub(crate) fn server_processes(server: &Server) -> usize {
    server.processes().pids.len() - 1
}
