//! A Node server: HTTP, early hints, WebSocket; also with a browser.

use std::process::Command;

use petrel_tests::{Browser, Builder, Component, Listens, Server, Tree, can_run, free_port, skip};

use crate::real_backends::{numbers, post};

const SERVER: &str = r#"
const http = require('http');
const crypto = require('crypto');
const server = http.createServer((request, response) => {
  if (request.url == '/app/hints') {
    response.writeEarlyHints({ link: '</style.css>; rel=preload' });
    response.end('hinted');
  } else if (request.url == '/app/page') {
    response.setHeader('Content-Type', 'text/html');
    response.end('<!DOCTYPE html><title>socket</title><script>' +
      'const s = new WebSocket(location.protocol.replace("http", "ws") + "//" + location.host + "/app/ws"); let got = "";' +
      's.onopen = () => s.send("ping " + "x".repeat(200)); s.onmessage = e => { got += e.data; s.close(4000); };' +
      's.onclose = e => { document.title = "closed " + e.code + " " + got.length; };</script>');
  } else {
    response.setHeader('X-Method', request.method);
    request.pipe(response);
  }
});
server.on('upgrade', (request, socket, head) => {
  if (request.url != '/app/ws') {
    socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno');
    return;
  }
  const key = request.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
  const accept = crypto.createHash('sha1').update(key).digest('base64');
  socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n' +
    'Connection: Upgrade\r\nSec-WebSocket-Accept: ' + accept + '\r\n\r\n');
  let held = head;
  const read = data => {
    held = Buffer.concat([held, data]);
    for (;;) {
      if (held.length < 2) return;
      let length = held[1] & 127, at = 2;
      if (length == 126) { if (held.length < 4) return; length = held.readUInt16BE(2); at = 4; }
      if (held.length < at + 4 + length) return;
      const mask = held.subarray(at, at + 4);
      const payload = Buffer.from(held.subarray(at + 4, at + 4 + length)).map((b, i) => b ^ mask[i % 4]);
      const opcode = held[0] & 15;
      held = held.subarray(at + 4 + length);
      const header = length < 126 ? Buffer.from([128 | opcode, length])
        : Buffer.from([128 | opcode, 126, length >> 8, length & 255]);
      socket.write(Buffer.concat([header, payload]));
      if (opcode == 8) { socket.end(); return; }
    }
  };
  socket.on('data', read);
  socket.on('error', () => {});
  read(Buffer.alloc(0));
});
server.listen(Number(process.argv[2]), '127.0.0.1');
"#;

fn start() -> (Component, Server) {
    start_with(Server::build())
}

/// Starts Petrel as configured so far, with Node behind it.
fn start_with(petrel: Builder) -> (Component, Server) {
    let port = free_port();
    let tree = Tree::new();
    tree.write("server.js", SERVER);
    let mut command = Command::new("node");
    command.args(["server.js", &port.to_string()]);
    let node = Component::start(tree, &mut command, &Listens::Port(port));
    let server = petrel
        .config("server.modules += ( \"mod_proxy\" )")
        .config("proxy.header = ( \"upgrade\" => \"enable\" )")
        .config(&format!(
            "proxy.server = ( \"/app\" => (( \"host\" => \"127.0.0.1\", \"port\" => {port} )) )"
        ))
        .start();
    (node, server)
}

#[test]
fn node_over_http() {
    if !can_run("node_over_http", &["node"]) {
        return;
    }
    let (_node, server) = start();
    let mut client = server.client();
    for _ in 0..50 {
        let response = client.get("/app/");
        assert_eq!(
            (response.status, response.field("X-Method")),
            (200, Some("GET"))
        );
    }
    for count in [1, 10_000, 200_000] {
        let body = numbers(count);
        assert!(
            post(&server, "/app/", &body).text() == body,
            "{} bytes",
            body.len()
        );
    }
    let hinted = client.get("/app/hints");
    assert_eq!(
        (hinted.text().as_str(), hinted.interim.as_slice()),
        ("hinted", &[103][..])
    );
}

#[test]
fn node_over_a_websocket() {
    if !can_run("node_over_a_websocket", &["node"]) {
        return;
    }
    let (_node, server) = start();
    let handshake = "GET /app/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut client = server.client();
    let response = client.send(handshake).response();
    assert_eq!(response.status, 101, "{response}");
    let accept = response.field("Sec-WebSocket-Accept");
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    for size in [0, 5, 125, 126, 60_000] {
        let payload: Vec<u8> = (0..size).map(|at| (at % 256) as u8).collect();
        client.send(frame(1, &payload));
        let head = if size < 126 { 2 } else { 4 };
        let came = client.read_bytes(head + size);
        assert_eq!(came[0], 0x81);
        assert!(came[head..] == payload, "{size} bytes");
    }
    client.send(frame(8, &[0x03, 0xe8]));
    assert_eq!(client.read_to_end(), [0x88, 2, 0x03, 0xe8]);
    let mut client = server.client();
    let refused = client.send(handshake.replace("/ws", "/other")).response();
    assert_eq!((refused.status, refused.text().as_str()), (403, "no"));
}

/// A masked frame, as clients send it.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [1, 2, 3, 4];
    let mut bytes = vec![0x80 | opcode];
    match u16::try_from(payload.len()).expect("frames here are short") {
        length @ 0..126 => bytes.push(0x80 | length as u8),
        length => {
            bytes.push(0x80 | 126);
            bytes.extend(length.to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

/// It takes so long because Chromium and Node.js start.
#[test]
fn a_browser_s_websocket() {
    let test = "a_browser_s_websocket";
    if !can_run(test, &["node"]) {
        return;
    }
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let (_node, server) = start();
    let browser = Browser::start();
    browser.open(&server.url("/app/page"));
    assert!(
        browser.is_true("document.title == 'closed 4000 205'"),
        "{}",
        browser.evaluate("document.title")
    );
}

/// The WebSocket uses a stream of the connection that has loaded the page.
/// It takes so long because Chromium and Node.js start.
#[test]
fn a_browser_s_websocket_over_http_2() {
    let test = "a_browser_s_websocket_over_http_2";
    if !can_run(test, &["node"]) {
        return;
    }
    if let Some(why) = Browser::hindrance() {
        return skip(test, &why);
    }
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]);
    let made = made.expect("a certificate");
    let petrel = Server::build()
        .file(
            "server.pem",
            made.cert.pem() + &made.signing_key.serialize_pem(),
        )
        .config("server.modules += ( \"mod_openssl\", \"mod_accesslog\" )")
        .config("ssl.engine = \"enable\"\nssl.pemfile = var.dir + \"/server.pem\"")
        .config("accesslog.filename = var.dir + \"/access.log\"\naccesslog.format = \"%U %H\"");
    let (_node, server) = start_with(petrel);
    let browser = Browser::start_with(&["--ignore-certificate-errors"]);
    browser.open(&format!("https://localhost:{}/app/page", server.port()));
    assert!(
        browser.is_true("document.title == 'closed 4000 205'"),
        "{}{}",
        browser.evaluate("document.title"),
        server.log()
    );
    let access = || server.tree().text("access.log");
    let is_logged = || access().contains("/app/ws ");
    assert!(petrel_tests::eventually(is_logged), "{}", access());
    for line in ["/app/page HTTP/2.0", "/app/ws HTTP/2.0"] {
        assert!(access().contains(line), "{line} in {}", access());
    }
}
