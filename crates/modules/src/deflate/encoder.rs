//! An encoder for one stream: bytes in, compressed bytes out.

use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use brotli::enc::backward_references::BrotliEncoderMode;
use petrel_engine::proto::accept::Coding;
use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status, Strategy};
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::params::{BrotliParams, CodingParams, ZlibParams, ZstdParams};

/// A compressor at work. Its output stays in it until it is taken.
pub(super) enum Encoder {
    Zlib(Box<Zlib>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    Zstd(Box<ZstdEncoder<'static, Vec<u8>>>),
}

impl Encoder {
    /// Begins a stream; `length` is that of all its input, if known.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn new(
        coding: Coding,
        params: &CodingParams,
        length: Option<u64>,
    ) -> io::Result<Encoder> {
        Ok(match coding {
            Coding::Gzip | Coding::Identity => {
                Encoder::Zlib(Box::new(Zlib::new(&params.zlib, GZIP)))
            }
            Coding::Deflate => Encoder::Zlib(Box::new(Zlib::new(&params.zlib, ZLIB))),
            Coding::Brotli => Encoder::Brotli(Box::new(brotli_encoder(&params.brotli, length))),
            Coding::Zstd => Encoder::Zstd(Box::new(zstd_encoder(&params.zstd, length)?)),
        })
    }

    /// Compresses `input`.
    ///
    /// # Errors
    /// An error of the library, which has no reason to fail.
    pub(crate) fn write(&mut self, input: &[u8]) -> io::Result<()> {
        match self {
            Encoder::Zlib(zlib) => zlib.run(input, DeflateFlush::NoFlush),
            Encoder::Brotli(brotli) => brotli.write_all(input),
            Encoder::Zstd(zstd) => zstd.write_all(input),
        }
    }

    /// Flushes: all input so far becomes output, at some cost in length.
    ///
    /// # Errors
    /// As [`Encoder::write`].
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match self {
            Encoder::Zlib(zlib) => zlib.run(b"", DeflateFlush::SyncFlush),
            Encoder::Brotli(brotli) => brotli.flush(),
            Encoder::Zstd(zstd) => zstd.flush(),
        }
    }

    /// How many bytes of output can be taken.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Encoder::Zlib(zlib) => zlib.output.len(),
            Encoder::Brotli(brotli) => brotli.get_ref().len(),
            Encoder::Zstd(zstd) => zstd.get_ref().len(),
        }
    }

    /// Takes the output.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        match self {
            Encoder::Zlib(zlib) => std::mem::take(&mut zlib.output),
            Encoder::Brotli(brotli) => std::mem::take(brotli.get_mut()),
            Encoder::Zstd(zstd) => std::mem::take(zstd.get_mut()),
        }
    }

    /// Ends the stream and takes the rest of the output.
    ///
    /// # Errors
    /// As [`Encoder::write`].
    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Encoder::Zlib(mut zlib) => {
                zlib.run(b"", DeflateFlush::Finish)?;
                Ok(zlib.output)
            }
            Encoder::Brotli(brotli) => Ok(brotli.into_inner()),
            Encoder::Zstd(zstd) => zstd.finish(),
        }
    }
}

/// gzip and deflate.
pub(super) struct Zlib {
    stream: Deflate,
    output: Vec<u8>,
}

impl Zlib {
    fn new(params: &ZlibParams, format: i32) -> Zlib {
        let config = DeflateConfig {
            level: params.level,
            window_bits: params.window_bits + format,
            mem_level: params.mem_level,
            strategy: Strategy::try_from(params.strategy).unwrap_or_default(),
            ..DeflateConfig::default()
        };
        Zlib {
            stream: Deflate::new_with_config(config),
            output: Vec::new(),
        }
    }

    fn run(&mut self, mut input: &[u8], flush: DeflateFlush) -> io::Result<()> {
        loop {
            let start = self.output.len();
            self.output.resize(start + ROOM_BYTES, 0);
            let (read, written) = (self.stream.total_in(), self.stream.total_out());
            let room = self.output.get_mut(start..).unwrap_or_default();
            let status = self.stream.compress(input, room, flush);
            let read = usize::try_from(self.stream.total_in() - read).unwrap_or(input.len());
            let written = usize::try_from(self.stream.total_out() - written).unwrap_or(0);
            self.output.truncate(start + written);
            input = input.get(read..).unwrap_or_default();
            match status.map_err(|error| io::Error::other(error.as_str()))? {
                Status::StreamEnd => return Ok(()),
                Status::BufError => return Ok(()),
                // Output that fills the buffer exactly may not be all of it.
                Status::Ok if input.is_empty() && written < ROOM_BYTES => return Ok(()),
                Status::Ok => {}
            }
        }
    }
}

fn brotli_encoder(params: &BrotliParams, length: Option<u64>) -> CompressorWriter<Vec<u8>> {
    let length = length.and_then(|length| usize::try_from(length).ok());
    let params = BrotliEncoderParams {
        quality: params.quality,
        lgwin: window_bits_for(params.window_bits, length),
        // By default the encoder collects up to 256 KiB before it begins, and then keeps the worker busy for
        // all of it.
        lgblock: 16,
        mode: match params.mode {
            1 => BrotliEncoderMode::BROTLI_MODE_TEXT,
            2 => BrotliEncoderMode::BROTLI_MODE_FONT,
            _ => BrotliEncoderMode::BROTLI_MODE_GENERIC,
        },
        size_hint: length.unwrap_or(0),
        ..BrotliEncoderParams::default()
    };
    CompressorWriter::with_params(Vec::new(), ROOM_BYTES, &params)
}

