//! What delays a request, and how long it really did: a backend, a file system, a client and a script.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation,
    INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, Request,
    SessionACL,
};
use serde::Serialize;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A kind of delay.
#[derive(Serialize)]
pub struct Injection {
    /// For readers.
    pub what: &'static str,
    /// The name in the access log under which it is to appear.
    pub stage: &'static str,
    /// Makes the delay number N. Returns the URL of the request that was delayed, and for how long.
    #[serde(skip)]
    pub inject: fn(&Site, u32) -> io::Result<(String, Duration)>,
}

/// All of them.
pub static INJECTIONS: &[Injection] = &[
    Injection {
        what: "a backend pauses before its reply",
        stage: "backend-first-byte",
        inject: |site, n| site.get_paused(format!("/http/{n}")),
    },
    Injection {
        what: "a file system (FUSE) pauses before it tells metadata",
        stage: "stat",
        inject: |site, n| site.get_paused(format!("/{SLOW}/{n}")),
    },
    Injection {
        what: "a client pauses before it reads",
        stage: "client-drain",
        inject: Site::read_late,
    },
    Injection {
        what: "a script loops",
        stage: "lua",
        inject: |site, n| {
            let path = format!("/lua/{n}");
            let run = Run::told(ask(site.port, &path)?)?;
            Ok((path, run.took))
        },
    },
    Injection {
        what: "a script loops before the worker gets to the request",
        stage: "lag",
        inject: |site, n| {
            let queue = site.queue(&format!("lag-{n}"))?;
            let [_, _, third] = queue.urls;
            Ok((third, queue.second))
        },
    },
    Injection {
        what: "a script loops when the request comes",
        stage: "in-kernel",
        inject: |site, n| {
            let queue = site.queue(&format!("kernel-{n}"))?;
            let [_, second, _] = queue.urls;
            Ok((second, queue.first))
        },
    },
];

/// The server, and what delays its requests.
pub struct Site {
    /// Its port.
    pub port: u16,
    /// Its access log.
    pub log: PathBuf,
    /// What backend and file system tell.
    pub delays: Delays,
}

impl Site {
    /// A request that the backend or the file system delays.
    fn get_paused(&self, path: String) -> io::Result<(String, Duration)> {
        body(ask(self.port, &path)?)?;
        let paused = self.delays.of(&path);
        let paused = paused.ok_or_else(|| io::Error::other("the request was not delayed"))?;
        Ok((path, paused))
    }

    /// A client that pauses when the first bytes have come.
    fn read_late(&self, n: u32) -> io::Result<(String, Duration)> {
        let path = format!("/{LARGE}?{n}");
        let mut stream = ask(self.port, &path)?;
        stream.peek(&mut [0])?;
        let begin = Instant::now();
        std::thread::sleep(DELAY);
        let paused = begin.elapsed();
        let mut buffer = vec![0; 1 << 20];
        while stream.read(&mut buffer)? > 0 {}
        Ok((path, paused))
    }

    /// Three requests. While the worker runs a script for the first one, the others come. It learns of both at
    /// once, and runs the script for the second one before it reads the third.
    fn queue(&self, name: &str) -> io::Result<Queue> {
        for attempt in 0..ATTEMPTS {
            let mut streams = [
                connect(self.port)?,
                connect(self.port)?,
                connect(self.port)?,
            ];
            // The worker accepts them.
            std::thread::sleep(DELAY);
            let urls = [
                format!("/lua?{name}-{attempt}-1"),
                format!("/lua?{name}-{attempt}-2"),
                format!("/{SMALL}?{name}-{attempt}-3"),
            ];
            let [first, second, third] = &mut streams;
            send(first, &urls[0])?;
            std::thread::sleep(DELAY / 2);
            let begin = SystemTime::now();
            send(second, &urls[1])?;
            send(third, &urls[2])?;
            let end = SystemTime::now();
            let [first, second, third] = streams;
            let (first, second) = (Run::told(first)?, Run::told(second)?);
            body(third)?;
            // On a busy machine the worker may begin late, or the client may send late.
            if first.began < begin && end < first.began + first.took {
                return Ok(Queue {
                    urls,
                    first: first.took,
                    second: second.took,
                });
            }
        }
        Err(io::Error::other("the machine is too busy"))
    }
}

/// Three requests, the last two of which came while a script ran for the first.
struct Queue {
    urls: [String; 3],
    /// How long the script ran for the first.
    first: Duration,
    /// And for the second.
    second: Duration,
}

/// A run of the script, by its own clock.
struct Run {
    began: SystemTime,
    took: Duration,
}

