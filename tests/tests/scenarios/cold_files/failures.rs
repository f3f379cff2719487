//! Disk errors: before the head is sent the client gets an error status; after that the response is cut
//! short.

use engine::settings::core::NetworkBackend;
use petrel_tests::{Client, ClientError, Operation, Server, eventually};
use rustix::io::Errno;

use super::{asking, content, expect_others_served, impatient, reading_elsewhere, site};

/// Long enough that most of it is still unread when a client stops reading.
pub(super) const LARGE: usize = 24 << 20;

/// It takes so long because the server must forget a file six times, which takes two seconds each.
#[test]
fn an_error_before_the_first_byte_is_500() {
    let test = "an_error_before_the_first_byte_is_500";
    let large = content(200_000);
    let files: [(&str, &[u8]); 2] = [("small.txt", b"small"), ("large.bin", &large)];
    let Some((server, slow)) = site(test, &files, "") else {
        return;
    };
    for operation in [Operation::Lookup, Operation::Open, Operation::Read] {
        for (file, content) in files {
            slow.fail_on(&[operation], Errno::IO);
            let target = format!("/slow/{file}");
            let failed = server.get(&target);
            assert_eq!(failed.status, 500, "{operation:?} {file}: {failed}");
            expect_others_served(&server);
            slow.release();
            // The failure is not cached.
            let response = server.get(&target);
            assert_eq!(response.status, 200, "{operation:?} {file}");
            assert!(response.body == content, "{operation:?} {file}");
            // Long enough that the server's cache has forgotten the file.
            std::thread::sleep(std::time::Duration::from_millis(2100));
        }
    }
}

/// It takes so long because the server must forget the file five times, which takes two seconds each.
#[test]
fn a_disk_that_refuses_is_no_error_of_the_server() {
    let test = "a_disk_that_refuses_is_no_error_of_the_server";
    let Some((server, slow)) = site(test, &[("small.txt", b"small")], "") else {
        return;
    };
    for (errno, status) in [
        (Errno::NOENT, 404),
        (Errno::ACCESS, 403),
        (Errno::STALE, 500),
        (Errno::TIMEDOUT, 504),
        (Errno::NFILE, 503),
    ] {
        slow.fail_on(&[Operation::Lookup], errno);
        assert_eq!(server.get("/slow/small.txt").status, status, "{errno}");
        slow.release();
        std::thread::sleep(std::time::Duration::from_millis(2100));
    }
}

#[test]
fn an_index_file_fails_with_the_status_of_any_other() {
    let test = "an_index_file_fails_with_the_status_of_any_other";
    let Some((server, slow)) = site(test, &[("index.html", b"index")], "") else {
        return;
    };
    for (errno, status) in [(Errno::IO, 500), (Errno::NFILE, 503)] {
        slow.fail_on(&[Operation::Open], errno);
        let failed = server.get("/slow/");
        assert_eq!(failed.status, status, "{errno}: {failed}");
        slow.release();
        assert_eq!(server.get("/slow/").text(), "index");
        std::thread::sleep(std::time::Duration::from_millis(2100));
    }
    server.expect_log("www/slow/index.html\"");
}

