//! mod_deflate: compresses answers for clients that accept it, with gzip, deflate, brotli or zstd.
//!
//! The hook decides from the response head alone (type, length, coding), negotiates a coding, and takes the
//! cheapest way: send a compressed file that is kept (in memory or below `deflate.cache-dir`), compress a
//! small body at once, compress a file once and keep the result, or compress while sending. None of these
//! keeps a worker busy for more than a few milliseconds ([`body`]). Every answer that could have been
//! compressed has `Vary: Accept-Encoding`. A small body that does not become smaller is sent as it is.
//!
//! Each coding has an entity tag of its own: `"abc"` becomes `"abc-gzip"`, as in lighttpd, and a client that
//! names it in If-None-Match gets a 304 from here. Ranges refer to the uncompressed file: a 206 is never
//! compressed, and a compressed answer offers no ranges. Files that were compressed beforehand are sent by
//! mod_staticfile; an answer that has a Content-Encoding is left unchanged.

mod body;
mod decide;
mod encoder;
mod fields;
mod keeping;
mod kept;
mod load;
mod making;
mod options;
mod params;
mod stored;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::config::{Config, Diagnostic, DirectiveSpec};
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase, Purpose};
use petrel_engine::proto::accept::Coding;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::directives::Effect::{Renamed, Works};

use decide::Decision;
use kept::{CompressedKey, OfWorker};
use options::DeflateOptions;
use stored::StoredFile;

/// mod_deflate.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_deflate",
    doc: "Compresses answers (gzip, deflate, brotli, zstd) for clients that accept it.",
    loaded: Loaded::Listed,
    directives: DIRECTIVES,
    configure,
};

static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "deflate.mimetypes", List, Request, "()", Works,
        "Prefixes of the content types to compress. text/javascript and application/javascript are one. Types whose content is compressed already (images other than SVG and bitmaps, audio, video, archives, WOFF) never are.";
    "deflate.allowed-encodings", List, Request, "( \"br\", \"zstd\", \"gzip\", \"deflate\" )", Works,
        "Codings to use, in order of preference among those that a client accepts equally. bzip2 is not built in.";
    "deflate.max-compress-size", Int, Request, "131072", Works,
        "The largest answer of known length that is compressed, in kilobytes. 0: no limit.";
    "deflate.min-compress-size", Short, Request, "256", Works,
        "Answers of known length are not compressed up to this number of bytes.";
    "deflate.compression-level", Int, Request, "gzip and deflate 6, brotli 5, zstd 3", Works,
        "The effort, 1 to 9, of all codings that are not in deflate.params.";
    "deflate.output-buffer-size", Short, Request, "0", Works,
        "How many bytes of output are collected before they are sent. 0: 32 KiB.";
    "deflate.work-block-size", Short, Request, "2048", Works,
        "How many kilobytes are compressed before other connections have their turn. A few milliseconds of work also end a turn.";
    "deflate.max-loadavg", String, Request, "0", Works,
        "The load average above which no further answer is compressed. 0: no limit.";
    "deflate.cache-dir", String, Request, "unset", Works,
        "A directory in which compressed static files are kept. The server never deletes files in it.";
    "deflate.params", Map, Request, "()", Works,
        "Parameters by coding: gzip.level, gzip.windowBits, gzip.memLevel, gzip.strategy, BROTLI_PARAM_QUALITY, BROTLI_PARAM_LGWIN, BROTLI_PARAM_MODE, ZSTD_c_compressionLevel, ZSTD_c_strategy, ZSTD_c_windowLog.";
    "compress.filetype", List, Request, "()", Renamed("deflate.mimetypes"),
        "Old name of deflate.mimetypes.";
    "compress.allowed-encodings", List, Request, "()", Renamed("deflate.allowed-encodings"),
        "Old name of deflate.allowed-encodings.";
    "compress.cache-dir", String, Request, "unset", Renamed("deflate.cache-dir"),
        "Old name of deflate.cache-dir.";
    "compress.max-filesize", Int, Request, "131072", Renamed("deflate.max-compress-size"),
        "Old name of deflate.max-compress-size.";
    "compress.max-loadavg", String, Request, "0", Renamed("deflate.max-loadavg"),
        "Old name of deflate.max-loadavg.";
    "deflate.enabled", Bool, Request, "enable", Works,
        "Compress at all (lighttpd 1.5).";
    "deflate.allowed_encodings", List, Request, "()", Renamed("deflate.allowed-encodings"),
        "The spelling of lighttpd 1.5.";
    "deflate.mem-level", Short, Request, "8", Works,
        "Memory of gzip and deflate, 1 to 9 (lighttpd 1.5); gzip.memLevel in deflate.params takes precedence.";
    "deflate.window-size", Short, Request, "15", Works,
        "Window of gzip and deflate in bits, 9 to 15 (lighttpd 1.5); gzip.windowBits in deflate.params takes precedence.";
    "deflate.sync-flush", Bool, Request, "disable", Works,
        "Send the compressed bytes after every piece of the answer (lighttpd 1.5). By default they are sent when the backend or script pauses.";
    "deflate.debug", Bool, Request, "disable", Works,
        "Log for every answer why it was or was not compressed (lighttpd 1.5).";
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let mut options = DeflateOptions::new(configure.values)?;
    if !options.is_enabled() {
        return Ok(());
    }
    if configure.purpose == Purpose::Serve {
        options.open_cache_dir(configure.logs);
    }
    // Last, as in lighttpd: a Content-Encoding that mod_setenv adds has to be seen, in either order of the
    // two in server.modules.
    configure.add_last(
        Phase::Transform,
        Deflate {
            options: Rc::new(options),
        },
    );
    Ok(())
}

