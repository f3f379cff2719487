//! The checked tree: blocks of entries, conditions between them.

use std::fmt;

use crate::condition::{Op, Subject};
use crate::diagnostic::Diagnostic;
use crate::matcher::Matcher;
use crate::source::{Sources, Span};
use crate::value::Value;

/// A configuration that has been read, resolved and checked.
///
/// Blocks stand in the order of the text, a block after its parent: where several true blocks set
/// one directive, the one with the highest id counts.
#[derive(Debug)]
pub struct Config {
    /// The texts it was read from; spans point into them.
    pub sources: Sources,
    /// The blocks; the first is the global one and there always is one.
    pub blocks: Vec<Block>,
    /// What start-up should tell, in the order of the text.
    pub warnings: Vec<Diagnostic>,
}

impl Config {
    /// The block outside all conditions.
    #[must_use]
    pub fn global(&self) -> &Block {
        self.blocks
            .first()
            .expect("a configuration always has its global block")
    }

    /// The block with this id.
    #[must_use]
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.index())
    }
}

/// The index of a block in [`Config::blocks`]; 0 is the global one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The block outside all conditions.
    pub const GLOBAL: BlockId = BlockId(0);

    /// The id as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One scope: the directives set in it and when it applies.
#[derive(Debug)]
pub struct Block {
    /// Its index in [`Config::blocks`].
    pub id: BlockId,
    /// The scope it stands in; it applies only when that one does. None for the global block.
    pub parent: Option<BlockId>,
    /// When it applies. None for the global block and for a plain `else`.
    pub condition: Option<Condition>,
    /// The branch before it in an if-else chain: this block applies only when that branch and all
    /// before it do not.
    pub previous_branch: Option<BlockId>,
    /// The directives set here, in order, each name once. Variables are resolved and not listed.
    pub entries: Vec<Entry>,
    /// The head of the block: the condition, or `else`.
    pub span: Span,
}

/// The condition of a block.
#[derive(Debug)]
pub struct Condition {
    /// What is compared.
    pub subject: Subject,
    /// How.
    pub op: Op,
    /// The right side as written, escapes and variables resolved.
    pub pattern: String,
    /// The condition in the text, from `$` to the pattern's end.
    pub span: Span,
    /// Where the pattern stands.
    pub pattern_span: Span,
    /// The compiled comparison.
    pub matcher: Matcher,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} \"{}\"",
            self.subject,
            self.op.symbol(),
            self.pattern.replace('"', "\\\"")
        )
    }
}

impl Block {
    /// The entry that sets `name` in this very block.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// One directive set in one block.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The directive.
    pub name: String,
    /// Its final value in this block, what `+=` added included.
    pub value: Value,
    /// The whole statement that set it last.
    pub span: Span,
    /// The name in that statement.
    pub name_span: Span,
    /// The value in that statement.
    pub value_span: Span,
}
