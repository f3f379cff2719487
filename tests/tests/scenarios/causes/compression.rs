use super::{Told, Version, site};

/// A file that is compressed while it is sent.
#[test]
fn compression() {
    let text: Vec<u8> = (0..16_000_000u32)
        .map(|at| b'a' + (at.wrapping_mul(2_654_435_761) >> 28) as u8)
        .collect();
    for version in Version::BOTH {
        let server = site()
            .file("www/long.txt", &text)
            .config("server.modules += (\"mod_deflate\")\ndeflate.mimetypes = (\"text/\")")
            .config("deflate.allowed-encodings = (\"gzip\")\ndeflate.max-compress-size = 100000")
            .start();
        version.ask(&server, "/long.txt", &["--header", "Accept-Encoding: gzip"]);
        let told = Told::about(&server, "/long.txt");
        assert!(told.time("transform") > told.time("send"), "{}", told.line);
    }
}