/// It takes so long because the server must forget the file three times, which takes two seconds each.
#[test]
fn a_script_that_may_not_be_read_is_looked_at_by_threads_alone() {
    let test = "a_script_that_may_not_be_read_is_looked_at_by_threads_alone";
    // There is no backend: requests that are let through get 503.
    let config = "server.modules += ( \"mod_fastcgi\" )
        fastcgi.server = ( \".php\" => (( \"host\" => \"127.0.0.1\", \"port\" => 1 )) )
        index-file.names += ( \"index.php\" )
        server.max-file-wait = 1";
    let files: [(&str, &[u8]); 2] = [("index.php", b"source"), ("plain.txt", b"plain")];
    let Some((server, slow)) = site(test, &files, config) else {
        return;
    };
    for target in ["/slow/index.php", "/slow/index.php/info", "/slow/"] {
        slow.fail_on(&[Operation::Open], Errno::ACCESS);
        assert_eq!(server.get(target).status, 503, "{target}");
        assert_eq!(server.get("/slow/plain.txt").status, 403, "{target}");
        // What is known of the file is valid for one second.
        slow.hang_on(&[Operation::Lookup, Operation::Stat]);
        let mut again = asking(&server, target);
        expect_others_served(&server);
        // If the second is over, the request waits.
        let status = again.response().status;
        assert!([503, 504].contains(&status), "{target}: {status}");
        slow.release();
        std::thread::sleep(std::time::Duration::from_millis(2100));
    }
}

/// Puts the file into a state in which the server has it open, and the kernel has cached none of its content,
/// because it was opened anew.
fn open_and_not_in_memory(server: &Server) {
    assert!(server.get("/slow/large.bin").body == content(400_000));
    let path = server.tree().path("www/slow/large.bin");
    drop(std::fs::File::open(path).expect("it is there"));
}

/// It takes so long because each of five network backends waits one to two seconds for the disk.
#[test]
fn contents_that_cannot_be_read_are_an_error_as_long_as_nothing_is_sent() {
    let test = "contents_that_cannot_be_read_are_an_error_as_long_as_nothing_is_sent";
    // This backend sends the head before it looks at the file.
    let readers = reading_elsewhere().filter(|name| *name != "gthread-sendfile");
    for backend in readers {
        let config = impatient(1)
            + &format!(
                "server.network-backend = \"{backend}\"\n\
                server.errorfile-prefix = var.dir + \"/www/page-\""
            );
        let large = content(400_000);
        let Some((server, slow)) = site(test, &[("large.bin", &large)], &config) else {
            return;
        };
        server.tree().write("www/page-504.html", "our page");
        assert_eq!(server.get("/page-504.html").text(), "our page");
        open_and_not_in_memory(&server);
        slow.hang_on(&[Operation::Read]);
        let late = asking(&server, "/slow/large.bin").response();
        assert_eq!(
            (late.status, late.text().as_str()),
            (504, "our page"),
            "{backend}: {late}"
        );
        expect_named(&server, "large.bin");
        expect_others_served(&server);
        slow.release();
        open_and_not_in_memory(&server);
        slow.fail_on(&[Operation::Read], Errno::IO);
        let failed = server.get("/slow/large.bin");
        assert_eq!(failed.status, 500, "{backend}: {failed}");
        expect_others_served(&server);
        slow.release();
        assert!(server.get("/slow/large.bin").body == large, "{backend}");
    }
}

#[test]
fn an_error_within_the_body_breaks_it_off() {
    let test = "an_error_within_the_body_breaks_it_off";
    for backend in NetworkBackend::ALL.map(NetworkBackend::name) {
        let config = format!("server.network-backend = \"{backend}\"");
        let Some((server, slow)) = site(test, &[("large.bin", &content(LARGE))], &config) else {
            return;
        };
        let begun = begun(&server);
        slow.fail_on(&[Operation::Read], Errno::IO);
        begun.expect_cut_short(backend);
        expect_named(&server, "large.bin");
        assert!(server.log().contains("(os error 5)"), "{backend}");
        expect_others_served(&server);
        slow.release();
        assert!(server.get("/slow/large.bin").body == content(LARGE));
    }
}

/// It takes so long because a server of each of eight network backends starts, and begins to send 24 MiB twice.
#[test]
fn a_network_file_system_that_gives_up_is_told_and_no_client_that_left() {
    let test = "a_network_file_system_that_gives_up_is_told_and_no_client_that_left";
    for backend in reading_elsewhere().chain(["writev", "linux-sendfile"]) {
        let config = format!("server.network-backend = \"{backend}\"");
        let Some((server, slow)) = site(test, &[("large.bin", &content(LARGE))], &config) else {
            return;
        };
        let half = begun(&server);
        slow.fail_on(&[Operation::Read], Errno::TIMEDOUT);
        half.expect_cut_short(backend);
        expect_named(&server, "large.bin");
        slow.release();
        expect_others_served(&server);
        let sockets = || server.holdings().descriptors.get("socket").copied();
        let before = sockets();
        begun(&server).client.abort();
        assert!(eventually(|| sockets() == before), "{backend}");
        let log = server.log();
        assert_eq!(log.matches("(send)").count(), 1, "{backend}: {log}");
    }
}

#[test]
fn the_log_names_the_file_that_was_sent() {
    let test = "the_log_names_the_file_that_was_sent";
    let script = "local root = lighty.env['physical.doc-root']\n\
        lighty.content = { { filename = root .. '/slow/large.bin' } }\n\
        return 200";
    let files: [(&str, &[u8]); 2] = [
        ("large.bin", &content(LARGE)),
        ("named.lua", script.as_bytes()),
    ];
    let config = "server.modules += ( \"mod_magnet\" )\nlua.max-run-time = 1000\n\
        $HTTP[\"url\"] == \"/named\" {\n\
        magnet.attract-physical-path-to = ( var.dir + \"/www/slow/named.lua\" ) }";
    let Some((server, slow)) = site(test, &files, config) else {
        return;
    };
    let begun = begun_by(&server, "/named");
    slow.fail_on(&[Operation::Read], Errno::IO);
    begun.expect_cut_short("named by a script");
    expect_named(&server, "large.bin");
}

/// A response whose beginning the client has read.
pub(super) struct Begun {
    client: Client,
    body: Vec<u8>,
}

/// Requests `/slow/large.bin` with a client that stops reading.
pub(super) fn begun(server: &Server) -> Begun {
    begun_by(server, "/slow/large.bin")
}

fn begun_by(server: &Server, target: &str) -> Begun {
    let mut client = server.client().with_receive_buffer(64 * 1024);
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    let mut begin = client.read_bytes(100_000);
    assert!(begin.starts_with(b"HTTP/1.1 200 "));
    let head = begin.windows(4).position(|end| end == b"\r\n\r\n");
    let body = begin.split_off(head.expect("a head") + 4);
    Begun { client, body }
}

impl Begun {
    /// Expects that the rest is shorter than the head announced, and correct as far as it goes.
    #[track_caller]
    pub fn expect_cut_short(self, what: &str) {
        self.expect_cut_short_and_cleared_from(LARGE, what);
    }

    /// The same, but the kernel may have cleared what was after `cut`.
    #[track_caller]
    pub fn expect_cut_short_and_cleared_from(mut self, cut: usize, what: &str) {
        self.body.extend(self.client.read_to_end());
        let (got, whole) = (self.body.len(), content(LARGE));
        assert!(got < LARGE, "{what}: {got} bytes");
        let certain = got.min(cut);
        assert!(
            self.body[..certain] == whole[..certain],
            "{what}: not of the file"
        );
        let mut behind = self.body[certain..].iter().zip(&whole[certain..got]);
        assert!(
            behind.all(|(got, right)| got == right || *got == 0),
            "{what}: not of the file behind the cut"
        );
    }

    /// Expects the whole file.
    #[track_caller]
    pub fn expect_whole(mut self, what: &str) {
        let left = LARGE - self.body.len();
        self.body.extend(self.client.read_bytes(left));
        assert!(self.body == content(LARGE), "{what}: not the file");
    }
}

/// Expects one log line that says that the response was cut short, and of which file.
#[track_caller]
pub(super) fn expect_named(server: &Server, file: &str) {
    server.expect_log("(send)");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("(send)"));
    assert!(
        line.is_some_and(|line| line.contains(&format!("www/slow/{file}\""))),
        "{line:?}"
    );
}

#[test]
fn clients_in_a_pipeline_get_what_was_answered_before() {
    let test = "clients_in_a_pipeline_get_what_was_answered_before";
    let Some((server, slow)) = site(test, &[("a.txt", b"a")], "") else {
        return;
    };
    slow.fail_on(&[Operation::Lookup], Errno::IO);
    let mut client = server.client();
    client.send(
        "GET /hot.txt HTTP/1.1\r\nHost: a\r\n\r\nGET /slow/a.txt HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    client.send("GET /hot.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().text(), "hot");
    assert_eq!(client.response().status, 500);
    match client.try_response() {
        Ok(response) => assert_eq!(response.text(), "hot"),
        Err(error) => assert_eq!(error, ClientError::Closed),
    }
    drop(asking(&server, "/slow/a.txt"));
    expect_others_served(&server);
}
