//! `deflate.params` and the older directives for single parameters: the parameters of each coding.

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Config, Diagnostic, Element};
use petrel_engine::proto::accept::Coding;
use petrel_engine::settings::Values;

/// The parameters of all codings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CodingParams {
    pub(crate) zlib: ZlibParams,
    pub(crate) brotli: BrotliParams,
    pub(crate) zstd: ZstdParams,
}

/// The parameters of gzip and deflate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ZlibParams {
    /// 1 to 9
    pub(crate) level: i32,
    /// 9 to 15
    pub(crate) window_bits: i32,
    /// 1 to 9
    pub(crate) mem_level: i32,
    /// zlib's numbers, 0 to 4
    pub(crate) strategy: i32,
}

/// The parameters of brotli.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BrotliParams {
    /// 0 to 11
    pub(crate) quality: i32,
    /// 10 to 24
    pub(crate) window_bits: i32,
    /// 0 generic, 1 text, 2 font
    pub(crate) mode: i32,
}

/// The parameters of zstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ZstdParams {
    /// 1 to 22
    pub(crate) level: i32,
    /// zstd's numbers, 1 to 9
    pub(crate) strategy: Option<i32>,
    /// 10 to 23: RFC 9659 lets clients accept windows up to 8 MiB only.
    pub(crate) window_log: Option<i32>,
}

impl Default for ZlibParams {
    fn default() -> Self {
        ZlibParams {
            level: 6,
            window_bits: 15,
            mem_level: 8,
            strategy: 0,
        }
    }
}

impl Default for BrotliParams {
    fn default() -> Self {
        BrotliParams {
            quality: 5,
            window_bits: 22,
            mode: 0,
        }
    }
}

impl Default for ZstdParams {
    fn default() -> Self {
        ZstdParams {
            level: 3,
            strategy: None,
            window_log: None,
        }
    }
}

impl CodingParams {
    /// Whether a step of 64 KiB keeps a worker busy for too long: 10 to 200 ms from these settings on,
    /// compared with 1 ms for the defaults.
    pub(crate) fn is_slow(&self, coding: Coding) -> bool {
        match coding {
            Coding::Brotli => self.brotli.quality >= 9,
            Coding::Zstd => self.zstd.level >= 13 || self.zstd.strategy > Some(6),
            Coding::Gzip | Coding::Deflate | Coding::Identity => false,
        }
    }

    /// The longest body that is compressed at once: [`AT_ONCE_BYTES_MAX`], or what takes about as long if the
    /// effort is higher.
    pub(crate) fn at_once_bytes_max(&self, coding: Coding) -> u64 {
        let divisor = match coding {
            _ if self.is_slow(coding) => 32,
            Coding::Brotli if self.brotli.quality >= 7 => 4,
            _ => 1,
        };
        AT_ONCE_BYTES_MAX / divisor
    }

    /// Reads the parameters from `values`: deflate.params takes precedence over the directives for single
    /// parameters.
    pub(crate) fn new(values: &Values<'_>) -> Result<CodingParams, Diagnostic> {
        let mut params = CodingParams::default();
        if let Some(level) = in_range(values, "deflate.compression-level", 1, 9)? {
            params.zlib.level = level;
            params.brotli.quality = level;
            params.zstd.level = level;
        }
        if let Some(level) = in_range(values, "deflate.mem-level", 1, 9)? {
            params.zlib.mem_level = level;
        }
        if let Some(bits) = in_range(values, "deflate.window-size", 1, 15)? {
            // zlib has no smaller window.
            params.zlib.window_bits = bits.max(9);
        }
        for element in values.array("deflate.params").into_iter().flatten() {
            params.set(element)?;
        }
        Ok(params)
    }

    fn set(&mut self, element: &Element) -> Result<(), Diagnostic> {
        let key = element.key().unwrap_or_default();
        let Some(known) = KNOWN.iter().find(|known| known.name == key) else {
            // The start-up check warns about it.
            return Ok(());
        };
        let value = known.read(element)?;
        match known.sets {
            Sets::ZlibLevel => self.zlib.level = value,
            Sets::ZlibWindowBits => self.zlib.window_bits = value,
            Sets::ZlibMemLevel => self.zlib.mem_level = value,
            Sets::ZlibStrategy => self.zlib.strategy = value,
            Sets::BrotliQuality => self.brotli.quality = value,
            Sets::BrotliWindowBits => self.brotli.window_bits = value,
            Sets::BrotliMode => self.brotli.mode = value,
            Sets::ZstdLevel => self.zstd.level = value,
            Sets::ZstdStrategy => self.zstd.strategy = Some(value),
            Sets::ZstdWindowLog => self.zstd.window_log = Some(value),
            Sets::Nothing => {}
        }
        Ok(())
    }
}

/// The value of `name`, if it is set; an error if it is out of range.
fn in_range(
    values: &Values<'_>,
    name: &str,
    min: i64,
    max: i64,
) -> Result<Option<i32>, Diagnostic> {
    match values.integer(name) {
        None => Ok(None),
        // lighttpd's way to ask for the library's default.
        Some(-1) if name == "deflate.compression-level" => Ok(None),
        Some(number) if (min..=max).contains(&number) => Ok(i32::try_from(number).ok()),
        Some(number) => Err(values
            .error(name, format!("{name} cannot be {number}"))
            .with_hint(format!("it is a number from {min} to {max}"))),
    }
}

