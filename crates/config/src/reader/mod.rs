//! Parses texts into blocks: statements, scopes, expressions, includes.
//!
//! One [`Reader`] reads one configuration. It resolves everything at once, as lighttpd does: a variable has
//! the value that it had at that place in the text. After an error, reading continues at the next statement,
//! so that one run shows several errors. The tree is returned only if there was no error. [`crate::check`]
//! checks the names and types of directives later.

mod condition;
mod expression;
mod glob;
mod include;
mod scope;
mod shell;
mod statement;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::condition::{Op, Subject};
use crate::diagnostic::{Diagnostic, Severity};
use crate::lexer::{self, Token, TokenKind};
use crate::limits;
use crate::listen::ListenDefaults;
use crate::load_options::LoadOptions;
use crate::matcher::Matcher;
use crate::source::{FileId, Origin, Sources, Span};
use crate::tree::{Block, BlockId, CompiledValues, Condition, Config};
use crate::value::Value;
use scope::ScopeValues;

/// Reads one configuration.
pub(crate) struct Reader<'o> {
    options: &'o LoadOptions<'o>,
    sources: Sources,
    blocks: Vec<Block>,
    /// For each block, the values that can be looked up in it.
    scopes: Vec<ScopeValues>,
    /// For each block, its condition before it is compiled.
    drafts: Vec<Option<Draft>>,
    diagnostics: Vec<Diagnostic>,
    errors: usize,
    /// How deep blocks, arrays and includes are nested at this place.
    depth: usize,
    /// Whether a `global { }` is open, in which conditions are not allowed.
    in_global_block: bool,
    /// The directive whose value is being parsed.
    directive: String,
    /// How many bytes of values expressions have copied so far.
    copied_bytes: usize,
    /// How many bytes of text were read so far.
    read_bytes: usize,
    /// The directory of the main file. Relative includes start there, and commands run there.
    directory: PathBuf,
    /// The files that are being read, the outermost first.
    open_files: Vec<PathBuf>,
}

/// A condition before it is compiled: the pattern of a socket can be completed only at the end of the text.
struct Draft {
    subject: Subject,
    op: Op,
    pattern: String,
    span: Span,
    pattern_span: Span,
}

/// There was an error, and it was reported.
#[derive(Debug)]
struct Noted;

type Read<T> = Result<T, Noted>;

/// A position in the tokens of one source.
struct Cursor<'t> {
    tokens: &'t [Token<'t>],
    at: usize,
}

