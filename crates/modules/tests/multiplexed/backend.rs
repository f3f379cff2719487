//! An HTTP backend in threads: sends lines, and echoes request bodies.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::content::part;

/// A backend that runs until the test's process ends.
pub struct Backend {
    pub port: u16,
    written: Arc<Mutex<HashMap<u32, usize>>>,
}

impl Backend {
    pub fn start() -> Backend {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let written = Arc::<Mutex<HashMap<u32, usize>>>::default();
        let counts = Arc::clone(&written);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = Arc::clone(&counts);
                thread::spawn(move || serve(stream, &counts));
            }
        });
        Backend { port, written }
    }

    /// How many bytes of the body for `id` the kernel has taken.
    pub fn written(&self, id: u32) -> usize {
        let written = self.written.lock().expect("no thread panics with it");
        written.get(&id).copied().unwrap_or(0)
    }
}

fn serve(stream: TcpStream, counts: &Mutex<HashMap<u32, usize>>) {
    let mut reader = BufReader::new(stream);
    // The gateway closes the connection when a request is reset.
    while let Ok(true) = answer(&mut reader, counts) {}
}

fn answer(
    stream: &mut BufReader<TcpStream>,
    counts: &Mutex<HashMap<u32, usize>>,
) -> io::Result<bool> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(false);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut is_chunked) = (0, false);
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let field = line.trim_end().to_ascii_lowercase();
        if field.is_empty() {
            break;
        }
        if let Some(value) = field.strip_prefix("content-length: ") {
            length = value.parse().expect("a number");
        }
        is_chunked |= field == "transfer-encoding: chunked";
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    while is_chunked {
        line.clear();
        stream.read_line(&mut line)?;
        let length = usize::from_str_radix(line.trim_end(), 16).unwrap_or(0);
        let mut chunk = vec![0; length + 2];
        stream.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..length]);
        is_chunked = length > 0;
    }
    let out = stream.get_mut();
    let mut numbers = target.split('/').skip(2).map(|part| part.parse::<u32>());
    let (Some(Ok(id)), length) = (numbers.next(), numbers.next()) else {
        return Ok(false);
    };
    let Some(Ok(length)) = length else {
        write!(
            out,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )?;
        out.write_all(&body)?;
        return Ok(true);
    };
    let length = length as usize;
    let (is_chunked, caching) = (id % 2 == 1, "Cache-Control: max-age=600\r\n");
    match is_chunked {
        true => write!(
            out,
            "HTTP/1.1 200 OK\r\n{caching}Transfer-Encoding: chunked\r\n\r\n"
        )?,
        false => write!(
            out,
            "HTTP/1.1 200 OK\r\n{caching}Content-Length: {length}\r\n\r\n"
        )?,
    }
    let mut position = 0;
    while position < length {
        let piece = part(id, position, (length - position).min(7919));
        if is_chunked {
            write!(out, "{:x}\r\n", piece.len())?;
        }
        out.write_all(&piece)?;
        if is_chunked {
            out.write_all(b"\r\n")?;
        }
        position += piece.len();
        *counts
            .lock()
            .expect("no thread panics with it")
            .entry(id)
            .or_default() += piece.len();
    }
    if is_chunked {
        out.write_all(b"0\r\n\r\n")?;
    }
    Ok(true)
}
