//! Makes the bytes of a listing out of the entries that were read, in several turns.

use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::settings::Settings;

use super::json;
use super::options::ListingOptions;
use super::page::{ListingPage, type_of};
use super::read::{DirectoryContents, LISTED_ENTRIES_MAX};
use super::view::{ListingFormat, View};

/// A listing that is being written.
pub(super) struct Writing {
    view: View,
    settings: Rc<Settings>,
    found: Arc<DirectoryContents>,
    /// The indexes of the entries, in order.
    order: Vec<u32>,
    page: ListingPage,
    out: Vec<u8>,
    /// How many entries are written; `None` before the beginning is written.
    written: Option<usize>,
}

impl Writing {
    /// A writer of `found` in the form that `view` asks for.
    pub(crate) fn new(
        view: View,
        settings: Rc<Settings>,
        found: Arc<DirectoryContents>,
        page: ListingPage,
    ) -> Writing {
        Writing {
            view,
            settings,
            found,
            order: Vec::new(),
            page,
            out: Vec::new(),
            written: None,
        }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// Whether there are more entries than were read.
    pub(crate) fn is_truncated(&self) -> bool {
        self.found.is_truncated
    }

    /// Writes for a few milliseconds at most. `Some`: the complete listing.
    pub(crate) fn turn(&mut self, options: &ListingOptions) -> Option<Vec<u8>> {
        let start = match self.written {
            Some(start) => start,
            None => {
                self.begin(options);
                if self.order.len() > ENTRIES_PER_TURN {
                    return None;
                }
                0
            }
        };
        let end = (start + ENTRIES_PER_TURN).min(self.order.len());
        self.write(start, end);
        self.written = Some(end);
        if end < self.order.len() {
            return None;
        }
        self.end(options);
        Some(std::mem::take(&mut self.out))
    }

    fn begin(&mut self, options: &ListingOptions) {
        let entries = &self.found.entries;
        let types = &self.settings.core.mime_types;
        self.order = match self.view.sort {
            Some(sort) => entries.sorted(sort, |entry| type_of(entry, types).to_vec()),
            None => (0..).take(entries.len()).collect(),
        };
        match self.view.format {
            ListingFormat::Page => self.page.write_begin(&mut self.out, options, &self.found),
            ListingFormat::Json => self.out.extend_from_slice(b"["),
        }
        self.written = Some(0);
    }

    fn write(&mut self, start: usize, end: usize) {
        let indexes = self.order.get(start..end).unwrap_or_default();
        for (number, index) in (start..).zip(indexes) {
            let Some(entry) = self.found.entries.get(*index as usize) else {
                continue;
            };
            match self.view.format {
                ListingFormat::Page => {
                    let types = &self.settings.core.mime_types;
                    self.page.write_entry(&mut self.out, &entry, types);
                }
                ListingFormat::Json => json::write_entry(&mut self.out, &entry, number == 0),
            }
        }
    }

    fn end(&mut self, options: &ListingOptions) {
        match self.view.format {
            ListingFormat::Page => {
                let cut = self.found.is_truncated.then_some(LISTED_ENTRIES_MAX);
                let found = &self.found;
                self.page.write_end(&mut self.out, options, found, cut);
            }
            ListingFormat::Json => self.out.extend_from_slice(b"\n]\n"),
        }
    }
}

/// Entries that are written before other connections have their turn: about two milliseconds.
const ENTRIES_PER_TURN: usize = 1_000;
