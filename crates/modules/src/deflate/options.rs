//! The directives of mod_deflate as typed options, read once for each set of merged settings.

use std::sync::Arc;

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Config, Diagnostic, Span};
use petrel_engine::log::LogRegistry;
use petrel_engine::proto::accept::Coding;
use petrel_engine::settings::Values;

use super::params::CodingParams;
use crate::cache_dir::CacheDir;
use crate::content_types;

/// What is compressed, and how.
pub(super) struct DeflateOptions {
    /// `deflate.mimetypes`
    pub(crate) mimetypes: Vec<Vec<u8>>,
    /// `deflate.allowed-encodings`, followed by `identity`.
    pub(crate) offered: Vec<Coding>,
    /// `deflate.min-compress-size`; answers up to this length are not compressed.
    pub(crate) bytes_min: u64,
    /// `deflate.max-compress-size`
    pub(crate) bytes_max: Option<u64>,
    /// `deflate.work-block-size`, in bytes.
    pub(crate) turn_bytes: u64,
    /// `deflate.output-buffer-size`
    pub(crate) piece_bytes: usize,
    /// `deflate.sync-flush`
    pub(crate) flushes: bool,
    /// `deflate.max-loadavg`
    pub(crate) max_loadavg: Option<f64>,
    /// `deflate.cache-dir`, when it is open.
    pub(crate) cache_dir: Option<Arc<CacheDir>>,
    /// `deflate.params` and its siblings.
    pub(crate) params: CodingParams,
    /// `deflate.debug`
    pub(crate) debug: bool,
    enabled: bool,
    cache_path: Option<String>,
}

impl DeflateOptions {
    pub(crate) fn new(values: &Values<'_>) -> Result<DeflateOptions, Diagnostic> {
        let kbytes = |name: &str, default: u32| u64::from(values.unsigned(name, default)) * 1024;
        let flushes = values.bool("deflate.sync-flush").unwrap_or(false);
        let piece_bytes = match values.unsigned("deflate.output-buffer-size", 0) as usize {
            0 => PIECE_BYTES,
            _ if flushes => PIECE_BYTES,
            bytes => bytes.max(PIECE_BYTES_MIN),
        };
        Ok(DeflateOptions {
            mimetypes: mimetypes(values),
            offered: offered(values),
            bytes_min: u64::from(values.unsigned("deflate.min-compress-size", 256)),
            bytes_max: Some(kbytes("deflate.max-compress-size", 131_072)).filter(|max| *max > 0),
            turn_bytes: kbytes("deflate.work-block-size", 2048).max(1024),
            piece_bytes,
            flushes,
            max_loadavg: max_loadavg(values)?,
            cache_dir: None,
            params: CodingParams::new(values)?,
            debug: values.bool("deflate.debug").unwrap_or(false),
            enabled: values.bool("deflate.enabled").unwrap_or(true),
            cache_path: cache_path(values)?,
        })
    }

    /// Whether any answer can be compressed.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled && !self.mimetypes.is_empty() && self.offered.len() > 1
    }

    /// Opens `deflate.cache-dir`. If that fails, compressed files are kept in memory only.
    pub(crate) fn open_cache_dir(&mut self, logs: &LogRegistry) {
        let Some(path) = &self.cache_path else { return };
        match CacheDir::open(path) {
            Ok(directory) => self.cache_dir = Some(Arc::new(directory)),
            Err(error) => logs.error(format_args!(
                "deflate.cache-dir {path:?} is not used: {error}"
            )),
        }
    }
}

/// Warns about codings that are unknown or not built in.
pub(super) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let lists = entries.filter(|entry| LISTS.contains(&entry.name.as_str()));
    lists
        .flat_map(|entry| entry.value.as_array())
        .flatten()
        .filter_map(|element| about(element.value.as_str()?, element.span))
        .collect()
}

/// The warning about one coding.
fn about(name: &str, span: Span) -> Option<Diagnostic> {
    if is_bzip2(name) {
        let message = "bzip2 is not built in: answers are never compressed with it";
        let warning = Diagnostic::warning(message, span);
        return Some(warning.with_hint("no browser asks for it; use \"br\", \"zstd\" or \"gzip\""));
    }
    if coding(name).is_some() {
        return None;
    }
    const KNOWN: [&str; 6] = ["br", "brotli", "zstd", "gzip", "x-gzip", "deflate"];
    let hint = match nearest(name, KNOWN.into_iter()).first() {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "there are \"br\", \"zstd\", \"gzip\" and \"deflate\"".to_owned(),
    };
    let message = format!("{name:?} is no content coding to compress with");
    Some(Diagnostic::warning(message, span).with_hint(hint))
}

/// The prefixes of content types; JavaScript by one of its names stands for both.
fn mimetypes(values: &Values<'_>) -> Vec<Vec<u8>> {
    let listed = values.strings("deflate.mimetypes");
    let others = listed
        .iter()
        .filter_map(|name| content_types::other_name(name));
    let all = listed.iter().copied().chain(others);
    all.map(|name| name.as_bytes().to_vec()).collect()
}

/// The codings to use. Names that the start-up check warns about are skipped.
fn offered(values: &Values<'_>) -> Vec<Coding> {
    let name = "deflate.allowed-encodings";
    let Some(list) = values.array(name).filter(|list| !list.is_empty()) else {
        return vec![
            Coding::Brotli,
            Coding::Zstd,
            Coding::Gzip,
            Coding::Deflate,
            Coding::Identity,
        ];
    };
    let mut offered = Vec::new();
    for coding in list
        .iter()
        .filter_map(|element| coding(element.value.as_str()?))
    {
        if !offered.contains(&coding) {
            offered.push(coding);
        }
    }
    offered.push(Coding::Identity);
    offered
}

/// The coding with this `name`, if answers can be compressed with it.
fn coding(name: &str) -> Option<Coding> {
    match Coding::from_name(name.as_bytes()) {
        None if name.eq_ignore_ascii_case("brotli") => Some(Coding::Brotli),
        coding => coding.filter(|coding| *coding != Coding::Identity),
    }
}

fn max_loadavg(values: &Values<'_>) -> Result<Option<f64>, Diagnostic> {
    let name = "deflate.max-loadavg";
    let Some(text) = values.string(name) else {
        return Ok(None);
    };
    match text.trim().parse::<f64>() {
        Ok(load) if load.is_finite() && load >= 0.0 => Ok(Some(load).filter(|load| *load > 0.0)),
        _ => Err(values
            .error(name, format!("{name}: {text:?} is no load average"))
            .with_hint("it is a number such as \"3.50\"; \"0\" is no limit")),
    }
}

fn cache_path(values: &Values<'_>) -> Result<Option<String>, Diagnostic> {
    let name = "deflate.cache-dir";
    match values.string(name) {
        Some(path) if !path.starts_with('/') => Err(values
            .error(name, format!("{name}: {path:?} is no absolute path"))
            .with_hint(format!(
                "write the whole path, such as \"/var/cache/petrel/{path}\""
            ))),
        path => Ok(path.map(str::to_owned)),
    }
}

fn is_bzip2(text: &str) -> bool {
    text.eq_ignore_ascii_case("bzip2") || text.eq_ignore_ascii_case("x-bzip2")
}

const LISTS: [&str; 3] = [
    "deflate.allowed-encodings",
    "compress.allowed-encodings",
    "deflate.allowed_encodings",
];

/// How many compressed bytes are collected before they are sent; the default of `deflate.output-buffer-size`.
const PIECE_BYTES: usize = 32 * 1024;

/// Smaller pieces cost more in system calls than they save.
const PIECE_BYTES_MIN: usize = 1024;
