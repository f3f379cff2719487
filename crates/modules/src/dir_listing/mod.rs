//! mod_dirlisting: answers for a directory without an index file, as a page or as JSON.
//!
//! A disk thread reads the directory, once for all requests that ask for it at the same time
//! ([`SharedJobs`]). Then the worker writes the page, a limited number of entries per turn, so that a large
//! directory does not keep other connections waiting. The page works without script and style: a click on the
//! head of a column requests `?C=M&O=D` (column N, M, S or T; order A or D), which the server sorts by; the
//! script in the page only saves this request. With `?json`, or with an Accept field that names
//! `application/json` and not `text/html`, the answer is an array of objects: `name`, `href` (the URL relative to that
//! of the directory), `type` (`directory` or `file`), `size` in bytes (`null` for a directory) and `mtime` in seconds since 1970.
//!
//! mod_indexfile handles index files; this hook runs when none was found.

mod cache;
mod columns;
mod entries;
mod json;
mod options;
mod page;
mod read;
mod view;
mod write;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use petrel_engine::Exchange;
use petrel_engine::blocking::{FileDeadline, JobWaiter, NotDone, Origin, SharedJobs};
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::{cause_of_failure, tell_holder_of_own_file};
use petrel_engine::config::{Diagnostic, DirectiveSpec};
use petrel_engine::file_cache::FileKind;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Pending, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::settings::directives::Effect::{Renamed, Works};
use petrel_engine::waits::HolderText;
use rustix::io::Errno;

use cache::Cached;
use options::{Around, ListingOptions};
use page::ListingPage;
use read::{AroundFile, DirectoryContents, WantedDirectory};
use view::{ListingFormat, View};
use write::Writing;

/// mod_dirlisting.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_dirlisting",
    doc: "Lists directories that have no index file, as a page or, on request, as JSON.",
    loaded: Loaded::Compat,
    directives: DIRECTIVES,
    configure,
};

static DIRECTIVES: &[DirectiveSpec] = petrel_engine::directives! {
    "dir-listing.activate", Bool, Request, "disable", Works,
        "List directories that have no index file. A program gets JSON with ?json or Accept: application/json. Names that \
         no URL can lead to are left out: those with control characters, and those that server.http-parseopts refuses.";
    "server.dir-listing", Bool, Request, "disable", Renamed("dir-listing.activate"),
        "Older name of dir-listing.activate.";
    "dir-listing.exclude", List, Request, "()", Works,
        "Regular expressions. Entries whose names match one of them are not listed.";
    "dir-listing.hide-dotfiles", Bool, Request, "enable", Works,
        "Leave out names that begin with a dot.";
    "dir-listing.external-css", String, Request, "unset", Works,
        "URL of a style sheet to use instead of the built-in one.";
    "dir-listing.external-js", String, Request, "unset", Works,
        "URL of a script to use instead of the built-in one that sorts in the browser.";
    "dir-listing.encoding", String, Request, "utf-8", Works,
        "The character set of file names. It must contain ASCII.";
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
        "Send a complete page. If disabled, only the list is sent, and header and readme have to be the HTML around it.";
    "dir-listing.cache", Map, Request, "()", Works,
        "Keep a listing for \"max-age\" seconds (15) and let clients do so; in memory, or as files below the directory \"path\".";
    "dir-listing.sort", Bool, Request, "enable", Works,
        "Sort: directories first, then by name. If disabled, the order is that of the file system.";
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let options = ListingOptions::new(configure.values, configure.purpose, configure.logs)?;
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
    options: Rc<ListingOptions>,
}

impl Hook for DirListing {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(file) = exchange.physical.file.clone() else {
            return Outcome::Next;
        };
        let is_ours = file.kind() == FileKind::Directory
            && exchange.request.method.is_get_or_head()
            && exchange.request.url.path().ends_with(b"/");
        if !is_ours {
            return Outcome::Next;
        }
        let view = View::of(&exchange.request, self.options.is_sorted);
        match cache::answer(exchange, &self.options, &view) {
            Cached::Answered => return Outcome::Answer,
            Cached::Cold => return Outcome::Cold,
            Cached::Missing => {}
        }
        let origin = file.origin(exchange.connection.client_key(), 0);
        let Some(wanted) = wanted(exchange, &self.options, &view) else {
            return Outcome::Cold;
        };
        let fingerprint = self.options.fingerprint;
        let reading = exchange.worker.belonging(SharedJobs::default);
        match begin(&reading, fingerprint, view.format, origin, wanted) {
            Some(waiter) => Outcome::Later(Box::new(Listing {
                options: Rc::clone(&self.options),
                view,
                state: ListingState::Reading(waiter, exchange.file_deadline()),
            })),
            None => refuse(exchange, Errno::BUSY),
        }
    }
}

/// What has to be read. `None`: a disk has to be waited for, because of the files around the list.
fn wanted(exchange: &Exchange, options: &ListingOptions, view: &View) -> Option<WantedDirectory> {
    let around = |around: &Option<Around>, class| match view.format {
        ListingFormat::Page => page::around_file(exchange, around.as_ref(), class),
        ListingFormat::Json => Some(AroundFile::Nothing),
    };
    Some(WantedDirectory {
        directory: exchange.physical.path.clone(),
        symlinks: exchange.settings.core.symlinks,
        names: Arc::clone(&options.names),
        url_options: exchange.worker.process().url_options,
        header: around(&options.header, "header")?,
        readme: around(&options.readme, "readme")?,
    })
}

