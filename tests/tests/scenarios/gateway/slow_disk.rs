//! The disk for temporary files hangs or fails: only requests that need it wait or get an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use petrel_tests::{Backend, Client, Operation, Server, SlowFs, Speaks, eventually};
use rustix::io::Errno;

use crate::gateway::{COUNTERS, in_flight, in_front_of};

/// The size of the upload in the original report.
const UPLOAD: u64 = 200 << 20;

/// How much the server receives ahead of a disk that hangs: memory, the room there, and the buffers of
/// sockets and programs.
const AHEAD_MAX: u64 = 24 << 20;

/// A backend that returns how many bytes arrived.
fn counting(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        let mut count = 0;
        while let Some(bytes) = exchange.read_some() {
            count += bytes.len();
        }
        exchange.say(&count.to_string());
    })
}

/// A server whose temporary files are on a file system that hangs when a test asks for it. Drop the last part
/// of the tuple first.
fn with_slow_uploads(test: &str, backend: &Backend, config: &str) -> Option<(Server, SlowFs)> {
    let server = in_front_of(backend)
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .config(config)
        .start();
    let slow = SlowFs::mount_or_skip(test, &server.tree().path("upload"))?;
    Some((server, slow))
}

/// Sends a body and counts the bytes that were accepted.
fn upload(
    mut client: Client,
    length: u64,
    sent: Arc<AtomicU64>,
) -> std::thread::JoinHandle<Client> {
    std::thread::spawn(move || {
        client.send(format!(
            "POST /app/ HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
        let piece = vec![b'x'; 1 << 18];
        let mut left = length;
        while left > 0 {
            let count = left.min(piece.len() as u64);
            if client.try_send(&piece[..count as usize]).is_err() {
                break;
            }
            left -= count;
            sent.fetch_add(count, Ordering::SeqCst);
        }
        client
    })
}

/// Expects that no temporary file is left, neither as a name nor as a descriptor.
fn expect_no_file(server: &Server) {
    let is_open = || {
        let descriptors = server.processes().holdings().descriptors;
        descriptors.keys().any(|what| what.contains("/upload/"))
    };
    assert!(eventually(|| !is_open()), "{:?}", server.holdings());
    assert_eq!(server.tree().names("upload"), Vec::<String>::new());
}

/// Waits until `count` has not grown for a second, and returns it.
fn stalled(count: &AtomicU64) -> u64 {
    let mut last = u64::MAX;
    while last != count.load(Ordering::SeqCst) {
        last = count.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_secs(1));
    }
    last
}

/// Expects that the only worker answers other requests.
fn expect_answers(server: &Server) {
    let mut client = server.client();
    for _ in 0..200 {
        assert_eq!(client.get("/").text(), "hello");
    }
}

#[test]
fn an_upload_to_a_disk_that_hangs_delays_no_other_request() {
    let backend = counting(Speaks::Http);
    let test = "an_upload_to_a_disk_that_hangs_delays_no_other_request";
    let config = "server.stream-request-body = 0";
    let Some((server, slow)) = with_slow_uploads(test, &backend, config) else {
        return;
    };
    let sent = Arc::new(AtomicU64::new(0));
    slow.hang();
    let uploading = upload(server.client(), UPLOAD, Arc::clone(&sent));
    slow.expect_hanging(1);
    expect_answers(&server);
    let ahead = stalled(&sent);
    assert!(ahead < AHEAD_MAX, "{ahead} bytes were received");
    // The file system works for a while, and hangs again.
    slow.release();
    assert!(eventually(|| sent.load(Ordering::SeqCst) > 2 * AHEAD_MAX));
    slow.hang_on(&[Operation::Write]);
    slow.expect_hanging(1);
    expect_answers(&server);
    assert_eq!(backend.requests().len(), 0);
    slow.release();
    let mut client = uploading.join().expect("the upload goes on");
    assert_eq!(client.response().text(), UPLOAD.to_string());
    assert!(slow.count(Operation::Write) > 100, "{slow:?}");
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn an_upload_that_is_passed_on_waits_for_the_disk_alone() {
    const LENGTH: u64 = 64 << 20;
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    // The backend reads nothing until the test says so, so that the disk is needed.
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        while !may_go_on.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(5));
        }
        let mut count = 0;
        while let Some(bytes) = exchange.read_some() {
            count += bytes.len();
        }
        exchange.say(&count.to_string());
    });
    let test = "an_upload_that_is_passed_on_waits_for_the_disk_alone";
    let config = "server.stream-request-body = 1";
    let Some((server, slow)) = with_slow_uploads(test, &backend, config) else {
        return;
    };
    slow.hang_on(&[Operation::Write]);
    let sent = Arc::new(AtomicU64::new(0));
    let uploading = upload(server.client(), LENGTH, Arc::clone(&sent));
    slow.expect_hanging(1);
    expect_answers(&server);
    let ahead = stalled(&sent);
    assert!(ahead < AHEAD_MAX, "{ahead} bytes were received");
    slow.release();
    let mut client = uploading.join().expect("the disk takes it all");
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(client.response().text(), LENGTH.to_string());
}

