//! The made-up request of `petrel lua`, and its response.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use crate::cli;

/// The response that was received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceivedReply {
    /// Status line and fields, preceded by interim responses.
    pub(crate) head: String,
    /// The body without chunk framing.
    pub(crate) body: Vec<u8>,
}

/// Builds the request that `options` describe.
///
/// # Errors
/// A part of it is not allowed in a request, or the body's file cannot be read.
pub(crate) fn request(options: &cli::Lua) -> Result<Vec<u8>, String> {
    let is_plain =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_plain(&options.url) || !options.url.starts_with('/') {
        return Err("--url is a path, such as /x?y, without spaces".to_owned());
    }
    if !is_plain(&options.method) {
        return Err("--method is a word".to_owned());
    }
    let body = match &options.body {
        Some(path) => Some(std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?),
        None => None,
    };
    let mut head = format!(
        "{} {} HTTP/1.1\r\nConnection: close\r\n",
        options.method, options.url
    );
    for field in &options.header {
        if !field.contains(':') || field.contains(char::is_control) {
            return Err(format!(
                "--header \"{field}\" is no field such as \"Name: value\""
            ));
        }
        head += field;
        head += "\r\n";
    }
    let is_given = |name: &str| {
        let mut names = options
            .header
            .iter()
            .filter_map(|field| field.split(':').next());
        names.any(|given| given.eq_ignore_ascii_case(name))
    };
    if !is_given("Host") {
        head += "Host: localhost\r\n";
    }
    if let Some(body) = &body
        && !is_given("Content-Length")
        && !is_given("Transfer-Encoding")
    {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    Ok([head.into_bytes(), body.unwrap_or_default()].concat())
}

/// Sends `request` to this program's own server and reads the whole response.
///
/// # Errors
/// The connection breaks, or no response arrives in time.
pub(crate) fn ask(port: u16, request: &[u8]) -> io::Result<ReceivedReply> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut writer = stream.try_clone()?;
    let mut bytes = Vec::new();
    std::thread::scope(|scope| {
        // A thread of its own writes, because the server may respond before it has read the whole request.
        scope.spawn(move || writer.write_all(request));
        let read = stream.read_to_end(&mut bytes);
        // Ends the writing thread, if it is still writing.
        let _ = stream.shutdown(Shutdown::Both);
        read
    })?;
    Ok(taken_apart(&bytes))
}

fn taken_apart(bytes: &[u8]) -> ReceivedReply {
    let mut length = 0;
    loop {
        let rest = bytes.get(length..).unwrap_or_default();
        let is_interim = rest.starts_with(b"HTTP/1.1 1");
        match rest.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(end) => length += end + 4,
            None => break,
        }
        if !is_interim {
            break;
        }
    }
    let (head, body) = bytes.split_at(length);
    let head = String::from_utf8_lossy(head).into_owned();
    let is_chunked = head
        .to_ascii_lowercase()
        .contains("\r\ntransfer-encoding: chunked\r\n");
    let body = match is_chunked {
        true => without_chunks(body),
        false => body.to_vec(),
    };
    ReceivedReply { head, body }
}

/// Removes chunk framing. This program's own server sends no chunk extensions.
fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let (size, behind) = rest.split_at(end);
        let size = std::str::from_utf8(size).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(chunk) = size.and_then(|size| behind.get(2..)?.get(..size)) else {
            break;
        };
        if chunk.is_empty() {
            break;
        }
        body.extend_from_slice(chunk);
        rest = behind.get(4 + chunk.len()..).unwrap_or_default();
    }
    body
}

/// How long the server may send nothing: as long as a script may wait.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn options(arguments: &[&str]) -> cli::Lua {
        let line = ["petrel", "lua", "x.lua"].iter().chain(arguments);
        match cli::Arguments::parse_from(line).command {
            Some(cli::Command::Lua(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_are_made_up() {
        let made = request(&options(&[
            "--url", "/a?b", "--method", "PUT", "--header", "X: y",
        ]));
        let expected = "PUT /a?b HTTP/1.1\r\nConnection: close\r\nX: y\r\nHost: localhost\r\n\r\n";
        assert_eq!(made.as_deref(), Ok(expected.as_bytes()));
        for wrong in [
            ["--url", "a"],
            ["--url", "/a b"],
            ["--method", "A B"],
            ["--header", "no field"],
            ["--header", "a: b\r\nc: d"],
            ["--body", "/nonexistent"],
        ] {
            assert!(request(&options(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn answers_are_taken_apart() {
        let answer = taken_apart(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
        assert!(answer.head.starts_with("HTTP/1.1 103"));
        assert!(answer.head.contains("HTTP/1.1 200 OK\r\n"));
        assert_eq!(answer.body, b"abcde");
        assert_eq!(taken_apart(b"HTTP/1.1 200 OK\r\n\r\nx\r\n").body, b"x\r\n");
        assert_eq!(taken_apart(b""), ReceivedReply::default());
        assert_eq!(without_chunks(b"ffffffffffffffff\r\nx"), b"");
    }
}
