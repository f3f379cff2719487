//! Before anything is timed, checks that the server really sends the expected bytes.

use super::chunks::Chunks;
use super::reply::{Expected, Framing, Wrong, head_length};
use super::sessions::Stream;
use super::{SessionTarget, plain_request};
use crate::certificate::HOST;
use crate::peers::Bodies;
use crate::workload::Workload;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Requests the workload's paths (or some of them, if there are many) and compares whole bodies. Returns the
/// length of the replies' heads.
pub fn verify(workload: &Workload, bodies: Bodies, port: u16) -> Result<usize, String> {
    let connect = || {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    };
    let host = format!("127.0.0.1:{port}");
    let paths = workload.paths();
    let mut head_bytes = 0;
    for path in paths.iter().step_by(paths.len().div_ceil(PATHS_MAX)) {
        let expected = Expected {
            status: workload.status,
            body_bytes: workload.body_bytes(),
        };
        let (head, body) = connect()
            .and_then(|mut stream| fetch(path, &host, &mut stream, workload, &expected))
            .map_err(|error| format!("GET {path}: {error}"))?;
        let fields = match bodies {
            Bodies::AsAsked => workload.reply_fields(),
            Bodies::FirstOnly => &[],
        };
        if let Some(missing) = missing_field(&head, fields) {
            return Err(format!("GET {path}: no {missing:?}"));
        }
        let sent = if bodies == Bodies::AsAsked {
            path
        } else {
            &paths[0]
        };
        if workload.body(sent).is_some_and(|right| right != body) {
            return Err(format!("GET {path}: wrong bytes in the body"));
        }
        head_bytes = head.len();
    }
    Ok(head_bytes)
}

/// The same over TLS or by HTTP/2: one path with a known body.
pub fn verify_session(workload: &Workload, target: &SessionTarget) -> Result<usize, String> {
    let path = &workload.paths()[0];
    let expected = Expected {
        status: workload.status,
        body_bytes: workload.body_bytes(),
    };
    let fetched = target.fetch(|stream| fetch(path, HOST, stream, workload, &expected));
    let (head_bytes, body) = fetched.map_err(|error| format!("GET {path}: {error}"))?;
    if workload.body(path).is_some_and(|right| right != body) {
        return Err(format!("GET {path}: wrong bytes in the body"));
    }
    Ok(head_bytes)
}

/// Head and body of a reply. Fails if the head is not as expected.
fn fetch(
    path: &str,
    host: &str,
    stream: &mut dyn Stream,
    workload: &Workload,
    expected: &Expected,
) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let wrong = |wrong: Wrong| io::Error::new(io::ErrorKind::InvalidData, wrong.to_string());
    stream.write_all(&plain_request(path, host, workload))?;
    let mut came = Vec::new();
    let head_bytes = loop {
        if let Some(length) = head_length(&came) {
            break length;
        }
        read_some(stream, &mut came)?;
    };
    let framing = expected.check(&came[..head_bytes]).map_err(wrong)?;
    let body = came.split_off(head_bytes);
    let body = match framing {
        Framing::Length(length) => whole(stream, body, length)?,
        Framing::Chunked => unchunked(stream, body)?,
    };
    Ok((came, body))
}

/// The first of `fields` (`Name: value`) that a head lacks.
fn missing_field(head: &[u8], fields: &[&'static str]) -> Option<&'static str> {
    let head = String::from_utf8_lossy(head);
    let has = |field: &str| head.lines().any(|line| line.eq_ignore_ascii_case(field));
    fields.iter().copied().find(|field| !has(field))
}

fn whole(stream: &mut dyn Stream, mut body: Vec<u8>, length: u64) -> io::Result<Vec<u8>> {
    while (body.len() as u64) < length {
        read_some(stream, &mut body)?;
    }
    Ok(body)
}

fn unchunked(stream: &mut dyn Stream, mut came: Vec<u8>) -> io::Result<Vec<u8>> {
    let (mut chunks, mut body) = (Chunks::default(), Vec::new());
    loop {
        let taken = chunks.take(&came, &mut |part| body.extend_from_slice(part));
        if taken.map_err(|wrong| io::Error::other(wrong.to_string()))? {
            return Ok(body);
        }
        came.clear();
        read_some(stream, &mut came)?;
    }
}

fn read_some(stream: &mut dyn Stream, came: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 64 << 10];
    let got = stream.read(&mut buffer)?;
    came.extend_from_slice(&buffer[..got]);
    if got == 0 {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Ok(())
    }
}

const TIMEOUT: Duration = Duration::from_secs(5);
/// The most paths of a large tree that are checked.
const PATHS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_field_is_named() {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n";
        assert_eq!(missing_field(head, &["Content-Type: text/html"]), None);
        assert_eq!(
            missing_field(head, &["Content-Type: text/html", "Age: 1"]),
            Some("Age: 1")
        );
    }
}
