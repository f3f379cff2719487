//! Clients that send or read a KiB every 50 ms, all in one thread.

use crate::occupation::connect_with_small_buffer;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What is slow about a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It sends a large request body.
    Upload,
    /// It reads a large response.
    Download,
}

/// Running slow clients.
pub struct Slow {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

impl Slow {
    /// Connects a client for each of `ways`.
    pub fn start(port: u16, ways: Vec<Way>) -> io::Result<Self> {
        let clients = ways.into_iter().map(|way| Client::connect(port, way));
        let mut clients = clients.collect::<io::Result<Vec<_>>>()?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stop);
        let work = move || {
            while !asked.load(Ordering::Relaxed) {
                for client in &mut clients {
                    client.step(port)?;
                }
                std::thread::sleep(INTERVAL);
            }
            Ok(())
        };
        let thread = std::thread::spawn(work);
        Ok(Self { stop, thread })
    }

    /// Stops them.
    pub fn stop(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(done) => done.map_err(|error| format!("slow clients: {error}")),
            Err(_) => Err("slow clients: a thread panicked".to_owned()),
        }
    }
}

struct Client {
    way: Way,
    stream: TcpStream,
}

impl Client {
    fn connect(port: u16, way: Way) -> io::Result<Self> {
        let mut stream = connect_with_small_buffer(port)?;
        let head = match way {
            Way::Upload => format!(
                "POST /inline.php?blocks=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                 Content-Type: application/octet-stream\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n"
            ),
            Way::Download => "GET /inline.php HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned(),
        };
        stream.write_all(head.as_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(Self { way, stream })
    }

    /// Transfers another KiB. A client that has finished or was disconnected starts again.
    fn step(&mut self, port: u16) -> io::Result<()> {
        let done = match self.way {
            Way::Upload => self.stream.write(&[b'x'; STEP_BYTES]),
            Way::Download => self.stream.read(&mut [0; STEP_BYTES]),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(count) if count > 0 => {}
            Ok(_) | Err(_) => *self = Self::connect(port, self.way)?,
        }
        Ok(())
    }
}

const INTERVAL: Duration = Duration::from_millis(50);
const STEP_BYTES: usize = 1024;
/// Takes ten minutes at that rate.
const UPLOAD_BYTES: u64 = 16 << 20;
