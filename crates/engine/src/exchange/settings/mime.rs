//! Content types by the names of files.
//!
//! The rules are those of lighttpd 1.4; letter case is ignored. If `mimetype.assign` has fewer than 16
//! entries, it is a list: the first key that is a suffix of the name counts, so the order matters. A longer
//! one is a table. It is searched for the whole file name, then for each extension from the longest to the
//! shortest, with and without the leading dot, and then for `""`. Without `mimetype.assign` a built-in table
//! is used. This file knows nothing of extended attributes, and does not decide what a missing type means.
//! The code that opens a file asks for its type once and stores the answer with the file.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::LazyLock;

use hashbrown::HashMap;
use petrel_config::BlockId;

use super::Values;

/// The type of a file that no rule matches. lighttpd sends such a file without ETag and Last-Modified, so
/// that caches do not hide a type that is configured later. mod_staticfile sends both all the same.
pub const UNKNOWN: &[u8] = b"application/octet-stream";

/// The types of one set of settings.
#[derive(Clone, Debug)]
pub struct MimeTypes {
    rules: Rules,
}

#[derive(Clone, Debug)]
enum Rules {
    BuiltIn,
    Ordered(Rc<[SuffixType]>),
    Table(Rc<TypeTable>),
}

#[derive(Debug)]
struct SuffixType {
    suffix: Box<[u8]>,
    content_type: Box<[u8]>,
}

/// The type tables of one configuration. All settings with the same `mimetype.assign` share a table: a list
/// of 1,500 types takes 170 KiB and 0.3 ms to build, and a thousand virtual hosts may use it.
#[derive(Debug, Default)]
pub struct MimeCache {
    by_block: RefCell<HashMap<BlockId, Rc<MimeTypes>>>,
    built_in: RefCell<Option<Rc<MimeTypes>>>,
}

impl MimeCache {
    /// The types for `values`, which must be of the configuration that this cache belongs to.
    pub fn types(&self, values: &Values<'_>) -> Rc<MimeTypes> {
        let make = || Rc::new(MimeTypes::new(values));
        match values.block_of(ASSIGN) {
            Some(block) => Rc::clone(self.by_block.borrow_mut().entry(block).or_insert_with(make)),
            None => Rc::clone(self.built_in.borrow_mut().get_or_insert_with(make)),
        }
    }
}

impl MimeTypes {
    /// The types of `mimetype.assign`, or the built-in ones if it is not set.
    pub fn new(values: &Values<'_>) -> MimeTypes {
        let Some(assigned) = values.array(ASSIGN) else {
            return MimeTypes {
                rules: Rules::BuiltIn,
            };
        };
        let pairs = assigned.iter();
        MimeTypes::assigned(
            pairs.filter_map(|pair| Some((pair.key()?, current_name(pair.value.as_str()?)))),
        )
    }

    /// The value of Content-Type for the file at `path`; only the last part of the path counts. `None`: no
    /// rule matches, see [`UNKNOWN`].
    pub fn content_type_of(&self, path: &[u8]) -> Option<&[u8]> {
        let content_type = match &self.rules {
            Rules::BuiltIn => BUILT_IN.look_up(path),
            Rules::Ordered(list) => list
                .iter()
                .find(|known| ends_with(path, &known.suffix))
                .map(|known| &*known.content_type),
            Rules::Table(table) => table.look_up(path),
        };
        content_type.filter(|content_type| !content_type.is_empty())
    }

    fn assigned<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> MimeTypes {
        let pairs: Vec<_> = pairs.collect();
        let rules = if pairs.len() < TABLE_FROM {
            let owned = |text: &str| Box::<[u8]>::from(text.as_bytes());
            Rules::Ordered(
                pairs
                    .iter()
                    .map(|(key, found)| SuffixType {
                        suffix: owned(key),
                        content_type: owned(found),
                    })
                    .collect(),
            )
        } else {
            Rules::Table(Rc::new(TypeTable::new(pairs.into_iter())))
        };
        MimeTypes { rules }
    }
}