impl<'o> Reader<'o> {
    pub(crate) fn new(options: &'o LoadOptions<'o>) -> Reader<'o> {
        let mut reader = Reader {
            options,
            sources: Sources::default(),
            blocks: Vec::new(),
            scopes: Vec::new(),
            drafts: Vec::new(),
            diagnostics: Vec::new(),
            errors: 0,
            depth: 0,
            in_global_block: false,
            directive: String::new(),
            copied_bytes: 0,
            read_bytes: 0,
            directory: options.directory.clone(),
            open_files: Vec::new(),
        };
        let nowhere = Span {
            file: FileId(0),
            start: 0,
            end: 0,
        };
        let global = reader.add_block(None, None, None, nowhere);
        for (name, value) in &options.variables {
            reader.predefine(global, name, value.clone());
        }
        reader
    }

    /// Reads the main file.
    pub(crate) fn read_main_file(&mut self, path: &Path) {
        if let Some(parent) = path.parent() {
            self.directory = self.options.directory.join(parent);
        }
        match include::read_text(path, limits::FILE_BYTES_MAX) {
            Ok(text) => {
                self.open_files.push(include::identity(path));
                self.read_text(Origin::File(path.to_owned()), text, None, BlockId::GLOBAL);
                self.open_files.pop();
            }
            Err(reason) => {
                let message = format!("cannot read {}: {reason}", path.display());
                self.diagnostics.push(Diagnostic::error_anywhere(message));
            }
        }
    }

    /// Parses a text into the block `scope`.
    pub(crate) fn read_text(
        &mut self,
        origin: Origin,
        text: String,
        included_from: Option<Span>,
        scope: BlockId,
    ) {
        self.read_bytes += text.len();
        let file = self.sources.add(origin, text, included_from);
        let text: Arc<str> = self.sources.shared_text(file);
        let (tokens, errors) = lexer::tokens(file, &text);
        let broken = errors
            .iter()
            .any(|error| error.message.contains("never closed"));
        for error in errors {
            self.note(error);
        }
        let mut cursor = Cursor {
            tokens: &tokens,
            at: 0,
        };
        // An unclosed string ends the tokens early. Errors that follow from that are not worth reporting.
        let errors_before = self.errors;
        self.statements(&mut cursor, scope);
        if broken && self.errors > errors_before {
            self.drop_errors_at_end(file, text.len() as u32);
        }
    }

    /// The blocks, with conditions compiled and directives not yet checked. Errors are among the warnings; a
    /// block whose condition has an error has no condition.
    pub(crate) fn finish(mut self) -> Config {
        let drafts = std::mem::take(&mut self.drafts);
        for (index, draft) in drafts.into_iter().enumerate() {
            let condition = draft.and_then(|draft| self.compile(index, draft));
            if let Some(block) = self.blocks.get_mut(index) {
                block.condition = condition;
            }
        }
        Config {
            sources: self.sources,
            blocks: self.blocks,
            warnings: self.diagnostics,
            compiled: CompiledValues::default(),
        }
    }

    fn compile(&mut self, index: usize, draft: Draft) -> Option<Condition> {
        let defaults = self.listen_defaults(index);
        match Matcher::compile(&draft.subject, draft.op, &draft.pattern, defaults) {
            Ok(matcher) => {
                let Draft {
                    subject,
                    op,
                    pattern,
                    span,
                    pattern_span,
                } = draft;
                Some(Condition {
                    subject,
                    op,
                    pattern,
                    span,
                    pattern_span,
                    matcher,
                })
            }
            Err(error) => {
                let span = self.narrowed(draft.pattern_span, &draft.pattern, error.offset);
                let mut diagnostic = Diagnostic::error(error.message, span).with_label("here");
                diagnostic.hint = error.hint.map(str::to_owned);
                self.note(diagnostic);
                None
            }
        }
    }

    /// The place `offset` bytes into a pattern, if the text has the pattern literally.
    fn narrowed(&self, span: Span, pattern: &str, offset: Option<usize>) -> Span {
        let written = self.sources.text(span);
        let inner = written
            .get(1..written.len().saturating_sub(1))
            .unwrap_or("");
        match offset {
            Some(offset) if inner == pattern && inner.is_char_boundary(offset) => {
                let start = span.start + 1 + offset as u32;
                Span {
                    start,
                    end: (start + 1).min(span.end),
                    ..span
                }
            }
            _ => span,
        }
    }

    /// The values that complete a socket pattern of this block: `server.port`, and `server.use-ipv6` of the
    /// block itself or of the global block.
    fn listen_defaults(&self, index: usize) -> ListenDefaults {
        let set = |block: usize, name: &str| {
            self.blocks
                .get(block)
                .and_then(|block| block.entry(name))
                .map(|entry| &entry.value)
        };
        let port = set(0, "server.port")
            .and_then(Value::as_integer)
            .and_then(|port| u16::try_from(port).ok());
        let ipv6 = set(index, "server.use-ipv6")
            .or_else(|| set(0, "server.use-ipv6"))
            .and_then(Value::as_bool);
        ListenDefaults {
            port: port.unwrap_or(80),
            ipv6: ipv6.unwrap_or(false),
        }
    }

    fn add_block(
        &mut self,
        parent: Option<BlockId>,
        draft: Option<Draft>,
        previous_branch: Option<BlockId>,
        span: Span,
    ) -> BlockId {
        let id = BlockId(self.blocks.len() as u32);
        self.blocks.push(Block {
            id,
            parent,
            condition: None,
            previous_branch,
            entries: Vec::new(),
            span,
        });
        self.scopes.push(ScopeValues::default());
        self.drafts.push(draft);
        id
    }

    /// Stores a message. After [`limits::ERRORS_MAX`] errors no more are stored, because they would not help.
    fn note(&mut self, diagnostic: Diagnostic) {
        if diagnostic.severity == Severity::Error {
            self.errors += 1;
            if self.errors > limits::ERRORS_MAX {
                return;
            }
        }
        self.diagnostics.push(diagnostic);
    }

    fn fail<T>(&mut self, diagnostic: Diagnostic) -> Read<T> {
        self.note(diagnostic);
        Err(Noted)
    }

    /// Whether there are so many errors that reading stops.
    fn gave_up(&self) -> bool {
        self.errors >= limits::ERRORS_MAX
    }

    fn drop_errors_at_end(&mut self, file: FileId, end: u32) {
        let at_end = |diagnostic: &Diagnostic| {
            diagnostic
                .span
                .is_some_and(|span| span.file == file && span.start >= end)
        };
        self.diagnostics.retain(|diagnostic| {
            !(diagnostic.message.contains("the end of the file") && at_end(diagnostic))
        });
    }

    /// Runs `inner` one level deeper, or reports that the nesting is too deep.
    fn nested<T>(&mut self, span: Span, inner: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth >= limits::NESTING_MAX {
            let message = format!("nested more than {} levels deep", limits::NESTING_MAX);
            return self.fail(Diagnostic::error(message, span).with_label("one level too many"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }
}

impl<'t> Cursor<'t> {
    /// The present token; after the end, the end token.
    fn here(&self) -> &'t Token<'t> {
        self.ahead(0)
    }

    fn ahead(&self, distance: usize) -> &'t Token<'t> {
        let token = self
            .tokens
            .get(self.at + distance)
            .or_else(|| self.tokens.last());
        token.expect("the lexer ends every token list with an end token")
    }

    fn step(&mut self) -> &'t Token<'t> {
        let token = self.here();
        self.at = (self.at + 1).min(self.tokens.len());
        token
    }

    fn take(&mut self, kind: &TokenKind<'_>) -> Option<&'t Token<'t>> {
        (self.here().kind == *kind).then(|| self.step())
    }

    fn is_word(&self, distance: usize, word: &str) -> bool {
        self.ahead(distance).kind == TokenKind::Word(word)
    }

    fn at_end(&self) -> bool {
        self.here().kind == TokenKind::End
    }

    /// The span of the last token that was consumed.
    fn last_span(&self) -> Span {
        self.tokens
            .get(self.at.saturating_sub(1))
            .map_or_else(|| self.here().span, |token| token.span)
    }
}
