//! From the URL path to the physical path and to the file: what the core does between the hooks of the map
//! phases.

use std::rc::Rc;

use petrel_proto::escape;
use petrel_proto::status::Status;

use crate::cause::CauseCode;
use crate::cold_files::cause_of_failure;
use crate::exchange::Exchange;
use crate::file_cache::{FileEntry, FileKind};
use crate::module::Outcome;

/// Builds the physical path below the document root that a hook has chosen, or below the configured one.
pub(crate) fn map(exchange: &mut Exchange) -> Outcome {
    let (core, physical) = (&exchange.settings.core, &mut exchange.physical);
    if physical.document_root.is_empty() {
        let Some(root) = &core.document_root else {
            return exchange.fail(CauseCode::NoDocumentRoot);
        };
        physical.document_root.extend_from_slice(root);
        physical.shows_slash = core.document_root_has_slash;
    }
    physical.map_below_root(exchange.request.url.path());
    if core.force_lowercase {
        physical.relative.make_ascii_lowercase();
        let root = physical.path.len() - physical.relative.len();
        physical.path[root..].make_ascii_lowercase();
    }
    Outcome::Next
}

/// Looks up the physical path, splits off path-info, and redirects URLs of directories that lack the slash.
pub(crate) fn resolve(exchange: &mut Exchange) -> Outcome {
    if exchange.physical.is_virtual {
        return Outcome::Next;
    }
    let Some(mut file) = look_up(exchange) else {
        return Outcome::Cold;
    };
    if file.kind() == FileKind::NotADirectory && exchange.worker.process().features.pathinfo {
        file = match split_path_info(exchange, file) {
            Some(file) => file,
            None => return Outcome::Cold,
        };
    }
    let kind = file.kind();
    let is_taken_unread = exchange.is_taken_unread(&exchange.physical.path, &file);
    exchange.physical.file = Some(file);
    match kind {
        FileKind::Regular => Outcome::Next,
        FileKind::Directory if exchange.request.url.path().ends_with(b"/") => Outcome::Next,
        FileKind::Directory => exchange.redirect_to_directory(),
        FileKind::Missing | FileKind::NotADirectory => not_found(exchange),
        FileKind::Denied if is_taken_unread => Outcome::Next,
        FileKind::Denied => {
            let outcome = exchange.fail(CauseCode::FileDenied);
            let base = String::from_utf8_lossy(&exchange.physical.base);
            exchange.log_common_error_of(
                "map",
                format_args!("a file may not be opened below {base:?}: the server's user lacks a right, or a symlink is refused"),
                format_args!(" path={:?}", shown_path(exchange)),
            );
            outcome
        }
        FileKind::Special => exchange.fail(CauseCode::FileSpecial),
        FileKind::Failed(errno) => {
            let outcome = exchange.fail(cause_of_failure(errno));
            exchange.log_error(
                "map",
                format_args!("{errno} path={:?}", shown_path(exchange)),
            );
            outcome
        }
    }
}

/// The file at the physical path. `None`: the disk has to be read, also for the names that are needed next.
fn look_up(exchange: &Exchange) -> Option<Rc<FileEntry>> {
    let settings = &exchange.settings;
    exchange.look_up_with(&exchange.physical.path, settings.core.symlinks, || {
        settings.next_names.iter().find_map(|names| names(exchange))
    })
}

/// Finds the file within the path; the rest of the path is path-info. All parts before the file are
/// directories, and every look-up of a longer path fails with "not a directory". So the file is found by
/// bisection: eleven look-ups for two thousand parts. `None`: the disk has to be read. If a part cannot be
/// looked up, the result is that failure.
fn split_path_info(exchange: &mut Exchange, not_found: Rc<FileEntry>) -> Option<Rc<FileEntry>> {
    let path = &exchange.physical.path;
    // An alias may lead to a file. Then the base itself is the file. In a path that a script has set, path-info
    // begins after the first segment that is a file, wherever that file is.
    let base = exchange.physical.base_length();
    let slashes: Vec<usize> = memchr::memchr_iter(b'/', &path[base..])
        .map(|slash| base + slash)
        .collect();
    let look_up = |end: usize| exchange.look_up(&path[..end], exchange.settings.core.symlinks);
    let (mut before, mut behind) = (0, slashes.len());
    while before < behind {
        let middle = before + (behind - before) / 2;
        let there = look_up(slashes[middle])?;
        match there.kind() {
            FileKind::NotADirectory => behind = middle,
            FileKind::Failed(_) => return Some(there),
            _ => before = middle + 1,
        }
    }
    let Some(end) = behind
        .checked_sub(1)
        .and_then(|last| slashes.get(last))
        .copied()
    else {
        return Some(not_found);
    };
    let file = look_up(end)?;
    match file.kind() {
        FileKind::Regular => {}
        FileKind::Failed(_) => return Some(file),
        _ if exchange.is_taken_unread(&path[..end], &file) => {}
        _ => return Some(not_found),
    }
    let physical = &mut exchange.physical;
    physical.path_info.clear();
    physical.path_info.extend_from_slice(&physical.path[end..]);
    physical.is_info_behind_file = true;
    physical.path.truncate(end);
    let info = physical.path_info.len();
    physical
        .relative
        .truncate(physical.relative.len().saturating_sub(info));
    Some(file)
}

