//! The checked tree: blocks with entries, and conditions between them.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::condition::{Op, Subject};
use crate::diagnostic::Diagnostic;
use crate::matcher::Matcher;
use crate::source::{Sources, Span};
use crate::value::Value;

/// A configuration that was read, resolved and checked.
///
/// Blocks are in the order of the text, each after its parent. If several true blocks set a directive, the
/// one with the highest id counts.
#[derive(Debug)]
pub struct Config {
    /// The texts; spans point into them.
    pub sources: Sources,
    /// The blocks. The first is the global one, which always exists.
    pub blocks: Vec<Block>,
    /// Warnings for start-up, in the order of the text.
    pub warnings: Vec<Diagnostic>,
    /// See [`Config::compiled`].
    pub(crate) compiled: CompiledValues,
}

/// Compiled values, by the kind of result and the block of the values.
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

    /// The result of `make` for values of `block`. It is made only once, by the check at start-up, and all
    /// workers and settings share it. `what` is the kind of result.
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

    /// The conditions that `id` stands in, as the configuration writes them, the outermost first:
    /// `$HTTP["host"] == "a.example" and $HTTP["url"] =^ "/x"`. Empty for the global block.
    #[must_use]
    pub fn conditions_of(&self, id: BlockId) -> String {
        let mut conditions = Vec::new();
        let mut next = Some(id);
        while let Some(block) = next.and_then(|id| self.block(id)) {
            let before = block.previous_branch.and_then(|id| self.block(id));
            let before = before.and_then(|before| before.condition.as_ref());
            match (&block.condition, before) {
                (Some(condition), _) => conditions.push(condition.to_string()),
                (None, Some(before)) => conditions.push(format!("else of {before}")),
                (None, None) => {}
            }
            next = block.parent;
        }
        conditions.reverse();
        conditions.join(" and ")
    }

    /// Whether only these subjects decide if `block` is true: those of its own condition, of the branches
    /// before it, and of the blocks around it.
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

/// A scope: the directives in it, and when it applies.
#[derive(Debug)]
pub struct Block {
    /// Its index in [`Config::blocks`].
    pub id: BlockId,
    /// The block around it; it applies only if that one does. `None` for the global block.
    pub parent: Option<BlockId>,
    /// When it applies. `None` for the global block and for a plain `else`.
    pub condition: Option<Condition>,
    /// The branch before it in an if-else chain: this block applies only if that branch and all before it do
    /// not.
    pub previous_branch: Option<BlockId>,
    /// The directives that are set here, in order, each once. Variables are resolved and not listed.
    pub entries: Vec<Entry>,
    /// The head of the block: the condition or `else`.
    pub span: Span,
}

/// The condition of a block.
#[derive(Debug)]
pub struct Condition {
    /// The value that is compared.
    pub subject: Subject,
    /// The operator.
    pub op: Op,
    /// The right side, with escapes and variables resolved.
    pub pattern: String,
    /// The condition in the text, from `$` to the end of the pattern.
    pub span: Span,
    /// The pattern in the text.
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
    /// The entry for `name` in this block itself.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

/// A directive that is set in a block.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The directive.
    pub name: String,
    /// Its final value in this block, with everything that `+=` has added.
    pub value: Value,
    /// The whole statement that has set it last.
    pub span: Span,
    /// The name in that statement.
    pub name_span: Span,
    /// The value in that statement.
    pub value_span: Span,
}
