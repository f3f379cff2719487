//! From a directory to the bytes of its listing, a turn at a time.
//!
//! Entries are looked at by fstatat(2) relative to the directory, and not at all where their type
//! shows that they are not listed: sockets, pipes and devices are never served. A symlink counts as
//! what it leads to; where symlinks are refused it is left out, as is one that leads nowhere.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::file_cache::{Symlinks, open_directory};
use petrel_engine::settings::Settings;
use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;

use super::entries::{Entries, Entry};
use super::json;
use super::options::Options;
use super::page::{Page, type_of};
use super::view::{Format, View};

/// A listing in the making.
pub(super) struct Reading {
    view: View,
    settings: Rc<Settings>,
    directory: Dir,
    descriptor: OwnedFd,
    entries: Entries,
    seen: usize,
    is_truncated: bool,
    page: Page,
    out: Vec<u8>,
    state: State,
}

enum State {
    /// The directory's entries.
    Reading,
    /// The index of the entry to write next.
    Writing(usize),
}

/// What a turn came to.
pub(super) enum Progress {
    More,
    Complete(Vec<u8>),
    Failed(Errno),
}

impl Reading {
    /// Opens the directory of the exchange.
    pub fn begin(exchange: &Exchange, options: &Options, view: View) -> Result<Reading, Errno> {
        let symlinks = exchange.settings.core.symlinks;
        let descriptor = open_directory(&exchange.physical.path, symlinks)?;
        Ok(Reading {
            view,
            settings: Rc::clone(&exchange.settings),
            directory: Dir::read_from(&descriptor)?,
            descriptor,
            entries: Entries::default(),
            seen: 0,
            is_truncated: false,
            page: Page::new(exchange, options, view),
            out: Vec::new(),
            state: State::Reading,
        })
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether there were more entries than are looked at.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Goes on, for a few milliseconds at most unless the directory is cold.
    pub fn turn(&mut self, options: &Options) -> Progress {
        if matches!(self.state, State::Reading) {
            match self.read(options) {
                Ok(Stretch::More) => return Progress::More,
                Ok(Stretch::End) => self.begin_writing(options),
                Err(errno) => return Progress::Failed(errno),
            }
            if self.entries.len() > ENTRIES_PER_TURN {
                return Progress::More;
            }
        }
        match self.write(options) {
            Stretch::More => Progress::More,
            Stretch::End => Progress::Complete(std::mem::take(&mut self.out)),
        }
    }

    fn read(&mut self, options: &Options) -> Result<Stretch, Errno> {
        for _ in 0..ENTRIES_PER_TURN {
            if self.seen >= LISTED_ENTRIES_MAX {
                self.is_truncated = true;
                return Ok(Stretch::End);
            }
            let Some(entry) = self.directory.next() else {
                return Ok(Stretch::End);
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            self.seen += 1;
            if options.shows(name) {
                self.take(entry.file_name(), entry.file_type());
            }
        }
        Ok(Stretch::More)
    }

    fn take(&mut self, name: &std::ffi::CStr, kind: FileType) {
        let follows = self.settings.core.symlinks == Symlinks::Follow;
        match kind {
            FileType::RegularFile | FileType::Directory | FileType::Unknown => {}
            FileType::Symlink if follows => {}
            _ => return,
        }
        let flags = if follows {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let Ok(stat) = statat(&self.descriptor, name, flags) else {
            return;
        };
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            _ => return,
        };
        self.entries.push(Entry {
            name: name.to_bytes(),
            is_directory,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: u64::try_from(stat.st_mtime).unwrap_or(0),
        });
    }

    fn begin_writing(&mut self, options: &Options) {
        if let Some(sort) = self.view.sort {
            let types = Rc::clone(&self.settings.core.mime_types);
            self.entries
                .sort(sort, |entry| type_of(entry, &types).to_vec());
        }
        match self.view.format {
            Format::Page => self.page.write_begin(&mut self.out, options),
            Format::Json => self.out.extend_from_slice(b"["),
        }
        self.state = State::Writing(0);
    }

    fn write(&mut self, options: &Options) -> Stretch {
        let State::Writing(start) = self.state else {
            return Stretch::More;
        };
        let end = (start + ENTRIES_PER_TURN).min(self.entries.len());
        for index in start..end {
            let Some(entry) = self.entries.get(index) else {
                break;
            };
            match self.view.format {
                Format::Page => {
                    let types = &self.settings.core.mime_types;
                    self.page.write_entry(&mut self.out, &entry, types);
                }
                Format::Json => json::write_entry(&mut self.out, &entry, index == 0),
            }
        }
        self.state = State::Writing(end);
        if end < self.entries.len() {
            return Stretch::More;
        }
        match self.view.format {
            Format::Page => {
                let cut = self.is_truncated.then_some(LISTED_ENTRIES_MAX);
                self.page
                    .write_end(&mut self.out, options, self.entries.len(), cut);
            }
            Format::Json => self.out.extend_from_slice(b"\n]\n"),
        }
        Stretch::End
    }
}

enum Stretch {
    More,
    End,
}

/// Entries of one directory that are looked at. What lies beyond is left out, and the page says so.
pub(super) const LISTED_ENTRIES_MAX: usize = 100_000;

/// Entries read, or written, before other connections get their turn: about two milliseconds.
const ENTRIES_PER_TURN: usize = 1_000;
