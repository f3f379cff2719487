//! mod_dirlisting: answers for a directory without an index file, as a page or as JSON.
//!
//! The directory is read by descriptor, a bounded number of entries a turn, so that a big one does
//! not hold the worker. The page works without script and style: a click on a column's head asks
//! for `?C=M&O=D` (column N, M, S or T; order A or D), which the server sorts by; the script in it
//! only saves the request. With `?json`, or with an Accept field that names `application/json` and
//! not `text/html`, the answer is an array of objects: `name`, `type` (`directory` or `file`),
//! `size` in bytes (`null` for a directory) and `mtime` in seconds since 1970.
//!
//! Index files are somebody else's: this hook runs when none was found.

mod cache;
mod columns;
mod entries;
mod json;
mod options;
mod page;
mod read;
mod view;

use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_engine::Exchange;
use petrel_engine::body::Body;
use petrel_engine::config::{Diagnostic, DirectiveSpec};
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::settings::directives::Effect::{Renamed, Works};
use rustix::io::Errno;

use options::Options;
use read::{Progress, Reading};
use view::{Format, View};

/// mod_dirlisting.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_dirlisting",
    doc: "Lists directories that have no index file, as a page or, on request, as JSON.",
    loaded: Loaded::Compat,
    directives: DIRECTIVES,
    log_directives: &[],
    configure,
};

static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "dir-listing.activate", Bool, Request, "disable", Works,
        "List directories that have no index file. A program gets JSON with ?json or Accept: application/json.";
    "server.dir-listing", Bool, Request, "disable", Renamed("dir-listing.activate"),
        "Older name of dir-listing.activate.";
    "dir-listing.exclude", List, Request, "()", Works,
        "Regular expressions; entries whose name one of them matches are left out.";
    "dir-listing.hide-dotfiles", Bool, Request, "enable", Works,
        "Leave out names that begin with a dot.";
    "dir-listing.external-css", String, Request, "unset", Works,
        "URL of a style sheet to use instead of the built-in one.";
    "dir-listing.external-js", String, Request, "unset", Works,
        "URL of a script to use instead of the built-in one that sorts in the browser.";
    "dir-listing.encoding", String, Request, "utf-8", Works,
        "The character set file names are in. It must contain ASCII.";
    "dir-listing.show-readme", BoolOrString, Request, "disable", Works,
        "Show a text file below the list: README.txt if enabled, or the file of this name. An absolute path is a file of the server.";
    "dir-listing.hide-readme-file", Bool, Request, "disable", Works,
        "Leave the file of dir-listing.show-readme out of the list.";
    "dir-listing.encode-readme", Bool, Request, "enable", Works,
        "Show the readme as text. If disabled it is inserted as HTML.";
    "dir-listing.show-header", BoolOrString, Request, "disable", Works,
        "Show a text file above the list: HEADER.txt if enabled, or the file of this name. An absolute path is a file of the server.";
    "dir-listing.hide-header-file", Bool, Request, "disable", Works,
        "Leave the file of dir-listing.show-header out of the list.";
    "dir-listing.encode-header", Bool, Request, "enable", Works,
        "Show the header as text. If disabled it is inserted as HTML.";
    "dir-listing.set-footer", String, Request, "the server tag", Works,
        "The footer, as HTML.";
    "dir-listing.auto-layout", Bool, Request, "enable", Works,
        "Send a whole page. If disabled only the list is sent, and header and readme are to be the HTML around it.";
    "dir-listing.cache", Map, Request, "()", Works,
        "Keep a listing for \"max-age\" seconds (15) and let clients do so; in memory, or as files below the directory \"path\".";
    "dir-listing.sort", Bool, Request, "enable", Works,
        "Directories first, then by name. If disabled the entries come as the file system has them.";
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let options = Options::new(configure.values, configure.purpose, configure.logs)?;
    if configure
        .values
        .bool("dir-listing.activate")
        .unwrap_or(false)
    {
        configure.add(
            Phase::Content,
            DirListing {
                options: Rc::new(options),
            },
        );
    }
    Ok(())
}

struct DirListing {
    options: Rc<Options>,
}

impl Hook for DirListing {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(file) = &exchange.physical.file else {
            return Outcome::Next;
        };
        let is_ours = file.kind() == FileKind::Directory
            && exchange.request.method.is_get_or_head()
            && exchange.request.url.path().ends_with(b"/");
        if !is_ours {
            return Outcome::Next;
        }
        let view = View::of(&exchange.request, self.options.is_sorted);
        if cache::answer(exchange, &self.options, &view) {
            return Outcome::Answer;
        }
        match Reading::begin(exchange, &self.options, view) {
            Ok(reading) => go_on(
                Box::new(Listing {
                    options: Rc::clone(&self.options),
                    reading,
                }),
                exchange,
            ),
            Err(errno) => refuse(exchange, errno),
        }
    }
}

/// A listing in the making.
struct Listing {
    options: Rc<Options>,
    reading: Reading,
}

/// The first turn is taken at once: most directories need no other.
fn go_on(mut listing: Box<Listing>, exchange: &mut Exchange) -> Outcome {
    match listing.turn(exchange) {
        Some(outcome) => outcome,
        None => Outcome::Later(listing),
    }
}

impl Listing {
    fn turn(&mut self, exchange: &mut Exchange) -> Option<Outcome> {
        match self.reading.turn(&self.options) {
            Progress::More => None,
            Progress::Complete(bytes) => Some(self.answer(exchange, bytes)),
            Progress::Failed(errno) => Some(refuse(exchange, errno)),
        }
    }

    fn answer(&self, exchange: &mut Exchange, bytes: Vec<u8>) -> Outcome {
        let view = self.reading.view();
        exchange.response.status = Status::OK;
        set_fields(exchange, &self.options, view.format);
        if self.reading.is_truncated() {
            exchange.response.set("Petrel-Listing", b"truncated");
        } else {
            cache::keep(exchange, &self.options, view, &bytes);
        }
        exchange.response.body = Body::from(bytes);
        Outcome::Answer
    }
}

impl Pending for Listing {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        match self.turn(exchange) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

fn set_fields(exchange: &mut Exchange, options: &Options, format: Format) {
    let response = &mut exchange.response;
    match format {
        Format::Page => response.set("Content-Type", options.content_type.as_bytes()),
        Format::Json => response.set("Content-Type", b"application/json"),
    }
    response.set("Vary", b"Accept");
    if let Some(cache) = &options.cache {
        response.set(
            "Cache-Control",
            format!("max-age={}", cache.max_age_s).as_bytes(),
        );
    }
}

/// The directory cannot be read.
fn refuse(exchange: &mut Exchange, errno: Errno) -> Outcome {
    let path = String::from_utf8_lossy(&exchange.physical.path).into_owned();
    exchange.log_error("content", format_args!("cannot list {path:?}: {errno}"));
    exchange.answer(status_of(errno))
}

fn status_of(errno: Errno) -> Status {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::LOOP => Status::FORBIDDEN,
        Errno::NOENT | Errno::NOTDIR => Status::NOT_FOUND,
        _ => Status::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests;