/// Warns about unknown parameters, which have no effect.
pub(super) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    entries
        .filter(|entry| entry.name == "deflate.params")
        .flat_map(|entry| entry.value.as_array())
        .flatten()
        .filter_map(about)
        .collect()
}

/// The warning about one parameter.
fn about(element: &Element) -> Option<Diagnostic> {
    let key = element.key().unwrap_or_default();
    if KNOWN.iter().any(|known| known.name == key) {
        return None;
    }
    let span = element.key.as_ref().map_or(element.span, |key| key.span);
    let warning = Diagnostic::warning(format!("deflate.params has no parameter {key:?}"), span);
    let names = || KNOWN.iter().map(|known| known.name);
    Some(match nearest(key, names()).first() {
        Some(near) => warning.with_hint(format!("did you mean \"{near}\"?")),
        None => {
            let names: Vec<_> = names().collect();
            warning.with_hint(format!("there are {}", names.join(", ")))
        }
    })
}

/// A key of `deflate.params`.
struct KnownParameter {
    name: &'static str,
    sets: Sets,
    min: i32,
    max: i32,
    /// Names that stand for numbers.
    words: &'static [(&'static str, i32)],
}

#[derive(Clone, Copy)]
enum Sets {
    ZlibLevel,
    ZlibWindowBits,
    ZlibMemLevel,
    ZlibStrategy,
    BrotliQuality,
    BrotliWindowBits,
    BrotliMode,
    ZstdLevel,
    ZstdStrategy,
    ZstdWindowLog,
    /// Nothing: a parameter of a coding that is not built in. The start-up check warns about that coding.
    Nothing,
}

impl KnownParameter {
    fn read(&self, element: &Element) -> Result<i32, Diagnostic> {
        let word = element.value.as_str().unwrap_or_default();
        let number = match self
            .words
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(word))
        {
            Some((_, number)) => Some(i64::from(*number)),
            None => element.value.as_integer(),
        };
        let (min, max) = (i64::from(self.min), i64::from(self.max));
        let in_range = number.filter(|number| (min..=max).contains(number));
        in_range
            .and_then(|number| i32::try_from(number).ok())
            .ok_or_else(|| {
                let words: Vec<_> = self
                    .words
                    .iter()
                    .map(|(word, _)| format!(", \"{word}\""))
                    .collect();
                Diagnostic::error(
                    format!("{} cannot have this value", self.name),
                    element.span,
                )
                .with_hint(format!(
                    "it is a number from {min} to {max}{}",
                    words.concat()
                ))
            })
    }
}

const ZLIB_STRATEGIES: &[(&str, i32)] = &[
    ("Z_DEFAULT_STRATEGY", 0),
    ("Z_FILTERED", 1),
    ("Z_HUFFMAN_ONLY", 2),
    ("Z_RLE", 3),
    ("Z_FIXED", 4),
];

const BROTLI_MODES: &[(&str, i32)] = &[
    ("BROTLI_MODE_GENERIC", 0),
    ("BROTLI_MODE_TEXT", 1),
    ("BROTLI_MODE_FONT", 2),
];

const ZSTD_STRATEGIES: &[(&str, i32)] = &[
    ("ZSTD_fast", 1),
    ("ZSTD_dfast", 2),
    ("ZSTD_greedy", 3),
    ("ZSTD_lazy", 4),
    ("ZSTD_lazy2", 5),
    ("ZSTD_btlazy2", 6),
    ("ZSTD_btopt", 7),
    ("ZSTD_btultra", 8),
    ("ZSTD_btultra2", 9),
];

const fn known(name: &'static str, sets: Sets, min: i32, max: i32) -> KnownParameter {
    KnownParameter {
        name,
        sets,
        min,
        max,
        words: &[],
    }
}

static KNOWN: &[KnownParameter] = &[
    known("gzip.level", Sets::ZlibLevel, 1, 9),
    known("gzip.windowBits", Sets::ZlibWindowBits, 9, 15),
    known("gzip.memLevel", Sets::ZlibMemLevel, 1, 9),
    KnownParameter {
        words: ZLIB_STRATEGIES,
        ..known("gzip.strategy", Sets::ZlibStrategy, 0, 4)
    },
    known("BROTLI_PARAM_QUALITY", Sets::BrotliQuality, 0, 11),
    known("BROTLI_PARAM_LGWIN", Sets::BrotliWindowBits, 10, 24),
    KnownParameter {
        words: BROTLI_MODES,
        ..known("BROTLI_PARAM_MODE", Sets::BrotliMode, 0, 2)
    },
    known("ZSTD_c_compressionLevel", Sets::ZstdLevel, 1, 22),
    KnownParameter {
        words: ZSTD_STRATEGIES,
        ..known("ZSTD_c_strategy", Sets::ZstdStrategy, 1, 9)
    },
    known("ZSTD_c_windowLog", Sets::ZstdWindowLog, 10, 23),
    known("bzip2.blockSize100k", Sets::Nothing, 1, 9),
];

/// Bodies up to this size are compressed at once, so that the answer has a Content-Length and needs no state.
/// It takes one to three milliseconds.
const AT_ONCE_BYTES_MAX: u64 = 64 * 1024;
