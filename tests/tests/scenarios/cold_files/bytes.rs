//! With each file system, each network backend and each size, clients get exactly the file's bytes.

use engine::settings::core::NetworkBackend;
use petrel_tests::{Client, Server, SlowFs, skip};
use rustix::fs::{Advice, fadvise};

use super::{Mounted, content};

const SIZES: [usize; 8] = [
    0,
    1,
    32 << 10,
    (32 << 10) + 1,
    128 << 10,
    (128 << 10) + 1,
    1 << 20,
    5 << 20,
];

/// A server with the same files on a disk and, if this process may mount, on three other file systems. The
/// mounts are dropped before the directories.
struct Places {
    names: Vec<&'static str>,
    _mounts: Vec<Mounted>,
    _slow: Option<SlowFs>,
    server: Server,
}

fn places(test: &str) -> Places {
    let mut config = String::from("server.max-worker = 1\n");
    for backend in NetworkBackend::ALL {
        config += &format!(
            "$HTTP[\"host\"] == \"{}\" {{ server.network-backend = \"{}\" }}\n",
            host(backend),
            backend.name()
        );
    }
    let mut server = Server::build().config(&config);
    for size in SIZES {
        let content = content(size);
        for place in ["disk", "fuse"] {
            server = server.file(&format!("www/{place}/{size}"), &content);
        }
        server = server.file(&format!("lower/{size}"), &content);
    }
    let server = server.start();
    let tree = server.tree();
    tree.directory("www/tmpfs")
        .directory("www/overlay")
        .directory("empty");
    let mut places = Places {
        names: vec!["disk"],
        _mounts: Vec::new(),
        _slow: None,
        server,
    };
    let tree = places.server.tree();
    let layers = format!(
        "lowerdir={}:{}",
        tree.path("lower").display(),
        tree.path("empty").display()
    );
    for (kind, options) in [("tmpfs", "mode=755"), ("overlay", &layers)] {
        match Mounted::new(kind, tree.path("www").join(kind), options) {
            Ok(mounted) => {
                places._mounts.push(mounted);
                places.names.push(kind);
            }
            Err(error) => skip(test, &format!("no {kind} can be mounted: {error}")),
        }
    }
    if places.names.contains(&"tmpfs") {
        for size in SIZES {
            tree.write(&format!("www/tmpfs/{size}"), content(size));
        }
    }
    places._slow = SlowFs::mount_or_skip(test, &tree.path("www/fuse"));
    places
        .names
        .extend(places._slow.is_some().then_some("fuse"));
    places
}

/// The virtual host whose files a backend sends: the backend's name, adapted to be a host name.
fn host(backend: NetworkBackend) -> String {
    backend.name().replace('_', "-")
}

impl Places {
    /// Makes the kernel drop the file from its page cache, as far as the kernel is willing to.
    fn cool(&self, place: &str, size: usize) {
        let directory = match place {
            "overlay" => "lower".to_owned(),
            // The kernel drops its contents at each open(2).
            "fuse" => return,
            other => format!("www/{other}"),
        };
        let path = self.server.tree().path(&format!("{directory}/{size}"));
        let file = std::fs::File::open(path).expect("it was written");
        // Only what was written to the disk can be dropped.
        let _ = file.sync_all();
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
}

#[test]
fn the_bytes_are_right_whatever_reads_them() {
    let places = places("the_bytes_are_right_whatever_reads_them");
    for backend in NetworkBackend::ALL {
        let mut client = places.server.client();
        for place in &places.names {
            for size in SIZES {
                places.cool(place, size);
                let asked = Asked {
                    host: host(backend),
                    target: format!("/{place}/{size}"),
                    size,
                };
                asked.whole(&mut client);
                asked.head(&mut client);
                asked.ranges(&mut client);
            }
        }
    }
    let log = places.server.log();
    assert!(!log.contains("(send)") && !log.contains("panic"), "{log}");
}

/// It takes so long because nine network backends send 5 MiB from each file system through a small buffer.
#[test]
fn slow_readers_get_the_same_bytes() {
    let places = places("slow_readers_get_the_same_bytes");
    let size = 5 << 20;
    let expected = content(size);
    for backend in NetworkBackend::ALL {
        for place in &places.names {
            places.cool(place, size);
            let name = host(backend);
            let mut client = places.server.client().with_receive_buffer(16 * 1024);
            client.send(format!(
                "GET /{place}/{size} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
            ));
            let mut all = Vec::new();
            // Now and then the client pauses long enough that the server waits for it.
            for part in 0..40 {
                all.extend(client.read_bytes(64 * 1024 + part));
                if part % 8 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
            }
            all.extend(client.read_to_end());
            let begin = all.len().checked_sub(size).expect("all of it");
            assert!(all[begin..] == expected, "{name} on {place}");
        }
    }
}

/// A file, and the backend that sends it.
struct Asked {
    host: String,
    target: String,
    size: usize,
}

impl Asked {
    fn whole(&self, client: &mut Client) {
        let response = self.get(client, None);
        assert_eq!(response.status, 200, "{self}: {response}");
        assert!(response.body == content(self.size), "{self}");
    }

    fn head(&self, client: &mut Client) {
        client.send(format!(
            "HEAD {} HTTP/1.1\r\nHost: {}\r\n\r\n",
            self.target, self.host
        ));
        let response = client.response_to_head();
        assert_eq!(response.status, 200, "{self}");
        let length = self.size.to_string();
        assert_eq!(response.field("Content-Length"), Some(&*length), "{self}");
    }

    fn ranges(&self, client: &mut Client) {
        let (size, all) = (self.size, content(self.size));
        let middle = size / 2..(size / 2 + 200_000).min(size);
        for (range, expected) in [
            ("0-0".to_owned(), 0..size.min(1)),
            (
                format!("{}-{}", middle.start, middle.end.max(1) - 1),
                middle,
            ),
            ("-70000".to_owned(), size.saturating_sub(70_000)..size),
        ] {
            let response = self.get(client, Some(&range));
            if size == 0 {
                // The last bytes of an empty file are all of it.
                let is_right =
                    response.status == 416 || (response.status, response.body.len()) == (200, 0);
                assert!(is_right, "{self} {range}: {response}");
                continue;
            }
            assert_eq!(response.status, 206, "{self} {range}: {response}");
            assert!(response.body == all[expected], "{self} {range}");
        }
        if size < 32 << 10 {
            return;
        }
        let range = format!("5-9,{}-{}", size - 100, size - 1);
        let response = self.get(client, Some(&range));
        assert_eq!(response.status, 206, "{self} {range}: {response}");
        for part in [&all[5..10], &all[size - 100..]] {
            let is_there = response
                .body
                .windows(part.len())
                .any(|part_of| part_of == part);
            assert!(is_there, "{self} {range}");
        }
    }

    fn get(&self, client: &mut Client, range: Option<&str>) -> petrel_tests::Response {
        let range = range.map_or(String::new(), |range| format!("Range: bytes={range}\r\n"));
        client.send(format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\n{range}\r\n",
            self.target, self.host
        ));
        client.response()
    }
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} by {}", self.target, self.host)
    }
}
