//! Values by name and scope: `=`, `:=`, `+=`, and the look-up of variables.

use std::collections::HashMap;

use super::statement::full_name;
use super::{Noted, Read, Reader};
use crate::condition::{Op, Subject};
use crate::diagnostic::Diagnostic;
use crate::lexer::shortened;
use crate::schema::nearest;
use crate::source::Span;
use crate::tree::{BlockId, Entry};
use crate::value::Value;

/// The values that can be looked up in one block.
#[derive(Default)]
pub(super) struct ScopeValues {
    slots: HashMap<String, Slot>,
    /// The conditions in this block, so that the same condition later continues its block.
    pub(super) conditions: HashMap<(Subject, Op, String), BlockId>,
}

enum Slot {
    /// A `var.` variable, and where it was set. `None`: it is predefined.
    Variable(Value, Option<Span>),
    /// A directive: the index of its entry in the block.
    Directive(usize),
    /// The value could not be parsed, which was reported. Uses of it are no further errors.
    Broken,
}

/// How a statement sets its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Assignment {
    /// `=`: only once in a block.
    Set,
    /// `:=`: replaces an earlier value.
    Replace,
    /// `+=`: appends to the value of this block or, if there is none, of an enclosing one.
    Append,
}

/// A statement that sets a name.
pub(super) struct Statement {
    pub(super) name: String,
    pub(super) assignment: Assignment,
    pub(super) value: Value,
    pub(super) span: Span,
    pub(super) name_span: Span,
    pub(super) value_span: Span,
}