/// Warnings of the start-up check: codings that are unknown or not built in, and unknown parameters.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let mut warnings = options::warnings(config);
    warnings.extend(params::warnings(config));
    warnings
}

struct Deflate {
    options: Rc<DeflateOptions>,
}

impl Hook for Deflate {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let decision = decide::decide(exchange, &self.options);
        if self.options.debug {
            exchange.log_error("transform", format_args!("deflate: {decision}"));
        }
        if decision.depends_on_the_client() {
            fields::add_vary(&mut exchange.response);
        }
        match decision {
            Decision::Compress(coding) => return self.compress(exchange, coding),
            Decision::Retag(coding) => fields::set_etag(&mut exchange.response, coding),
            Decision::Leave(_) | Decision::NotForThisClient => {}
        }
        Outcome::Next
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        match decide::decide(exchange, &self.options) {
            Decision::Compress(coding) if !fields::client_has_it(exchange, coding) => {
                fields::add_vary(&mut exchange.response);
                exchange
                    .note(|| Note::Text(format!("would compress the answer ({})", coding.name())));
                Outcome::Next
            }
            _ => self.run(exchange),
        }
    }
}

impl Deflate {
    fn compress(&self, exchange: &mut Exchange, coding: Coding) -> Outcome {
        if fields::client_has_it(exchange, coding) {
            fields::set_etag(&mut exchange.response, coding);
            exchange.response.status = Status::NOT_MODIFIED;
            exchange.response.announced_length = None;
            exchange.response.body = Body::Empty;
            return Outcome::Next;
        }
        let file = self.lasting(exchange, coding);
        if let Some((source, key)) = &file {
            let directory = self.options.cache_dir.as_ref();
            match directory.map(|at| stored::find(exchange, at, source, coding)) {
                Some(StoredFile::Here(body)) => return making::send(exchange, coding, body),
                Some(StoredFile::Cold) => return Outcome::Cold,
                Some(StoredFile::Missing) | None => {}
            }
            if let Some(made) = OfWorker::of(&exchange.worker).find(key) {
                return making::send_made(exchange, coding, made);
            }
        }
        if load::is_above(exchange, self.options.max_loadavg) {
            return Outcome::Next;
        }
        if exchange.request.head.method() == Method::Head {
            return making::make_head(exchange, &self.options, coding, file.as_ref());
        }
        making::make(exchange, &self.options, coding, file)
    }
}

impl Deflate {
    /// The whole answer and a key for its compressed form, if it may be requested again: a file, or stored
    /// content.
    fn lasting(&self, exchange: &Exchange, coding: Coding) -> Option<(Piece, CompressedKey)> {
        let response = &exchange.response;
        if let Some(piece) = whole_file(&response.body) {
            let key = CompressedKey::of(&piece, coding, &self.options.params);
            return Some((piece, key));
        }
        let number = response.kept_content()?;
        let Body::Piece(piece) = &response.body else {
            return None;
        };
        let key = CompressedKey::of_content(number, coding, &self.options.params);
        Some((piece.clone(), key))
    }
}

/// The piece of a body that is exactly one whole file.
fn whole_file(body: &Body) -> Option<Piece> {
    match body {
        Body::Piece(piece @ Piece::File { file, range }) if *range == (0..file.stat().size) => {
            Some(piece.clone())
        }
        _ => None,
    }
}

/// How many compressed files and pages `worker` keeps.
#[cfg(test)]
pub(crate) fn kept_by(worker: &petrel_engine::worker::Worker) -> usize {
    OfWorker::of(worker).files()
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
