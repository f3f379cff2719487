//! Large files that modules read while they are sent, to compress them or to keep a copy.

use petrel_tests::{Backend, Client, Operation, Server, SlowFs, Speaks};
use rustix::io::Errno;

use super::{content, expect_others_served, impatient, site};

/// Larger than files that are compressed as a whole before they are sent.
const BYTES: usize = 3 << 20;

/// URL prefixes and what happens to files there: compressed, copied into the page cache, or both.
const WAYS: [&str; 3] = ["/slow/", "/app/kept/", "/app/both/"];

/// A backend that replies with the name of the file in the query.
fn naming() -> Backend {
    Backend::start(Speaks::FastCgi, |exchange| {
        let target = exchange.target().to_owned();
        let (_, file) = target.split_once('?').unwrap_or_default();
        let fields = [("X-Sendfile", file), ("Cache-Control", "max-age=60")];
        exchange.answer(200, &fields, "");
    })
}

/// A site with the files `names`, of which `/slow/` hangs when a test asks for it, and which processes them
/// as [`WAYS`] says.
fn filtering(test: &str, backend: &Backend, names: &[&str]) -> Option<(Server, SlowFs)> {
    let large = content(BYTES);
    let files: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, &*large)).collect();
    let directive = backend.directive(
        "/app",
        "\"check-local\" => \"disable\", \"x-sendfile\" => \"enable\", \"x-sendfile-docroot\" => ( var.dir + \"/www\" )",
    );
    let config = format!(
        "{}
        server.modules += ( \"mod_page_cache\", \"mod_deflate\" )
        {directive}
        # Look-ups leave all contents to those who send them.
        server.network-backend = \"io_uring\"
        page-cache.enable = \"enable\"
        page-cache.max-object-size = 8192
        deflate.allowed-encodings = ( \"gzip\" )
        $HTTP[\"url\"] =~ \"^/(slow|app/both)/\" {{ deflate.mimetypes = ( \"\" ) }}",
        impatient(1)
    );
    site(test, &files, &config)
}

/// A client that has requested a file through one of [`WAYS`].
fn asking(server: &Server, way: &str, name: &str) -> Client {
    let file = server.tree().path("www/slow").join(name);
    let mut client = server.client();
    client.send(format!(
        "GET {way}{name}?{} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
        file.display()
    ));
    client
}

/// It takes so long because each of three servers waits one to two seconds for the disk.
#[test]
fn a_file_that_is_filtered_is_an_error_as_long_as_nothing_is_sent() {
    let test = "a_file_that_is_filtered_is_an_error_as_long_as_nothing_is_sent";
    let backend = naming();
    for way in WAYS {
        let names = ["hangs.txt", "fails.txt"];
        let Some((server, slow)) = filtering(test, &backend, &names) else {
            return;
        };
        slow.hang_on(&[Operation::Read]);
        let mut late = asking(&server, way, "hangs.txt");
        slow.expect_hanging(1);
        expect_others_served(&server);
        let late = late.response();
        assert_eq!(late.status, 504, "{way}: {late}");
        server.expect_log("www/slow/hangs.txt\"");
        slow.release();
        slow.fail_on(&[Operation::Read], Errno::IO);
        let failed = asking(&server, way, "fails.txt").response();
        assert_eq!(failed.status, 500, "{way}: {failed}");
        server.expect_log("www/slow/fails.txt\"");
        slow.release();
        for name in names {
            let whole = asking(&server, way, name).response();
            assert_eq!(whole.status, 200, "{way}{name}: {}", whole.status);
            let is_compressed = whole.field("Content-Encoding") == Some("gzip");
            assert_eq!(is_compressed, way != "/app/kept/", "{way}");
        }
    }
}
