//! A hundred exchanges interleaved on one connection, as in HTTP/2 and HTTP/3: each with a window that opens
//! now and then, request bodies in pieces, resets at any moment, and clients that never read. The answers
//! come from files, from HTTP and FastCGI backends, a Lua script, and cached pages. Every byte has to arrive
//! at the right place, and memory has to stay bounded.
//!
//! The order of events is pseudo-random. A failure names its seed.

mod backend;
mod client;
mod content;
mod fastcgi;
mod transport;

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use petrel_engine::settings::ConnectionScope;
use petrel_engine::testing::Site;
use petrel_modules::MODULES;
use petrel_sys::counting_allocator::{CountingAllocator, bytes_in_use};
use tokio::sync::Notify;

use backend::Backend;
use client::{Ask, FILES, Reader};
use content::{Random, lines};
use transport::Stream;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SEEDS: std::ops::Range<u64> = 1..6;

/// Streams that are open at the same time.
const STREAMS: usize = 100;

/// Requests on one connection.
const REQUESTS: usize = 250;

/// Answers that no client reads. Each is larger than all the memory that may be used.
const NEVER_READ: [(u32, &str, usize); 4] = [
    (900_001, "proxy", 40_000_000),
    (900_002, "proxy", 40_000_000),
    (900_003, "cached", 40_000_000),
    (900_004, "files", 1_500_000),
];

/// Bytes that a backend may have sent for a client that never reads: what the buffers of kernel and server
/// hold.
const UNREAD_BYTES_MAX: usize = 12_000_000;

/// Bytes of memory that all requests together may use in addition to the memory used before.
const MEMORY_MAX: i64 = 32 << 20;

/// How long one connection may take.
const PATIENCE: Duration = Duration::from_secs(100);

