//! The checked tree: blocks of entries, conditions between them.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// See [`Config::compiled`].
    pub(crate) compiled: CompiledValues,
}

/// What was made of values, by what it is and the block they stand in.
pub(crate) type CompiledValues =
    Mutex<HashMap<(&'static str, BlockId), Arc<dyn Any + Send + Sync>>>;

impl Config {
    /// The block outside all conditions.
    #[must_use]
    pub fn global(&self) -> &Block {
        self.blocks
            .first()
            .expect("a configuration always has its global block")
    }

    /// What `make` makes of values of `block`, made once: the check at the start makes it, and all workers and all settings
    /// share it. `what` tells apart what is made of one block.
    ///
    /// # Errors
    /// That of `make`.
    pub fn compiled<T: Any + Send + Sync>(
        &self,
        what: &'static str,
        block: BlockId,
        make: impl FnOnce() -> Result<T, Diagnostic>,
    ) -> Result<Arc<T>, Diagnostic> {
        let all = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all().get(&(what, block)).cloned();
        if let Some(found) = found.and_then(|found| found.downcast().ok()) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        all().insert((what, block), made.clone());
        Ok(made)
    }

    /// The block with this id.
    #[must_use]
    pub fn block(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(id.index())
    }

    /// Whether the truth of `block` depends on these subjects alone: its own condition, those of the branches before it and
    /// those around it.
    #[must_use]
    pub fn depends_only_on(&self, block: &Block, is_known: &dyn Fn(&Subject) -> bool) -> bool {
        let own = block.condition.as_ref();
        let of = |id| {
            self.block(id)
                .is_none_or(|block| self.depends_only_on(block, is_known))
        };
        own.is_none_or(|condition| is_known(&condition.subject))
            && block.previous_branch.is_none_or(of)
            && block.parent.is_none_or(of)
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