/// Content types by key in lower case.
#[derive(Debug, Default)]
struct TypeTable {
    by_key: HashMap<Box<[u8]>, Box<[u8]>, foldhash::fast::RandomState>,
    /// The type of the key `""`, which matches all other files.
    rest: Option<Box<[u8]>>,
    /// Whether a key does not begin with a dot: it is a file name, or an extension without its dot.
    has_words: bool,
    /// The length of the longest key. Longer parts of a name need no look-up.
    key_bytes_max: usize,
}

impl TypeTable {
    fn new<'a>(pairs: impl Iterator<Item = (&'a str, &'a str)>) -> TypeTable {
        let mut table = TypeTable::default();
        for (key, found) in pairs {
            if key.is_empty() {
                table.rest.get_or_insert_with(|| found.as_bytes().into());
                continue;
            }
            table.has_words |= !key.starts_with('.');
            table.key_bytes_max = table.key_bytes_max.max(key.len());
            let key = key.to_ascii_lowercase().into_bytes().into_boxed_slice();
            // As in lighttpd, the first of several keys that differ only in letter case counts.
            table
                .by_key
                .entry(key)
                .or_insert_with(|| found.as_bytes().into());
        }
        table
    }

    fn look_up(&self, path: &[u8]) -> Option<&[u8]> {
        let start = memchr::memrchr(b'/', path).map_or(0, |slash| slash + 1);
        let name = path.get(start..).unwrap_or_default();
        // A file name has 255 bytes at most (NAME_MAX). Of a longer text only the end is compared.
        let name = &name[name.len().saturating_sub(NAME_BYTES_MAX)..];
        let mut lower = [0; NAME_BYTES_MAX];
        let lower = &mut lower[..name.len()];
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        let lower = &*lower;
        let extensions = memchr::memchr_iter(b'.', lower).filter(|dot| *dot > 0);
        self.get(lower)
            .or_else(|| {
                extensions
                    .into_iter()
                    .find_map(|dot| self.extension(&lower[dot..]))
            })
            .or(self.rest.as_deref())
    }

    /// The type of `.ext`. The configuration may write its key as `ext`, too.
    fn extension(&self, extension: &[u8]) -> Option<&[u8]> {
        let word = extension.get(1..).unwrap_or_default();
        self.get(extension).or_else(|| {
            let may_be_there = self.has_words && !word.is_empty() && word.first() != Some(&b'.');
            may_be_there.then(|| self.get(word)).flatten()
        })
    }

    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        if key.len() > self.key_bytes_max {
            return None;
        }
        self.by_key.get(key).map(|found| &**found)
    }
}

/// The name that RFC 9239 has given to `application/javascript`, as lighttpd sends it, too.
fn current_name(content_type: &str) -> &str {
    match content_type.eq_ignore_ascii_case("application/javascript") {
        true => "text/javascript",
        false => content_type,
    }
}

fn ends_with(path: &[u8], suffix: &[u8]) -> bool {
    let start = path.len().checked_sub(suffix.len());
    start
        .and_then(|start| path.get(start..))
        .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
}

const ASSIGN: &str = "mimetype.assign";

/// With this many entries `mimetype.assign` is a table, as in lighttpd.
const TABLE_FROM: usize = 16;

/// The longest file name that Linux allows.
const NAME_BYTES_MAX: usize = 255;

static BUILT_IN: LazyLock<TypeTable> =
    LazyLock::new(|| TypeTable::new(BUILT_IN_TYPES.iter().copied()));

