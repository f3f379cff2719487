//! Before anything is timed: does the server really send these bytes?

use super::reply::{Expected, content_length, head_length};
use crate::peers::Bodies;
use crate::workload::Workload;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Asks for the workload's paths (of many, some) and compares whole bodies. Returns the length of
/// the replies' heads.
pub fn verify(workload: &Workload, bodies: Bodies, port: u16) -> Result<usize, String> {
    let paths = workload.paths();
    let mut head_bytes = 0;
    for path in paths.iter().step_by(paths.len().div_ceil(PATHS_MAX)) {
        let (head, body) = fetch(path, port).map_err(|error| format!("GET {path}: {error}"))?;
        let expected = Expected {
            status: workload.status,
            body_bytes: workload.body_bytes(),
        };
        expected
            .check(&head)
            .map_err(|wrong| format!("GET {path}: {wrong}"))?;
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

/// Head and body of a reply.
fn fetch(path: &str, port: u16) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUser-Agent: petrel-bench\r\n\
         Accept: */*\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut came = Vec::new();
    let head_bytes = loop {
        if let Some(length) = head_length(&came) {
            break length;
        }
        read_some(&mut stream, &mut came)?;
    };
    let length = content_length(&came[..head_bytes])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no Content-Length"))?;
    while ((came.len() - head_bytes) as u64) < length {
        read_some(&mut stream, &mut came)?;
    }
    let body = came.split_off(head_bytes);
    Ok((came, body))
}

fn read_some(stream: &mut TcpStream, came: &mut Vec<u8>) -> io::Result<()> {
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
/// Of the paths of a large tree so many are looked at.
const PATHS_MAX: usize = 16;
