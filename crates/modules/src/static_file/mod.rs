//! mod_staticfile: answers with a file, or with the range of it that the client asked for.
//!
//! The fields that depend only on the file are made once and kept with the file in the cache; usually an
//! answer just copies them. `proto` decides about conditional and range requests. This module knows nothing
//! of sockets: the body is a file piece, which the connection sends.

mod answer;
mod own_type;
mod precompressed;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::clock::Clock;
use petrel_engine::config::{Diagnostic, DirectiveSpec, Effect};
use petrel_engine::file_cache::{FileEntry, FileKind};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::phase;
use petrel_engine::proto::accept::Coding;
use petrel_engine::proto::date;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::{CoreSettings, mime};

pub(crate) use answer::{
    as_asked as answer_as_asked, ask, for_backend as answer_for_backend, forget_range,
};
use own_type::Asking;
use precompressed::Precompressed;

/// mod_staticfile.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_staticfile",
    doc: "Sends files, with ETags, conditional requests and byte ranges.",
    loaded: Loaded::Compat,
    directives: DIRECTIVES,
    configure,
};

static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "static-file.exclude-extensions", List, Request, "()", Effect::Works,
        "Files whose names end with one of these are answered 403 instead of being sent: \
         scripts whose source no client should see.";
    "static-file.etags", Bool, Request, "enable", Effect::Works,
        "Send an ETag with every file, made of what etag.use-inode, etag.use-mtime and \
         etag.use-size choose.";
    "static-file.disable-pathinfo", Bool, Request, "disable", Effect::Works,
        "Answer 403 if the URL continues after the name of a static file (path-info).";
    "static-file.precompressed", List, Request, "()", Effect::Works,
        "Codings (\"br\", \"zstd\", \"gzip\") whose compressed sibling FILE.br, FILE.zst or FILE.gz \
         is sent instead of FILE to clients that accept it, if it is not older than FILE. \
         Petrel's own.";
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let suffixes = values.strings("static-file.exclude-extensions");
    let precompressed = Rc::new(Precompressed::new(values)?);
    let siblings = Rc::clone(&precompressed);
    configure.look_next(Rc::new(move |exchange| siblings.next_names(exchange)));
    let hook = StaticFile {
        excluded: suffixes
            .iter()
            .map(|suffix| suffix.as_bytes().to_vec())
            .collect(),
        fields: FileFields {
            has_etags: values.bool("static-file.etags").unwrap_or(true),
        },
        has_path_info: !values.bool("static-file.disable-pathinfo").unwrap_or(false),
        precompressed,
    };
    // Last, wherever the module is in the list: a file that a backend runs belongs to the backend, and its
    // source must not be sent.
    configure.add_last(Phase::Content, hook);
    Ok(())
}

struct StaticFile {
    excluded: Vec<Vec<u8>>,
    fields: FileFields,
    has_path_info: bool,
    precompressed: Rc<Precompressed>,
}

impl Hook for StaticFile {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(file) = &exchange.physical.file else {
            return Outcome::Next;
        };
        let method = exchange.request.method;
        if file.kind() != FileKind::Regular
            || !matches!(method, Method::Get | Method::Head | Method::Post)
        {
            return Outcome::Next;
        }
        let file = Rc::clone(file);
        if let Some(closed) = phase::closed_file(exchange) {
            return closed;
        }
        let path_info = &exchange.physical.path_info;
        if !path_info.is_empty() && !self.has_path_info {
            return exchange.fail(CauseCode::PathInfoDenied);
        }
        let path = &exchange.physical.path;
        if self.excluded.iter().any(|suffix| path.ends_with(suffix)) {
            return exchange.fail(CauseCode::FileExcluded);
        }
        let Some((chosen, coding)) = self.precompressed.choose(exchange, Rc::clone(&file)) else {
            return Outcome::Cold;
        };
        exchange.response.status = Status::OK;
        // A precompressed file has another type when it is requested by its own name than when it stands in
        // for the uncompressed one.
        let key =
            u64::from(exchange.settings.profile) << 1 | u64::from(!Rc::ptr_eq(&file, &chosen));
        let core = &exchange.settings.core;
        if own_type::is_to_be_asked_for(&chosen, core) && !chosen.has_prepared(key) {
            return match Asking::begin(exchange, self.fields, &chosen, coding, key) {
                Some(asking) => Outcome::Later(Box::new(asking)),
                None => own_type::refuse(
                    exchange,
                    CauseCode::DiskShortage.into(),
                    &"too many files are being read, or are open",
                ),
            };
        }
        self.fields.send(exchange, chosen, coding, key, None);
        Outcome::Answer
    }
}