/// The window size: not larger than the input needs, because the encoder allocates and clears memory for it.
/// Nor smaller than 17 for the sake of a short input: below that this encoder uses a hash table of 32 MiB,
/// which takes longer to clear (10 ms) than a page takes to compress.
fn window_bits_for(bits: i32, length: Option<usize>) -> i32 {
    let Some(length) = length else { return bits };
    let needed = (length + 16).next_power_of_two().trailing_zeros();
    i32::try_from(needed).unwrap_or(bits).max(17).min(bits)
}

fn zstd_encoder(
    params: &ZstdParams,
    length: Option<u64>,
) -> io::Result<ZstdEncoder<'static, Vec<u8>>> {
    let mut encoder = ZstdEncoder::new(Vec::new(), params.level)?;
    if let Some(strategy) = params.strategy.and_then(zstd_strategy) {
        encoder.set_parameter(CParameter::Strategy(strategy))?;
    }
    if let Some(bits) = params.window_log.and_then(|bits| u32::try_from(bits).ok()) {
        encoder.set_parameter(CParameter::WindowLog(bits))?;
    } else if params.level > 19 {
        // Levels from 20 on would use windows that are larger than RFC 9659 allows for browsers.
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG_MAX))?;
    }
    encoder.set_pledged_src_size(length)?;
    Ok(encoder)
}

fn zstd_strategy(number: i32) -> Option<zstd::zstd_safe::Strategy> {
    use zstd::zstd_safe::Strategy::*;
    Some(match number {
        1 => ZSTD_fast,
        2 => ZSTD_dfast,
        3 => ZSTD_greedy,
        4 => ZSTD_lazy,
        5 => ZSTD_lazy2,
        6 => ZSTD_btlazy2,
        7 => ZSTD_btopt,
        8 => ZSTD_btultra,
        9 => ZSTD_btultra2,
        _ => return None,
    })
}

/// What zlib wants added to the window bits for each format.
const ZLIB: i32 = 0;
const GZIP: i32 = 16;

/// The size of the buffer for output.
const ROOM_BYTES: usize = 16 * 1024;

/// 8 MiB (RFC 9659).
const WINDOW_LOG_MAX: u32 = 23;

#[cfg(test)]
mod tests {
    use super::super::testing::{decoded, sample};
    use super::*;

    const CODINGS: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

    fn round_trip(coding: Coding, params: &CodingParams, content: &[u8], known: bool) -> usize {
        let length = known.then_some(content.len() as u64);
        let mut encoder = Encoder::new(coding, params, length).expect("begin");
        let mut output = Vec::new();
        for part in content.chunks(10_000) {
            encoder.write(part).expect("write");
            output.extend(encoder.take());
        }
        output.extend(encoder.finish().expect("finish"));
        assert!(
            decoded(coding, &output) == content,
            "{coding:?} {params:?} {}",
            content.len()
        );
        output.len()
    }

    #[test]
    fn what_goes_in_comes_out() {
        for coding in CODINGS {
            for length in [0, 1, 16 * 1024, 200_000] {
                let content = sample(length);
                for known in [true, false] {
                    let compressed = round_trip(coding, &CodingParams::default(), &content, known);
                    assert!(
                        length < 1000 || compressed < length / 2,
                        "{coding:?} {compressed}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_level_and_strategy_is_decodable() {
        let content = sample(50_000);
        let mut params = CodingParams::default();
        for level in 1..=9 {
            (params.zlib.level, params.zlib.mem_level) = (level, level);
            params.zlib.window_bits = 8 + level.clamp(1, 7);
            params.zlib.strategy = level % 5;
            (params.brotli.quality, params.brotli.window_bits) = (level, 10 + level);
            params.brotli.mode = level % 3;
            (params.zstd.level, params.zstd.strategy) = (level, Some(level));
            params.zstd.window_log = Some(10 + level);
            for coding in CODINGS {
                round_trip(coding, &params, &content, level % 2 == 0);
            }
        }
        params.brotli.quality = 11;
        params.zstd = ZstdParams {
            level: 22,
            strategy: None,
            window_log: None,
        };
        round_trip(Coding::Brotli, &params, &content, true);
        round_trip(Coding::Zstd, &params, &content, false);
    }

    #[test]
    fn a_flush_brings_everything_out() {
        for coding in CODINGS {
            let mut encoder = Encoder::new(coding, &CodingParams::default(), None).expect("begin");
            encoder.write(b"data: 1\n\n").expect("write");
            encoder.flush().expect("flush");
            let part = encoder.take();
            assert!(
                super::super::testing::decoded_part(coding, &part).ends_with(b"data: 1\n\n"),
                "{coding:?}"
            );
        }
    }

    #[test]
    fn incompressible_input_is_no_trouble() {
        let mut state = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(100_000)
        .collect();
        for coding in CODINGS {
            round_trip(coding, &CodingParams::default(), &noise, true);
        }
    }
}