impl Reader<'_> {
    /// Adds a predefined variable.
    pub(super) fn predefine(&mut self, scope: BlockId, name: &str, value: Value) {
        self.put(scope, full_name(name), Slot::Variable(value, None));
    }

    /// Marks a name whose value could not be parsed.
    pub(super) fn mark_broken(&mut self, scope: BlockId, name: &str) {
        self.put(scope, name.to_owned(), Slot::Broken);
    }

    /// Executes a statement.
    pub(super) fn assign(&mut self, scope: BlockId, statement: Statement) -> Read<()> {
        match statement.assignment {
            Assignment::Set => self.set(scope, statement),
            Assignment::Replace => {
                self.store(scope, statement);
                Ok(())
            }
            Assignment::Append => self.append(scope, statement),
        }
    }

    fn set(&mut self, scope: BlockId, statement: Statement) -> Read<()> {
        if !self
            .scope(scope)
            .is_some_and(|values| values.slots.contains_key(&statement.name))
        {
            self.store(scope, statement);
            return Ok(());
        }
        let earlier = match self.set_at(scope, &statement.name) {
            Some(span) => format!("at {}", self.sources.location(span)),
            None => "by the server".to_owned(),
        };
        let message = format!("{} is set twice in one block", shortened(&statement.name));
        let hint = format!("it was set {earlier}; \":=\" replaces that value, \"+=\" adds to it");
        self.fail(
            Diagnostic::error(message, statement.name_span)
                .with_label("set again here")
                .with_hint(hint),
        )
    }

    fn append(&mut self, scope: BlockId, mut statement: Statement) -> Read<()> {
        let base = match self.take_own(scope, &statement.name) {
            Some(own) => Some(own?),
            None => self.inherited(scope, &statement.name, statement.value_span)?,
        };
        if let Some(base) = base {
            match self.join(base, statement.value, statement.value_span) {
                Ok(value) => statement.value = value,
                Err(Noted) => {
                    self.mark_broken(scope, &statement.name);
                    return Err(Noted);
                }
            }
        }
        self.store(scope, statement);
        Ok(())
    }

    /// A copy of the value that a name has in `scope`. `None`: it is not set.
    pub(super) fn lookup(&mut self, scope: BlockId, name: &str, span: Span) -> Read<Option<Value>> {
        let mut next = Some(scope);
        while let Some(block) = next {
            match self.scope(block).and_then(|values| values.slots.get(name)) {
                Some(Slot::Variable(value, _)) => {
                    return self.copy_of(value.clone(), span).map(Some);
                }
                Some(&Slot::Directive(index)) => {
                    let entry = self
                        .blocks
                        .get(block.index())
                        .and_then(|block| block.entries.get(index));
                    let value = entry.map(|entry| entry.value.clone());
                    return value.map(|value| self.copy_of(value, span)).transpose();
                }
                Some(Slot::Broken) => return Err(Noted),
                None => {
                    next = self
                        .blocks
                        .get(block.index())
                        .and_then(|block| block.parent)
                }
            }
        }
        Ok(None)
    }

    /// Names that are similar to `name` and can be used in `scope`.
    pub(super) fn nearest_visible(&self, scope: BlockId, name: &str) -> Vec<String> {
        let mut visible: Vec<&str> = Vec::new();
        let mut next = Some(scope);
        while let Some(block) = next {
            visible.extend(
                self.scope(block)
                    .into_iter()
                    .flat_map(|values| values.slots.keys())
                    .map(String::as_str),
            );
            next = self
                .blocks
                .get(block.index())
                .and_then(|block| block.parent);
        }
        nearest(name, visible.into_iter())
            .into_iter()
            .map(str::to_owned)
            .collect()
    }

    fn scope(&self, id: BlockId) -> Option<&ScopeValues> {
        self.scopes.get(id.index())
    }

    fn put(&mut self, scope: BlockId, name: String, slot: Slot) {
        if let Some(values) = self.scopes.get_mut(scope.index()) {
            values.slots.insert(name, slot);
        }
    }

    /// Where `name` was set in this block itself.
    fn set_at(&self, scope: BlockId, name: &str) -> Option<Span> {
        match self.scope(scope)?.slots.get(name)? {
            Slot::Variable(_, span) => *span,
            Slot::Directive(index) => Some(
                self.blocks
                    .get(scope.index())?
                    .entries
                    .get(*index)?
                    .name_span,
            ),
            Slot::Broken => None,
        }
    }

    /// Moves the value of this block out, so that appending does not copy it.
    fn take_own(&mut self, scope: BlockId, name: &str) -> Option<Read<Value>> {
        let empty = Value::Integer(0);
        match self.scopes.get_mut(scope.index())?.slots.get_mut(name)? {
            Slot::Variable(value, _) => Some(Ok(std::mem::replace(value, empty))),
            Slot::Broken => Some(Err(Noted)),
            &mut Slot::Directive(index) => {
                let entry = self.blocks.get_mut(scope.index())?.entries.get_mut(index)?;
                Some(Ok(std::mem::replace(&mut entry.value, empty)))
            }
        }
    }

    fn inherited(&mut self, scope: BlockId, name: &str, span: Span) -> Read<Option<Value>> {
        match self
            .blocks
            .get(scope.index())
            .and_then(|block| block.parent)
        {
            Some(parent) => self.lookup(parent, name, span),
            None => Ok(None),
        }
    }

    fn store(&mut self, scope: BlockId, statement: Statement) {
        let Statement {
            name,
            value,
            span,
            name_span,
            value_span,
            ..
        } = statement;
        if name.starts_with("var.") {
            self.put(scope, name, Slot::Variable(value, Some(name_span)));
            return;
        }
        let entry = Entry {
            name: name.clone(),
            value,
            span,
            name_span,
            value_span,
        };
        let known = match self.scope(scope).and_then(|values| values.slots.get(&name)) {
            Some(&Slot::Directive(index)) => Some(index),
            _ => None,
        };
        let Some(block) = self.blocks.get_mut(scope.index()) else {
            return;
        };
        if let Some(slot) = known.and_then(|index| block.entries.get_mut(index)) {
            *slot = entry;
            return;
        }
        let index = block.entries.len();
        block.entries.push(entry);
        self.put(scope, name, Slot::Directive(index));
    }
}