/// Which fields a file gets.
#[derive(Clone, Copy)]
struct FileFields {
    has_etags: bool,
}

impl FileFields {
    /// Makes `file` the answer, subject to the conditions of the request. Its fields are kept under `key`.
    /// `own` is the type from the file's extended attribute, in case the fields have to be made.
    fn send(
        self,
        exchange: &mut Exchange,
        file: Rc<FileEntry>,
        coding: Option<Coding>,
        key: u64,
        own: Option<Vec<u8>>,
    ) {
        let settings = Rc::clone(&exchange.settings);
        let path = &exchange.physical.path;
        let fields = file.prepared(key, |file| {
            let clock = exchange.worker.clock();
            self.make(file, path, coding, own, &settings.core, clock)
        });
        exchange.response.extend_from_wire(&fields);
        // A backend that named this file may have set a better type, and so may a script.
        exchange.response.take_handed_on();
        exchange.response.take_carried();
        let modified_s = file.stat().modified_s;
        match exchange.keeps_error_status() {
            true => answer::whole(exchange, file),
            false => answer::as_asked(exchange, answer::piece_of(file), Some(modified_s)),
        }
    }

    /// The fields that depend only on the file and the settings, in wire form.
    fn make(
        self,
        file: &FileEntry,
        path: &[u8],
        coding: Option<Coding>,
        own: Option<Vec<u8>>,
        core: &CoreSettings,
        clock: &Clock,
    ) -> Vec<u8> {
        let mut out = Vec::with_capacity(192);
        field(&mut out, "Content-Type", &content_type(own, path, core));
        // Its type is that of what it holds.
        if coding.is_none() && path.to_ascii_lowercase().ends_with(b".svgz") {
            field(&mut out, "Content-Encoding", b"gzip");
        }
        if self.has_etags
            && let Some(etag) = etag(file, coding, core)
        {
            field(&mut out, "ETag", etag.as_bytes());
        }
        field(&mut out, "Last-Modified", &last_modified(file, clock));
        if core.range_requests {
            field(&mut out, "Accept-Ranges", b"bytes");
        }
        out
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend(
        value
            .iter()
            .map(|byte| if byte.is_ascii_control() { b' ' } else { *byte }),
    );
    out.extend_from_slice(b"\r\n");
}

/// A date that lies in the future would make caches keep the file until then (RFC 9110 section 8.8.2.1).
fn last_modified(file: &FileEntry, clock: &Clock) -> [u8; 29] {
    let mut date = [0; 29];
    let modified_s = file.stat().modified_s.min(clock.wall_seconds());
    date::format_imf(modified_s, &mut date);
    date
}

/// The type of a file: from its extended attribute, if that is enabled, or by its name. lighttpd leaves ETag
/// and Last-Modified out if the type is not known. They are sent here: otherwise clients would download such
/// a file again each time, only because its type might be configured some day.
fn content_type(own: Option<Vec<u8>>, path: &[u8], core: &CoreSettings) -> Vec<u8> {
    own.unwrap_or_else(|| {
        core.mime_types
            .content_type_of(path)
            .unwrap_or(mime::UNKNOWN)
            .to_vec()
    })
}

/// The entity tag of the uncompressed `file`, for scripts.
pub(crate) fn etag_of(file: &FileEntry, core: &CoreSettings) -> Option<String> {
    etag(file, None, core)
}

/// A strong entity tag (RFC 9110 section 8.8.3) made of the parts that are enabled.
fn etag(file: &FileEntry, coding: Option<Coding>, core: &CoreSettings) -> Option<String> {
    let stat = file.stat();
    let inode = core.etag_inode.then(|| format!("{:x}", stat.inode));
    let size = core.etag_size.then(|| format!("{:x}", stat.size));
    let modified = core
        .etag_mtime
        .then(|| format!("{:x}.{:x}", stat.modified_s, stat.modified_ns));
    let parts: Vec<String> = [inode, size, modified].into_iter().flatten().collect();
    // The compressed and the uncompressed file must have different tags, even if all parts are equal.
    let coding = coding
        .map(|coding| format!("-{}", coding.name()))
        .unwrap_or_default();
    (!parts.is_empty()).then(|| format!("\"{}{coding}\"", parts.join("-")))
}

#[cfg(test)]
mod tests {
    use petrel_engine::proto::date;