/// It takes so long because the test looks, second by second and three times, whether a backend can still write.
#[test]
fn a_reply_to_a_disk_that_hangs_delays_no_other_request() {
    const REPLY: u64 = 64 << 20;
    for (speaks, mode) in [
        (Speaks::FastCgi, 0),
        (Speaks::Http, 0),
        (Speaks::FastCgi, 1),
    ] {
        let written = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&written);
        let backend = Backend::start(speaks, move |exchange| {
            exchange.head(200, &[("Content-Length", &REPLY.to_string())]);
            let piece = vec![b'r'; 1 << 16];
            for _ in 0..REPLY >> 16 {
                exchange.body(&piece);
                count.fetch_add(1 << 16, Ordering::SeqCst);
            }
            exchange.end();
        });
        let config = format!("server.stream-response-body = {mode}");
        let test = "a_reply_to_a_disk_that_hangs_delays_no_other_request";
        let Some((server, slow)) = with_slow_uploads(test, &backend, &config) else {
            return;
        };
        slow.hang();
        let mut client = server.client().with_receive_buffer(1 << 16);
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        slow.expect_hanging(1);
        expect_answers(&server);
        let ahead = stalled(&written);
        assert!(
            ahead < AHEAD_MAX,
            "{speaks:?}, {mode}: {ahead} bytes were written"
        );
        slow.release();
        let body = client.response().body;
        assert_eq!(body.len() as u64, REPLY, "{speaks:?}, {mode}");
        assert!(body.iter().all(|byte| *byte == b'r'), "{speaks:?}, {mode}");
    }
}

#[test]
fn a_disk_that_is_full_after_a_while_is_told() {
    let test = "a_disk_that_is_full_after_a_while_is_told";
    let backend = counting(Speaks::FastCgi);
    let config = "server.stream-request-body = 0";
    let Some((server, slow)) = with_slow_uploads(test, &backend, config) else {
        return;
    };
    for (errno, status) in [(Errno::NOSPC, 507), (Errno::IO, 500)] {
        let sent = Arc::new(AtomicU64::new(0));
        slow.hang_on(&[Operation::Write]);
        let writes = slow.count(Operation::Write);
        let uploading = upload(server.client(), UPLOAD, Arc::clone(&sent));
        slow.expect_hanging(1);
        slow.release();
        assert!(eventually(|| slow.count(Operation::Write) > writes + 8));
        slow.fail_on(&[Operation::Write], errno);
        // The client's remaining bytes are read and dropped, so that it can read the response.
        let mut client = uploading.join().expect("the upload ends");
        assert_eq!(client.response().status, status);
        client.expect_close();
        server.expect_log("the request body cannot be kept");
        slow.release();
        expect_answers(&server);
    }
    assert_eq!(backend.requests().len(), 0);
    expect_no_file(&server);
}

#[test]
fn an_uploader_that_leaves_a_disk_that_hangs_leaves_nothing_behind() {
    let test = "an_uploader_that_leaves_a_disk_that_hangs_leaves_nothing_behind";
    let backend = counting(Speaks::FastCgi);
    let config = "server.stream-request-body = 0";
    let Some((server, slow)) = with_slow_uploads(test, &backend, config) else {
        return;
    };
    slow.hang_on(&[Operation::Write]);
    let uploading = (0..3).map(|_| upload(server.client(), 1500 << 10, Arc::default()));
    let clients: Vec<_> = uploading
        .map(|upload| upload.join().expect("it fits in buffers"))
        .collect();
    slow.expect_hanging(3);
    clients.into_iter().for_each(Client::abort);
    expect_answers(&server);
    slow.release();
    assert_eq!(backend.requests().len(), 0);
    expect_no_file(&server);
}

#[test]
fn an_upload_behind_a_symlink_counts_where_it_is() {
    let test = "an_upload_behind_a_symlink_counts_where_it_is";
    let backend = counting(Speaks::FastCgi);
    // The first directory allows no new file.
    let config = format!(
        "server.upload-dirs := ( \"/proc\", var.dir + \"/linked\" )\n\
         server.stream-request-body = 0\n{COUNTERS}"
    );
    let Some((server, slow)) = with_slow_uploads(test, &backend, &config) else {
        return;
    };
    server.tree().symlink("upload", "linked");
    let in_flight = in_flight(&server, "upload");
    slow.hang();
    let uploading = upload(server.client(), 1500 << 10, Arc::default());
    slow.expect_hanging(1);
    expect_answers(&server);
    assert_eq!(in_flight(), 1);
    slow.release();
    let mut client = uploading.join().expect("it fits in buffers");
    assert_eq!(client.response().text(), (1500 << 10).to_string());
    expect_no_file(&server);
}