impl Exchange {
    /// Redirects the client to its URL with a slash after the path.
    pub fn redirect_to_directory(&mut self) -> Outcome {
        let url = &self.request.url;
        let mut location = Vec::with_capacity(url.target().len() + 1);
        if self.worker.process().features.absolute_dir_redirect {
            self.write_origin(&mut location);
        }
        escape::percent_encode_path(&mut location, url.path());
        location.push(b'/');
        if !url.query().is_empty() {
            location.push(b'?');
            location.extend_from_slice(url.query());
        }
        self.response.answer(Status::MOVED_PERMANENTLY);
        self.response.set("Location", &location);
        Outcome::Answer
    }
}

fn not_found(exchange: &mut Exchange) -> Outcome {
    let outcome = exchange.fail(CauseCode::FileMissing);
    if exchange.settings.core.debug.file_not_found {
        exchange.log_error(
            "map",
            format_args!("file not found path={:?}", shown_path(exchange)),
        );
    }
    outcome
}

fn shown_path(exchange: &Exchange) -> String {
    String::from_utf8_lossy(&exchange.physical.path).into_owned()
}

#[cfg(test)]
mod tests {
    use crate::exchange::Scheme;
    use crate::testing::Site;
    use crate::tls::{TlsConnectionFacts, TlsVersion};
    use std::rc::Rc;

    #[test]
    fn path_info_of_many_parts_costs_few_lookups() {
        let root = std::env::temp_dir().join(format!("petrel-map-{}", std::process::id()));
        std::fs::create_dir_all(root.join("d/e")).expect("mkdir");
        std::fs::write(root.join("d/e/file"), "x").expect("write");
        let root = root.canonicalize().expect("it was just made");
        let site = Site::new(&format!("server.document-root = {root:?}"), &[]);
        let info = "/x".repeat(1500);
        for (target, expected) in [
            (format!("/d/e/file{info}"), &info[..]),
            ("/d/e/file/".to_owned(), "/"),
            ("/d/e/file".to_owned(), ""),
        ] {
            let answer = site.get(&target);
            let physical = &answer.exchange().physical;
            assert_eq!(physical.path_info, expected.as_bytes(), "{target}");
            assert!(physical.path.ends_with(b"/d/e/file"), "{target}");
            assert_eq!(physical.relative, b"/d/e/file");
            assert!(answer.exchange().worker.files().len() < 40);
        }
        std::fs::remove_dir_all(&root).expect("remove");
    }

    #[test]
    fn absolute_redirects_are_of_the_scheme_and_host_of_the_connection() {
        let root = std::env::temp_dir().join(format!("petrel-origin-{}", std::process::id()));
        std::fs::create_dir_all(root.join("d")).expect("mkdir");
        let flag = "server.feature-flags = ( \"server.absolute-dir-redirect\" => \"enable\" )";
        let root_text = root.canonicalize().expect("it was just made");
        let config = format!("server.document-root = {root_text:?}\n{flag}");
        let mut site = Site::new(&config, &[]);
        let location = |site: &Site, request: &str| {
            let answer = site.request(&format!("GET /d {request}\r\n\r\n"));
            answer.field("Location").expect("a redirect")
        };
        for (host, over_http, over_https) in [
            ("A.Example", "http://a.example/d/", "https://a.example/d/"),
            ("a:443", "http://a:443/d/", "https://a/d/"),
            ("a:80", "http://a/d/", "https://a:80/d/"),
            (
                "[::1]:8443",
                "http://[::1]:8443/d/",
                "https://[::1]:8443/d/",
            ),
        ] {
            let request = format!("HTTP/1.1\r\nHost: {host}");
            let plain = site.connection();
            assert_eq!(location(&site, &request), over_http);
            let mut safe = plain.clone();
            safe.scheme = Scheme::Https;
            safe.late().tls = Some(Rc::new(tls_for("b.example")));
            site.set_connection(safe);
            assert_eq!(location(&site, &request), over_https);
            assert_eq!(location(&site, "HTTP/1.0"), "https://b.example/d/");
            site.set_connection(plain);
        }
        assert_eq!(location(&site, "HTTP/1.0"), "http://127.0.0.1:80/d/");
        std::fs::remove_dir_all(&root).expect("remove");
    }

    fn tls_for(name: &str) -> TlsConnectionFacts {
        TlsConnectionFacts {
            version: TlsVersion::Tls13,
            cipher: "TLS_AES_128_GCM_SHA256",
            cipher_bits: 128,
            server_name: Some(name.into()),
            client_certificates: Box::default(),
            is_resumed: false,
            certificate_id: 0,
            client_rule_id: 0,
            handshake_nanos: 0,
            kept: std::cell::OnceCell::new(),
        }
    }
}
