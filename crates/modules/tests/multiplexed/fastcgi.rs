//! A FastCGI program in threads: sends lines, and echoes request bodies.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use petrel_engine::proto::fastcgi::{
    Pairs, ProtocolStatus, RequestDecoder, RequestEvent, kind, write_end_of_stream,
    write_end_request, write_stream, write_values_result,
};

use crate::content::part;

/// Starts a program that runs until the test's process ends. Returns its port.
pub fn start() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The gateway closes the connection when a request is reset.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    port
}

/// Serves one request after the other.
fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut decoder = RequestDecoder::new();
    let (mut input, mut buffer) = (Vec::new(), [0; 8192]);
    let (mut params, mut body) = (Vec::new(), Vec::new());
    loop {
        let step = decoder.decode(&input).expect("Petrel's records are sound");
        match step.event {
            RequestEvent::NeedMore => {
                input.drain(..step.consumed);
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    count => input.extend_from_slice(&buffer[..count]),
                }
                continue;
            }
            RequestEvent::Params(_, range) => params.extend_from_slice(&input[range]),
            RequestEvent::Stdin(_, range) => body.extend_from_slice(&input[range]),
            RequestEvent::StdinEnd(id) => {
                answer(&mut stream, id, &params, &body)?;
                params.clear();
                body.clear();
            }
            RequestEvent::GetValues(_) => {
                let mut out = Vec::new();
                write_values_result(&mut out, std::iter::empty());
                stream.write_all(&out)?;
            }
            RequestEvent::Begin { .. } | RequestEvent::ParamsEnd(_) => {}
            RequestEvent::Abort(_) | RequestEvent::UnknownManagement(_) => return Ok(()),
        }
        input.drain(..step.consumed);
    }
}

/// Answers `/fastcgi/ID/LENGTH` with lines, and `/fastcgi/ID` with the body of the request.
fn answer(stream: &mut TcpStream, id: u16, params: &[u8], body: &[u8]) -> io::Result<()> {
    let mut pairs = Pairs::new(params).flatten();
    let target = pairs.find(|(name, _)| *name == b"REQUEST_URI");
    let target = std::str::from_utf8(target.expect("it is always there").1).expect("digits");
    let mut numbers = target.split('/').skip(2).map(|part| part.parse::<u32>());
    let (Some(Ok(lines)), length) = (numbers.next(), numbers.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let content = match length {
        Some(Ok(length)) => part(lines, 0, length as usize),
        _ => body.to_vec(),
    };
    let mut out = Vec::new();
    write_stream(
        &mut out,
        kind::STDOUT,
        id,
        b"Content-Type: text/plain\r\n\r\n",
    );
    for piece in content.chunks(7919) {
        write_stream(&mut out, kind::STDOUT, id, piece);
    }
    write_end_of_stream(&mut out, kind::STDOUT, id);
    write_end_request(&mut out, id, 0, ProtocolStatus::RequestComplete);
    stream.write_all(&out)
}
