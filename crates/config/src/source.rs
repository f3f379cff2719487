//! The texts of a configuration, and places in them.
//!
//! Every file, every output of `include_shell` and every string given to `parse_str` is a source. A [`Span`]
//! is a range of bytes in a source; [`Sources::location`] turns it into line and column for people.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The index of a source in [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

/// A range of bytes in one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The source.
    pub file: FileId,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset one past the last byte.
    pub end: u32,
}

impl Span {
    /// The range from the start of `self` to the end of `other`, both of one source.
    ///
    /// Spans of different sources cannot be joined; then the result is `self`.
    #[must_use]
    pub fn to(self, other: Span) -> Span {
        if self.file != other.file {
            return self;
        }
        Span {
            file: self.file,
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }

    /// The bytes as a range of offsets.
    #[must_use]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Where the text of a source comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// The output of an `include_shell` command.
    Shell(String),
    /// A string, with its name for messages.
    Text(String),
}

/// One text of the configuration.
#[derive(Clone, Debug)]
pub struct Source {
    origin: Origin,
    name: String,
    text: Arc<str>,
    included_from: Option<Span>,
    lines: Vec<u32>,
}

impl Source {
    /// Where the text comes from.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The name for messages: the path as it was written, or the command.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text. Bytes that were not UTF-8 are replaced with U+FFFD.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The `include` or `include_shell` statement that included this text.
    #[must_use]
    pub(crate) fn included_from(&self) -> Option<Span> {
        self.included_from
    }
}

/// A place for people to read. `Display` writes `file:line:column`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    /// The name of the source.
    pub file: &'a str,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl std::fmt::Display for Location<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// All texts of one configuration.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    list: Vec<Source>,
}

impl Sources {
    /// Adds a text and returns its id.
    pub(crate) fn add(
        &mut self,
        origin: Origin,
        text: String,
        included_from: Option<Span>,
    ) -> FileId {
        let name = match &origin {
            Origin::File(path) => path.display().to_string(),
            Origin::Shell(command) => format!("include_shell \"{command}\""),
            Origin::Text(name) => name.clone(),
        };
        let lines = memchr::memchr_iter(b'\n', text.as_bytes())
            .map(|at| at as u32 + 1)
            .collect();
        self.list.push(Source {
            origin,
            name,
            text: text.into(),
            included_from,
            lines,
        });
        FileId(self.list.len() as u32 - 1)
    }

    /// The source with this id. `None` for an id of another configuration.
    #[must_use]
    pub fn source(&self, file: FileId) -> Option<&Source> {
        self.list.get(file.0 as usize)
    }

    /// The text of a source, for use while more sources are added.
    pub(crate) fn shared_text(&self, file: FileId) -> Arc<str> {
        self.source(file)
            .map_or_else(|| Arc::from(""), |source| Arc::clone(&source.text))
    }

    /// All sources with their ids, in the order in which they were read.
    pub fn iter(&self) -> impl Iterator<Item = (FileId, &Source)> {
        self.list
            .iter()
            .enumerate()
            .map(|(index, source)| (FileId(index as u32), source))
    }

    /// Line and column of the start of `span`.
    #[must_use]
    pub fn location(&self, span: Span) -> Location<'_> {
        let Some(source) = self.source(span.file) else {
            return Location {
                file: "?",
                line: 1,
                column: 1,
            };
        };
        let line = source.lines.partition_point(|&start| start <= span.start);
        let line_start = line
            .checked_sub(1)
            .and_then(|index| source.lines.get(index))
            .map_or(0, |&start| start as usize);
        let before = source
            .text
            .get(line_start..span.start as usize)
            .unwrap_or("");
        Location {
            file: &source.name,
            line: line + 1,
            column: before.chars().count() + 1,
        }
    }

    /// The text that `span` covers; empty if the span belongs to another configuration.
    #[must_use]
    pub fn text(&self, span: Span) -> &str {
        self.source(span.file)
            .and_then(|source| source.text.get(span.range()))
            .unwrap_or("")
    }

    /// The statements that included the source of `span`, the innermost first.
    #[must_use]
    pub(crate) fn include_chain(&self, span: Span) -> Vec<Span> {
        let mut chain = Vec::new();
        let mut next = self.source(span.file).and_then(Source::included_from);
        while let Some(at) = next {
            chain.push(at);
            next = self.source(at.file).and_then(Source::included_from);
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_counts_lines_and_characters_from_one() {
        let mut sources = Sources::default();
        let file = sources.add(Origin::Text("t".into()), "a = 1\nü = 2\n\nb".into(), None);
        let at = |start| {
            sources
                .location(Span {
                    file,
                    start,
                    end: start,
                })
                .to_string()
        };
        assert_eq!(at(0), "t:1:1");
        assert_eq!(at(5), "t:1:6");
        assert_eq!(at(6), "t:2:1");
        assert_eq!(at(8), "t:2:2");
        assert_eq!(at(14), "t:4:1");
    }

    #[test]
    fn an_include_chain_runs_from_the_innermost_statement_outwards() {
        let mut sources = Sources::default();
        let a = sources.add(Origin::Text("a".into()), "include \"b\"".into(), None);
        let in_a = Span {
            file: a,
            start: 0,
            end: 11,
        };
        let b = sources.add(Origin::Text("b".into()), "include \"c\"".into(), Some(in_a));
        let in_b = Span {
            file: b,
            start: 0,
            end: 11,
        };
        let c = sources.add(Origin::Text("c".into()), "x".into(), Some(in_b));
        assert_eq!(
            sources.include_chain(Span {
                file: c,
                start: 0,
                end: 1
            }),
            [in_b, in_a]
        );
        assert!(sources.include_chain(in_a).is_empty());
    }
}