/// Has the directory read. `None`: too many directories are being read.
fn begin(
    reading: &SharedJobs<ReadKey, ReadListing>,
    fingerprint: u64,
    format: ListingFormat,
    origin: Origin,
    wanted: WantedDirectory,
) -> Option<ReadingWaiter> {
    let key = ReadKey::of(fingerprint, format, origin, &wanted);
    let read = move || wanted.read().map(Arc::new);
    reading.join_next(key, DIRECTORIES_MAX, origin, read)
}

type ReadListing = Result<Arc<DirectoryContents>, Errno>;

type ReadingWaiter = JobWaiter<Result<ReadListing, NotDone>>;

/// Requests with equal keys share one reading of the directory.
#[derive(PartialEq, Eq, Hash)]
struct ReadKey {
    directory: Vec<u8>,
    /// The file systems of the directory and of the files around the list. A request that comes after another
    /// file system was mounted there must not wait for a thread that hangs in the old one.
    devices: [u64; 3],
    format: ListingFormat,
    fingerprint: u64,
}

impl ReadKey {
    fn of(
        fingerprint: u64,
        format: ListingFormat,
        origin: Origin,
        wanted: &WantedDirectory,
    ) -> ReadKey {
        ReadKey {
            directory: wanted.directory.clone(),
            devices: [
                origin.device,
                wanted.header.device(),
                wanted.readme.device(),
            ],
            format,
            fingerprint,
        }
    }
}

/// A listing that is being made.
struct Listing {
    options: Rc<ListingOptions>,
    view: View,
    state: ListingState,
}

enum ListingState {
    /// The directory is being read.
    Reading(ReadingWaiter, FileDeadline),
    Writing(Box<Writing>),
}

impl Pending for Listing {
    fn waits_in(&self) -> Option<Stage> {
        match self.state {
            ListingState::Reading(..) => Some(Stage::ReadFile),
            ListingState::Writing(_) => None,
        }
    }

    fn holder(&self, exchange: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        tell_holder_of_own_file(exchange, text);
    }

    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        if let ListingState::Reading(waiter, deadline) = &mut self.state {
            let polled = waiter.poll_unpin(context);
            let Ok(read) = ready!(deadline.limit(polled, context)) else {
                let path = exchange.physical.path.clone();
                return Poll::Ready(exchange.answer_late_file("content", &path));
            };
            match self.take(exchange, read) {
                Ok(writing) => self.state = ListingState::Writing(Box::new(writing)),
                Err(errno) => return Poll::Ready(refuse(exchange, errno)),
            }
        }
        if let ListingState::Writing(writing) = &mut self.state
            && let Some(bytes) = writing.turn(&self.options)
        {
            return Poll::Ready(answer(exchange, &self.options, writing, bytes.into()));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Listing {
    fn take(
        &self,
        exchange: &Exchange,
        read: Result<ReadListing, NotDone>,
    ) -> Result<Writing, Errno> {
        let found = read.unwrap_or_else(|not_done| match not_done {
            NotDone::QueueFull => Err(Errno::BUSY),
            NotDone::Lost => Err(Errno::IO),
        })?;
        let page = ListingPage::new(exchange, &self.options, self.view);
        let settings = Rc::clone(&exchange.settings);
        Ok(Writing::new(self.view, settings, found, page))
    }
}

fn answer(
    exchange: &mut Exchange,
    options: &ListingOptions,
    writing: &Writing,
    bytes: Bytes,
) -> Outcome {
    exchange.response.status = Status::OK;
    set_fields(exchange, options, writing.view().format);
    if writing.is_truncated() {
        exchange.response.set("Petrel-Listing", b"truncated");
    } else {
        cache::keep(exchange, options, writing.view(), &bytes);
    }
    exchange.response.body = Body::Piece(Piece::Bytes(bytes));
    Outcome::Answer
}

fn set_fields(exchange: &mut Exchange, options: &ListingOptions, format: ListingFormat) {
    let response = &mut exchange.response;
    match format {
        ListingFormat::Page => response.set("Content-Type", options.content_type.as_bytes()),
        ListingFormat::Json => response.set("Content-Type", b"application/json"),
    }
    response.set("Vary", b"Accept");
    if let Some(cache) = &options.cache {
        response.set(
            "Cache-Control",
            format!("max-age={}", cache.max_age_s).as_bytes(),
        );
    }
}

/// Answers that the directory cannot be read.
fn refuse(exchange: &mut Exchange, errno: Errno) -> Outcome {
    let path = String::from_utf8_lossy(&exchange.physical.path).into_owned();
    let outcome = exchange.fail(cause_of(errno));
    exchange.log_error("content", format_args!("cannot list {path:?}: {errno}"));
    outcome
}

fn cause_of(errno: Errno) -> ErrorCause {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::LOOP => CauseCode::FileDenied.into(),
        Errno::NOENT | Errno::NOTDIR => CauseCode::FileMissing.into(),
        other => cause_of_failure(other),
    }
}

/// Directories that a worker has read at the same time. A request for another one gets 503.
const DIRECTORIES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