const SCRIPT: &str = r#"
local r = lighty.r
local id, length = r.req_attr["uri.path"]:match("^/lua/(%d+)/(%d+)$")
if id then
    local lines = {}
    for number = 0, math.floor(length / 16) do
        lines[#lines + 1] = string.format("%06d:%08d\n", id, number)
    end
    r.resp_body.set({ table.concat(lines):sub(1, tonumber(length)) })
    return 200
end
if not r.req_body.collect then return 0 end
r.resp_body.set({ r.req_body.get })
return 200
"#;

/// It takes so long because 250 requests on each of five connections come and go in small pieces.
#[tokio::test(flavor = "local")]
async fn a_hundred_exchanges_share_a_connection() {
    let root = Root::new();
    let backend = Backend::start();
    let site = Site::new(
        &configuration(&root.0, backend.port, fastcgi::start()),
        MODULES,
    );
    for seed in SEEDS {
        let connection = Connection::new(&site, seed);
        let ended = site.with_clock(tokio::time::timeout(PATIENCE, connection.serve(&backend)));
        assert!(ended.await.is_ok(), "seed {seed}: something is never woken");
    }
}

fn configuration(root: &Path, port: u16, fastcgi: u16) -> String {
    let root = root.display();
    let hosts = format!("((\"host\" => \"127.0.0.1\", \"port\" => {port}))");
    format!(
        "server.document-root = \"{root}\"\n\
         server.upload-dirs = (\"{root}\")\n\
         server.stream-response-body = 2\n\
         lua.max-run-time = 5000\n\
         mimetype.assign = (\".txt\" => \"text/plain\")\n\
         proxy.server = (\"/proxy/\" => {hosts}, \"/cached/\" => {hosts}, \"/echo/\" => {hosts}, \
         \"/stream/\" => {hosts})\n\
         fastcgi.server = (\"/fastcgi/\" => ((\"host\" => \"127.0.0.1\", \"port\" => {fastcgi}, \
         \"check-local\" => \"disable\")))\n\
         $HTTP[\"url\"] =~ \"^/stream/\" {{ server.stream-request-body = 2 }}\n\
         $HTTP[\"url\"] =~ \"^/cached/\" {{ page-cache.enable = \"enable\" }}\n\
         $HTTP[\"url\"] =~ \"^/lua/\" {{ magnet.attract-raw-url-to = (\"{root}/content.lua\") }}\n"
    )
}

/// A directory with the requested files.
struct Root(PathBuf);

impl Root {
    fn new() -> Root {
        let path = std::env::temp_dir().join(format!("petrel-multiplexed-{}", std::process::id()));
        for id in (0..10).chain([900_004]) {
            let directory = path.join(format!("files/{id}"));
            std::fs::create_dir_all(&directory).expect("a directory");
            for length in FILES {
                let file = directory.join(format!("{length}.txt"));
                std::fs::write(file, lines(id, *length)).expect("a file");
            }
        }
        std::fs::write(path.join("content.lua"), SCRIPT).expect("a script");
        Root(path)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Both sides of one connection.
struct Connection<'s> {
    site: &'s Site,
    scope: Rc<ConnectionScope>,
    seed: u64,
    random: Random,
    /// Requests that have not begun; the next one is at the end.
    asks: Vec<Ask>,
    open: Vec<Open>,
    /// How many bytes the client accepts on all streams together.
    credit: usize,
    notify: Arc<Notify>,
    completed: usize,
    memory_before: i64,
}

/// A request that is under way.
struct Open {
    ask: Ask,
    stream: Stream,
    reader: Reader,
    uploaded: usize,
    /// The number of events after which the client resets the stream.
    reset_in: Option<usize>,
}

impl<'s> Connection<'s> {
    fn new(site: &'s Site, seed: u64) -> Connection<'s> {
        let mut random = Random(seed);
        let mut asks: Vec<Ask> = (0..REQUESTS)
            .map(|number| Ask::any(number as u32, &mut random))
            .collect();
        asks.extend(NEVER_READ.map(|(id, room, length)| Ask {
            is_never_read: true,
            ..Ask::lines(id, room, length)
        }));
        let facts = site.connection();
        let table = site.worker().settings_table();
        Connection {
            site,
            scope: facts.scope(table),
            seed,
            random,
            asks,
            open: Vec::new(),
            credit: 0,
            notify: Arc::new(Notify::new()),
            completed: 0,
            memory_before: bytes_in_use(),
        }
    }

    /// Runs until all requests that are read have ended.
    async fn serve(mut self, backend: &Backend) {
        loop {
            self.open_streams();
            self.client_acts();
            let has_polled = self.poll_streams();
            let used = bytes_in_use() - self.memory_before;
            assert!(used < MEMORY_MAX, "seed {}: {used} bytes", self.seed);
            self.close_streams();
            if self.asks.is_empty() && self.open.iter().all(|open| open.ask.is_never_read) {
                break;
            }
            if has_polled {
                tokio::task::yield_now().await;
            } else {
                let _ =
                    tokio::time::timeout(Duration::from_millis(1), self.notify.notified()).await;
            }
        }
        assert!(
            self.completed > REQUESTS / 2,
            "seed {}: {}",
            self.seed,
            self.completed
        );
        assert_eq!(self.open.len(), NEVER_READ.len());
        for (id, ..) in NEVER_READ {
            let written = backend.written(id) / (self.seed - SEEDS.start + 1) as usize;
            assert!(
                written < UNREAD_BYTES_MAX,
                "seed {}: {id}: {written}",
                self.seed
            );
        }
        for open in self.open {
            open.stream.reset();
        }
    }

    fn open_streams(&mut self) {
        while self.open.len() < STREAMS + NEVER_READ.len() {
            let Some(ask) = self.asks.pop() else { return };
            let is_reset = !ask.is_never_read && self.random.is_once_in(6);
            self.open.push(Open {
                stream: Stream::open(&ask, self.site, &self.scope, &self.notify),
                reader: Reader::new(&ask, self.seed),
                uploaded: 0,
                reset_in: is_reset.then(|| self.random.below(12)),
                ask,
            });
        }
    }

    /// Lets the clients of some streams act: open the window, send a piece of the body, reset the stream.
    fn client_acts(&mut self) {
        if self.credit < 1 << 20 {
            self.credit += self.random.below(200_000);
            for open in self.open.iter().filter(|open| open.stream.wants_credit()) {
                open.stream.call();
            }
        }
        for _ in 0..self.random.below(20).min(self.open.len()) {
            let position = self.random.below(self.open.len());
            let open = &mut self.open[position];
            match &mut open.reset_in {
                Some(0) => {
                    self.open.swap_remove(position).stream.reset();
                    continue;
                }
                Some(events) => *events -= 1,
                None => {}
            }
            let rest = &open.ask.upload[open.uploaded..];
            let has_upload = open.ask.method == "POST" && !open.stream.is_upload_over();
            if has_upload && self.random.is_once_in(2) {
                let count = rest
                    .len()
                    .min(open.stream.room())
                    .min(self.random.below(16_000));
                open.stream.take_upload(&rest[..count], count == rest.len());
                open.uploaded += count;
            } else if !open.ask.is_never_read {
                let bytes = self.random.one_of(&[1, 100, 5000, 60_000, 500_000]);
                open.reader.widen(bytes);
                open.stream.widen(bytes);
            }
        }
    }

    fn poll_streams(&mut self) -> bool {
        let now_s = self.site.worker().clock().seconds();
        let mut has_polled = false;
        for _ in 0..self.open.len() {
            let position = self.random.below(self.open.len());
            let Open { stream, reader, .. } = &mut self.open[position];
            has_polled |= stream.poll_if_called(now_s, &mut self.credit, reader);
        }
        has_polled
    }

    fn close_streams(&mut self) {
        let before = self.open.len();
        self.open.retain(|open| !open.stream.is_over());
        self.completed += before - self.open.len();
    }
}