impl Run {
    /// What the response of the script tells.
    fn told(stream: TcpStream) -> io::Result<Self> {
        let body = body(stream)?;
        let unclear = || io::Error::other(format!("the script says {body:?}"));
        let (began, took) = body.split_once(' ').ok_or_else(unclear)?;
        let micros = |text: &str| {
            text.parse()
                .map(Duration::from_micros)
                .map_err(|_| unclear())
        };
        Ok(Self {
            began: UNIX_EPOCH + micros(began)?,
            took: micros(took)?,
        })
    }
}

/// How long requests were delayed, by their paths.
#[derive(Clone, Debug, Default)]
pub struct Delays(Arc<Mutex<HashMap<String, Duration>>>);

impl Delays {
    fn pause(&self, path: &str) {
        let begin = Instant::now();
        std::thread::sleep(DELAY);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(path.to_owned(), begin.elapsed());
    }

    fn of(&self, path: &str) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(path).copied()
    }
}

/// Starts a backend that pauses before each reply, and ends with this process. Returns its port.
pub fn start_backend(delays: &Delays) -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let delays = delays.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let delays = delays.clone();
            // A server that ends closes its connections.
            std::thread::spawn(move || drop(serve(stream, &delays)));
        }
    });
    Ok(port)
}

fn serve(mut stream: TcpStream, delays: &Delays) -> io::Result<()> {
    static OTHERS: AtomicU64 = AtomicU64::new(0);
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        match head.split(' ').nth(1).unwrap_or_default() {
            // Not all alike, so that they do not come at once after the worker has held them up.
            OTHER => {
                let number = OTHERS.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(150 + number * 37 % 101));
            }
            path => delays.pause(path),
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
    }
}

/// Mounts a file system whose files have numbers for names. It pauses when the kernel asks for their metadata.
pub fn mount(at: &Path, delays: &Delays) -> io::Result<BackgroundSession> {
    std::fs::create_dir(at)?;
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("petrel-bench".to_owned())];
    config.acl = SessionACL::All;
    fuser::spawn_mount(SlowStat(delays.clone()), at, &config)
}

struct SlowStat(Delays);

impl Filesystem for SlowStat {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str().and_then(|name| name.parse::<u64>().ok()) {
            // The kernel may keep neither name nor metadata, so it asks for the metadata by `getattr`.
            Some(number) => {
                let attributes = attributes(INodeNo(number + FIRST_FILE));
                reply.entry(&Duration::ZERO, &attributes, Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(number) = inode.0.checked_sub(FIRST_FILE) {
            let path = format!("/{SLOW}/{number}");
            // Before a read the kernel asks again.
            if self.0.of(&path).is_none() {
                self.0.pause(&path);
            }
        }
        reply.attr(&Duration::from_secs(3600), &attributes(inode));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        _: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        reply.data(if offset == 0 { b"x" } else { b"" });
    }
}

fn attributes(inode: INodeNo) -> FileAttr {
    let is_file = inode.0 >= FIRST_FILE;
    FileAttr {
        ino: inode,
        size: u64::from(is_file),
        blocks: 1,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_file {
            FileType::RegularFile
        } else {
            FileType::Directory
        },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Makes the files and the script.
pub fn make_files(root: &Path, directory: &Path) -> io::Result<()> {
    std::fs::write(root.join(LARGE), vec![b'x'; LARGE_BYTES])?;
    std::fs::write(root.join(SMALL), b"x")?;
    // The loop takes that much processor time; the script tells when it began and how long that took.
    let text = format!(
        "local clock, now = os.clock(), petrel.now()
while os.clock() - clock < {} do end
lighty.content = {{ string.format(\"%d %d\", now * 1e6, (petrel.now() - now) * 1e6) }}
return 200
",
        DELAY.as_secs_f64()
    );
    std::fs::write(directory.join(SCRIPT), text)
}

fn ask(port: u16, path: &str) -> io::Result<TcpStream> {
    let mut stream = connect(port)?;
    send(&mut stream, path)?;
    Ok(stream)
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn send(stream: &mut TcpStream, path: &str) -> io::Result<()> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())
}

fn body(mut stream: TcpStream) -> io::Result<String> {
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let body = reply
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned());
    body.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// How long each of them pauses or loops.
const DELAY: Duration = Duration::from_millis(50);
/// How long a client waits for a response, and this program for a line of the log.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How often the three requests are sent until they come in time.
const ATTEMPTS: u32 = 20;
/// The path of the other requests.
pub const OTHER: &str = "/http/other";
/// The directory of the slow file system, below the document root.
pub const SLOW: &str = "slow";
/// The script.
pub const SCRIPT: &str = "loop.lua";
/// The file for a client that pauses.
const LARGE: &str = "large.bin";
/// More than the kernel buffers for a connection (the last number of tcp_wmem is 4 MiB), but not by much: the
/// request still waits while the client reads the rest.
const LARGE_BYTES: usize = 5 << 20;
const SMALL: &str = "small.bin";
const FIRST_FILE: u64 = 2;