/// Common types of the web, from IANA's registry and the MIME Sniffing standard. Types that lighttpd 1.4.86
/// has, too, have the same charset in the same spelling. Other text gets UTF-8, but not HTML and XML: they
/// can name their own encoding, which a charset here would override.
pub static BUILT_IN_TYPES: &[(&str, &str)] = &[
    // Pages, styles and scripts.
    (".html", "text/html"),
    (".htm", "text/html"),
    (".xhtml", "application/xhtml+xml"),
    (".xht", "application/xhtml+xml"),
    (".css", "text/css;charset=utf-8"),
    (".js", "text/javascript"),
    (".mjs", "text/javascript"),
    (".cjs", "text/javascript"),
    (".json", "application/json"),
    (".map", "application/json"),
    (".jsonld", "application/ld+json"),
    (".geojson", "application/geo+json"),
    (".webmanifest", "application/manifest+json"),
    (".wasm", "application/wasm"),
    (".xml", "text/xml"),
    (".xsl", "text/xml"),
    (".xsd", "text/xml"),
    (".rss", "application/rss+xml"),
    (".atom", "application/atom+xml"),
    (".vtt", "text/vtt;charset=utf-8"),
    (".appcache", "text/cache-manifest;charset=utf-8"),
    // Text.
    (".txt", "text/plain;charset=utf-8"),
    (".text", "text/plain;charset=utf-8"),
    (".log", "text/plain"),
    (".conf", "text/plain"),
    (".diff", "text/x-diff;charset=utf-8"),
    (".patch", "text/x-diff;charset=utf-8"),
    (".c", "text/plain;charset=utf-8"),
    (".h", "text/plain;charset=utf-8"),
    (".rs", "text/plain;charset=utf-8"),
    (".toml", "application/toml"),
    (".yaml", "application/yaml"),
    (".yml", "application/yaml"),
    (".md", "text/markdown;charset=utf-8"),
    (".markdown", "text/markdown;charset=utf-8"),
    (".csv", "text/csv"),
    (".tsv", "text/tab-separated-values;charset=utf-8"),
    (".ics", "text/calendar"),
    (".vcf", "text/vcard;charset=utf-8"),
    ("readme", "text/plain;charset=utf-8"),
    ("license", "text/plain;charset=utf-8"),
    ("copying", "text/plain;charset=utf-8"),
    ("changelog", "text/plain;charset=utf-8"),
    ("md5sums", "text/plain;charset=utf-8"),
    ("sha1sums", "text/plain;charset=utf-8"),
    ("sha256sums", "text/plain;charset=utf-8"),
    ("sha512sums", "text/plain;charset=utf-8"),
    (".md5", "text/plain;charset=utf-8"),
    (".sha1", "text/plain;charset=utf-8"),
    (".sha256", "text/plain;charset=utf-8"),
    (".sha512", "text/plain;charset=utf-8"),
    (".ttl", "text/turtle;charset=utf-8"),
    (".rdf", "application/rdf+xml"),
    (".kml", "application/vnd.google-earth.kml+xml"),
    (".kmz", "application/vnd.google-earth.kmz"),
    // Images.
    (".png", "image/png"),
    (".apng", "image/apng"),
    (".jpg", "image/jpeg"),
    (".jpeg", "image/jpeg"),
    (".jpe", "image/jpeg"),
    (".gif", "image/gif"),
    (".webp", "image/webp"),
    (".avif", "image/avif"),
    (".heic", "image/heic"),
    (".heif", "image/heif"),
    (".jxl", "image/jxl"),
    (".svg", "image/svg+xml"),
    (".svgz", "image/svg+xml"),
    (".ico", "image/x-icon"),
    (".cur", "image/x-icon"),
    (".bmp", "image/bmp"),
    (".tif", "image/tiff"),
    (".tiff", "image/tiff"),
    // Fonts.
    (".woff2", "font/woff2"),
    (".woff", "font/woff"),
    (".ttf", "font/ttf"),
    (".otf", "font/otf"),
    (".ttc", "font/collection"),
    (".eot", "application/vnd.ms-fontobject"),
    // Sound and video.
    (".mp3", "audio/mpeg"),
    (".m4a", "audio/mp4"),
    (".aac", "audio/aac"),
    (".flac", "audio/flac"),
    (".oga", "audio/ogg"),
    (".ogg", "audio/ogg"),
    (".opus", "audio/opus"),
    (".wav", "audio/wav"),
    (".weba", "audio/webm"),
    (".mka", "audio/matroska"),
    (".mid", "audio/midi"),
    (".midi", "audio/midi"),
    (".mp4", "video/mp4"),
    (".m4v", "video/mp4"),
    (".webm", "video/webm"),
    (".ogv", "video/ogg"),
    (".mpeg", "video/mpeg"),
    (".mpg", "video/mpeg"),
    (".mov", "video/quicktime"),
    (".mkv", "video/matroska"),
    (".avi", "video/x-msvideo"),
    (".wmv", "video/x-ms-wmv"),
    (".3gp", "video/3gpp"),
    (".ts", "video/mp2t"),
    (".m2ts", "video/mp2t"),
    (".m4s", "video/iso.segment"),
    (".flv", "video/x-flv"),
    (".m3u", "audio/mpegurl"),
    (".m3u8", "application/vnd.apple.mpegurl"),
    (".mpd", "application/dash+xml"),
    (".glb", "model/gltf-binary"),
    (".gltf", "model/gltf+json"),
    (".stl", "model/stl"),
    // Documents.
    (".pdf", "application/pdf"),
    (".ps", "application/postscript"),
    (".eps", "application/postscript"),
    (".rtf", "application/rtf"),
    (".epub", "application/epub+zip"),
    (".doc", "application/msword"),
    (
        ".docx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ),
    (".xls", "application/vnd.ms-excel"),
    (
        ".xlsx",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ),
    (".ppt", "application/vnd.ms-powerpoint"),
    (
        ".pptx",
        "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ),
    (".odt", "application/vnd.oasis.opendocument.text"),
    (".ods", "application/vnd.oasis.opendocument.spreadsheet"),
    (".odp", "application/vnd.oasis.opendocument.presentation"),
    // Archives and downloads.
    (".zip", "application/zip"),
    (".gz", "application/gzip"),
    (".tgz", "application/gzip"),
    (".bz2", "application/x-bzip2"),
    (".tbz", "application/x-bzip2"),
    (".xz", "application/x-xz"),
    (".zst", "application/zstd"),
    (".br", "application/x-brotli"),
    (".tar", "application/x-tar"),
    (".7z", "application/x-7z-compressed"),
    (".rar", "application/vnd.rar"),
    (".jar", "application/java-archive"),
    (".deb", "application/vnd.debian.binary-package"),
    (".rpm", "application/x-rpm"),
    (".apk", "application/vnd.android.package-archive"),
    (".dmg", "application/x-apple-diskimage"),
    (".iso", "application/x-iso9660-image"),
    (".torrent", "application/x-bittorrent"),
    (".meta4", "application/metalink4+xml"),
    (".metalink", "application/metalink+xml"),
    (".zsync", "application/x-zsync"),
    (".sqlite", "application/vnd.sqlite3"),
    (".bin", "application/octet-stream"),
    (".exe", "application/octet-stream"),
    (".img", "application/octet-stream"),
    (".asc", "application/pgp-signature"),
    (".sig", "application/pgp-signature"),
    (".crt", "application/x-x509-ca-cert"),
    (".pem", "application/x-pem-file"),
    (".crl", "application/pkix-crl"),
];

#[cfg(test)]
mod tests {
    use petrel_config::{LoadOptions, Schema, Shell, parse_str};

    use super::*;
    use crate::settings::directives::DIRECTIVES;

    fn built_in() -> MimeTypes {
        MimeTypes {
            rules: Rules::BuiltIn,
        }
    }

    /// A table with `pairs`, made long enough by keys that match nothing.
    fn table(pairs: &[(&'static str, &'static str)]) -> MimeTypes {
        const NOTHING: [&str; TABLE_FROM] = [
            ".n0", ".n1", ".n2", ".n3", ".n4", ".n5", ".n6", ".n7", ".n8", ".n9", ".na", ".nb",
            ".nc", ".nd", ".ne", ".nf",
        ];
        let filler = NOTHING.iter().map(|key| (*key, "x/nothing"));
        MimeTypes::assigned(pairs.iter().copied().chain(filler))
    }

    fn found(types: &MimeTypes, path: &str) -> Option<String> {
        let content_type = types.content_type_of(path.as_bytes())?;
        Some(String::from_utf8_lossy(content_type).into_owned())
    }

    fn expect(types: &MimeTypes, cases: &[(&str, Option<&str>)]) {
        for (path, content_type) in cases {
            assert_eq!(found(types, path).as_deref(), *content_type, "{path}");
        }
    }

    #[test]
    fn the_built_in_table_knows_the_web() {
        expect(
            &built_in(),
            &[
                ("/srv/index.html", Some("text/html")),
                ("/srv/INDEX.HTML", Some("text/html")),
                ("app.mjs", Some("text/javascript")),
                ("app.min.js", Some("text/javascript")),
                ("a.tar.gz", Some("application/gzip")),
                ("font.woff2", Some("font/woff2")),
                ("README", Some("text/plain;charset=utf-8")),
                ("/x.html/README.md", Some("text/markdown;charset=utf-8")),
                ("/x.html/noext", None),
                ("file.", None),
                ("", None),
                ("/", None),
            ],
        );
    }

    #[test]
    fn built_in_keys_are_lower_case_and_unique() {
        assert_eq!(BUILT_IN.by_key.len(), BUILT_IN_TYPES.len());
        for (key, content_type) in BUILT_IN_TYPES {
            assert_eq!(*key, key.to_ascii_lowercase());
            assert!(content_type.contains('/') && content_type.is_ascii());
        }
    }

    // The expected values were observed on lighttpd 1.4.69 with the same lists.

    #[test]
    fn a_short_list_goes_by_its_order() {
        let types = [
            (".gz", "a/gz"),
            (".tar.gz", "a/targz"),
            ("README", "a/readme"),
        ];
        expect(
            &MimeTypes::assigned(types.into_iter()),
            &[
                ("a.tar.gz", Some("a/gz")),
                ("foo.TAR.GZ", Some("a/gz")),
                ("xREADME", Some("a/readme")),
                ("nodotgz", None),
                ("gz", None),
            ],
        );
        let types = [("", "x/d"), (".gz", "a/gz")];
        expect(
            &MimeTypes::assigned(types.into_iter()),
            &[("b.gz", Some("x/d"))],
        );
    }

    #[test]
    fn a_long_list_goes_by_the_longest_extension() {
        let types = [
            ("", "x/d"),
            (".gz", "a/gz"),
            (".tar.gz", "a/targz"),
            ("gz", "nodot/gz"),
            ("html", "nodot/html"),
            ("README", "a/readme"),
        ];
        expect(
            &table(&types),
            &[
                ("a.tar.gz", Some("a/targz")),
                ("/b.d/a.b.TAR.gz", Some("a/targz")),
                ("b.gz", Some("a/gz")),
                (".gz", Some("a/gz")),
                ("README", Some("a/readme")),
                ("xREADME", Some("x/d")),
                ("x.html", Some("nodot/html")),
                ("htmlx", Some("x/d")),
                ("nodotgz", Some("x/d")),
                ("x..html", Some("nodot/html")),
            ],
        );
    }

    #[test]
    fn an_empty_list_knows_nothing() {
        assert_eq!(found(&MimeTypes::assigned([].into_iter()), "x.html"), None);
        assert_eq!(found(&table(&[(".html", "")]), "x.html"), None);
    }

    #[test]
    fn settings_share_the_table_of_their_block() {
        let schema = Schema::new(&[DIRECTIVES]);
        let text = r#"
            mimetype.assign = ( ".a" => "x/outer" )
            $HTTP["host"] == "a" { mimetype.assign = ( ".a" => "x/inner" ) }
            $HTTP["host"] == "b" { server.name = "b" }
        "#;
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let config = parse_str("test", text, &schema, &options).expect("valid configuration");
        let cache = MimeCache::default();
        let types = |block: u32| {
            let blocks = [BlockId::GLOBAL, BlockId(block)];
            cache.types(&Values::merge(&config, &schema, blocks.into_iter()))
        };
        assert!(Rc::ptr_eq(&types(0), &types(2)));
        assert_eq!(found(&types(0), "f.a").as_deref(), Some("x/outer"));
        assert_eq!(found(&types(1), "f.a").as_deref(), Some("x/inner"));
    }

    #[test]
    fn names_beyond_the_longest_are_told_by_their_end() {
        let path = format!("{}.html", "x".repeat(10_000));
        assert_eq!(found(&built_in(), &path).as_deref(), Some("text/html"));
        let dots = ".".repeat(10_000);
        assert_eq!(found(&table(&[("", "x/d")]), &dots).as_deref(), Some("x/d"));
    }
}