    use super::MODULE;
    use crate::testing::Tree;

    #[test]
    fn a_file_of_unknown_type_is_a_stream_of_bytes_that_caches_can_keep() {
        let tree = Tree::new(&[("a.weird", "x"), ("b", "y")]);
        for assigned in ["", "mimetype.assign = (\".html\" => \"text/html\")"] {
            let site = tree.site(assigned, &[&MODULE]);
            for path in ["/a.weird", "/b"] {
                let answer = site.get(path);
                assert_eq!(
                    answer.field("Content-Type").as_deref(),
                    Some("application/octet-stream")
                );
                assert!(answer.field("ETag").is_some(), "{path}");
                assert!(answer.field("Last-Modified").is_some(), "{path}");
            }
        }
    }

    #[test]
    fn no_file_was_modified_in_the_future() {
        let tree = Tree::new(&[("a.txt", "x")]);
        let file = std::fs::File::options()
            .write(true)
            .open(tree.path("a.txt"))
            .expect("it is there");
        let tomorrow = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        file.set_modified(tomorrow).expect("it is ours");
        let answer = tree.site("", &[&MODULE]).get("/a.txt");
        let shown = answer.field("Last-Modified").expect("it is a file");
        let shown_s = date::parse(shown.as_bytes()).expect("a date");
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        assert!(shown_s <= now.expect("after 1970").as_secs());
    }

    #[test]
    fn a_compressed_picture_says_how_it_is_compressed() {
        let tree = Tree::new(&[("a.SVGZ", "gzip")]);
        let answer = tree.site("", &[&MODULE]).get("/a.SVGZ");
        assert_eq!(
            answer.field("Content-Type").as_deref(),
            Some("image/svg+xml")
        );
        assert_eq!(answer.field("Content-Encoding").as_deref(), Some("gzip"));
    }

    #[test]
    fn as_many_ranges_are_answered_as_zchunk_asks_for() {
        let tree = Tree::new(&[("a.bin", &"x".repeat(300_000))]);
        let site = tree.site("", &[&MODULE]);
        let of = |ranges: usize, version: &str| {
            let ranges: Vec<String> = (0..ranges)
                .map(|number| format!("{}-{}", 1000 * number, 1000 * number + 9))
                .collect();
            site.request(&format!(
                "GET /a.bin HTTP/{version}\r\nHost: a\r\nRange: bytes={}\r\n\r\n",
                ranges.join(",")
            ))
            .status()
        };
        for version in ["1.0", "1.1"] {
            assert_eq!(of(255, version), 206);
            assert_eq!(of(257, version), 200);
        }
    }

    #[test]
    fn a_precompressed_sibling_never_shares_its_tag_with_the_file() {
        let tree = Tree::new(&[("a.js", "plain"), ("a.js.gz", "gzip!")]);
        let site = tree.site(
            r#"static-file.precompressed = ( "gzip" )
               etag.use-inode = "disable"
               etag.use-mtime = "disable""#,
            &[&MODULE],
        );
        let plain = site.get("/a.js");
        let request = "GET /a.js HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n";
        let coded = site.request(request);
        assert_eq!(coded.field("Content-Encoding"), Some("gzip".to_owned()));
        assert_eq!(coded.body(), b"gzip!");
        assert_ne!(plain.field("ETag"), coded.field("ETag"));
    }
}
