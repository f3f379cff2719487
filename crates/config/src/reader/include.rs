//! `include` and `include_shell`: finds the texts, and reads them in place.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{Cursor, Read, Reader, glob, shell};
use crate::diagnostic::Diagnostic;
use crate::lexer::shortened;
use crate::source::{Origin, Span};
use crate::tree::BlockId;
use crate::{Shell, limits};

impl Reader<'_> {
    /// Parses `include "path"`. The path may be a pattern; its matches are read in the order of their names.
    ///
    /// As in lighttpd, a relative path starts at the directory of the main file. If there is no such file, it
    /// starts at the directory of the including file.
    pub(super) fn include(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<()> {
        let head = cursor.step().span;
        let (name, name_span) = self.text_expression(cursor, scope, "the path of an include")?;
        let span = head.to(name_span);
        let paths = self.included_paths(&name, name_span)?;
        for path in paths {
            self.include_file(&path, span, name_span, scope)?;
        }
        Ok(())
    }

    /// Parses `include_shell "command"`.
    pub(super) fn include_shell(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<()> {
        let head = cursor.step().span;
        let (command, command_span) =
            self.text_expression(cursor, scope, "the command of an include_shell")?;
        let span = head.to(command_span);
        if self.options.shell == Shell::Refuse {
            return self.fail(Diagnostic::error("include_shell is not allowed here", span));
        }
        self.check_totals(span)?;
        let output = shell::run(&command, &self.directory);
        let said = output.error_text.trim();
        if let Some(reason) = output.failure {
            let error = Diagnostic::error(format!("the command {reason}"), command_span);
            return self.fail(if said.is_empty() {
                error
            } else {
                error.with_hint(format!("it says: {said}"))
            });
        }
        if !said.is_empty() {
            self.note(
                Diagnostic::warning("the command wrote to its standard error", command_span)
                    .with_hint(format!("it says: {said}")),
            );
        }
        self.nested(span, |reader| {
            reader.read_text(Origin::Shell(command), output.text, Some(span), scope);
            Ok(())
        })
    }

    fn included_paths(&mut self, name: &str, span: Span) -> Read<Vec<PathBuf>> {
        let bases = [Some(self.directory.clone()), self.directory_of(span)];
        if !glob::is_pattern(name) {
            let candidates: Vec<PathBuf> = bases
                .into_iter()
                .flatten()
                .map(|base| base.join(name))
                .collect();
            let existing = candidates
                .iter()
                .find(|path| path.exists())
                .or(candidates.first());
            return Ok(existing.cloned().into_iter().collect());
        }
        for base in bases.into_iter().flatten() {
            match glob::matches(&base, name) {
                Ok(paths) if paths.is_empty() => {}
                Ok(paths) => return Ok(paths),
                Err(reason) => return self.fail(Diagnostic::error(reason, span)),
            }
        }
        Ok(Vec::new())
    }

    /// The directory of the file that `span` is in.
    fn directory_of(&self, span: Span) -> Option<PathBuf> {
        match self.sources.source(span.file)?.origin() {
            Origin::File(path) => Some(self.options.directory.join(path.parent()?)),
            Origin::Shell(_) | Origin::Text(_) => None,
        }
    }

    fn include_file(
        &mut self,
        path: &Path,
        span: Span,
        name_span: Span,
        scope: BlockId,
    ) -> Read<()> {
        self.check_totals(span)?;
        let identity = identity(path);
        if self.open_files.contains(&identity) {
            let message = format!("{} includes itself", shortened(&path.display().to_string()));
            return self
                .fail(Diagnostic::error(message, name_span).with_label("included again here"));
        }
        match read_text(path, limits::FILE_BYTES_MAX) {
            Ok(text) => self.nested(span, |reader| {
                reader.open_files.push(identity);
                reader.read_text(Origin::File(path.to_owned()), text, Some(span), scope);
                reader.open_files.pop();
                Ok(())
            }),
            Err(reason) => {
                let message = format!("cannot read {}: {reason}", path.display());
                let hint = format!("a relative path starts from {}", self.directory.display());
                self.fail(Diagnostic::error(message, name_span).with_hint(hint))
            }
        }
    }

    fn check_totals(&mut self, span: Span) -> Read<()> {
        if self.sources.iter().count() >= limits::SOURCES_MAX {
            return self.fail(Diagnostic::error(
                format!("more than {} files are included", limits::SOURCES_MAX),
                span,
            ));
        }
        if self.read_bytes >= limits::TOTAL_BYTES_MAX {
            return self.fail(Diagnostic::error(
                format!(
                    "the configuration has more than {} MiB",
                    limits::TOTAL_BYTES_MAX >> 20
                ),
                span,
            ));
        }
        Ok(())
    }
}

/// The text of the file at `path`. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn read_text(path: &Path, bytes_max: usize) -> Result<String, String> {
    let file = File::open(path).map_err(|error| plain_reason(&error))?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| plain_reason(&error))?;
    if bytes.len() > bytes_max {
        return Err(format!("it has more than {} MiB", bytes_max >> 20));
    }
    Ok(text_of(bytes))
}

/// `bytes` as text. Bytes that are not UTF-8 become U+FFFD.
pub(super) fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The path that identifies a file.
pub(super) fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The message of the operating system without its number.
pub(super) fn plain_reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text.get(..end).unwrap_or(&text).to_owned(),
        None => text,
    }
}
