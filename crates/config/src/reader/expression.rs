//! Parses expressions: values, variables, arrays, and `+`.

use super::statement::full_name;
use super::{Cursor, Noted, Read, Reader};
use crate::diagnostic::Diagnostic;
use crate::lexer::{Token, TokenKind, shortened};
use crate::limits;
use crate::source::Span;
use crate::tree::BlockId;
use crate::value::{Array, Element, Key, Value};

impl Reader<'_> {
    /// Parses values joined by `+`. Returns the result and its place.
    pub(super) fn expression(
        &mut self,
        cursor: &mut Cursor<'_>,
        scope: BlockId,
    ) -> Read<(Value, Span)> {
        let (mut value, mut span) = self.operand(cursor, scope)?;
        while cursor.take(&TokenKind::Plus).is_some() {
            let (right, right_span) = self.operand(cursor, scope)?;
            value = self.join(value, right, right_span)?;
            span = span.to(right_span);
        }
        Ok((value, span))
    }

    /// Parses an expression that must be a string; an integer becomes its digits.
    pub(super) fn text_expression(
        &mut self,
        cursor: &mut Cursor<'_>,
        scope: BlockId,
        what: &str,
    ) -> Read<(String, Span)> {
        match self.expression(cursor, scope)? {
            (Value::String(text), span) => Ok((text, span)),
            (Value::Integer(number), span) => Ok((number.to_string(), span)),
            (Value::Array(_), span) => self.fail(Diagnostic::error(
                format!("{what} is a string, this is an array"),
                span,
            )),
        }
    }

    /// `left + right`: joins arrays, adds integers, and appends anything to text.
    pub(super) fn join(&mut self, left: Value, right: Value, span: Span) -> Read<Value> {
        let right = self.copy_of(right, span)?;
        match (left, right) {
            (Value::String(left), Value::String(right)) => Ok(Value::String(left + &right)),
            (Value::String(left), Value::Integer(right)) => {
                Ok(Value::String(left + &right.to_string()))
            }
            (Value::Integer(left), Value::String(right)) => {
                Ok(Value::String(left.to_string() + &right))
            }
            (Value::Integer(left), Value::Integer(right)) => match left.checked_add(right) {
                Some(sum) => Ok(Value::Integer(sum)),
                None => self.fail(Diagnostic::error("the sum does not fit 64 bits", span)),
            },
            (Value::Array(left), Value::Array(right)) => self.join_arrays(left, right),
            (left, right) => {
                let message = format!(
                    "{} cannot be added to {}",
                    right.type_name(),
                    left.type_name()
                );
                let error = Diagnostic::error(message, span)
                    .with_label(format!("this is {}", right.type_name()));
                match left {
                    Value::Array(_) => self.fail(
                        error.with_hint("an array is joined with another array: ( \"value\" )"),
                    ),
                    Value::String(_) | Value::Integer(_) => {
                        self.fail(error.with_hint("an array can only be joined with another array"))
                    }
                }
            }
        }
    }

    /// Counts a copied value against [`limits::COPIED_BYTES_MAX`], and refuses a value that variables have
    /// nested too deep.
    pub(super) fn copy_of(&mut self, value: Value, span: Span) -> Read<Value> {
        let extent = value.extent();
        self.copied_bytes = self.copied_bytes.saturating_add(extent.bytes);
        if self.copied_bytes > limits::COPIED_BYTES_MAX {
            let mebibytes = limits::COPIED_BYTES_MAX >> 20;
            let message = format!("expressions have copied more than {mebibytes} MiB of values");
            let hint = "a variable that is added to itself doubles each time";
            return self.fail(Diagnostic::error(message, span).with_hint(hint));
        }
        if extent.depth > limits::NESTING_MAX {
            let message = format!(
                "this value is nested more than {} levels deep",
                limits::NESTING_MAX
            );
            return self.fail(Diagnostic::error(message, span));
        }
        Ok(value)
    }

    fn operand(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<(Value, Span)> {
        let token = cursor.here();
        match &token.kind {
            TokenKind::String(text) => {
                cursor.step();
                Ok((Value::String(text.to_string()), token.span))
            }
            TokenKind::Integer(Some(number)) => {
                cursor.step();
                Ok((Value::Integer(*number), token.span))
            }
            TokenKind::Integer(None) => {
                cursor.step();
                self.fail(Diagnostic::error(
                    "this number does not fit 64 bits",
                    token.span,
                ))
            }
            TokenKind::Word(name) => {
                cursor.step();
                Ok((self.variable(name, token.span, scope)?, token.span))
            }
            TokenKind::Open => self.nested(token.span, |reader| reader.array(cursor, scope)),
            other => {
                let message = format!("expected a value, found {}", other.describe());
                self.fail(
                    Diagnostic::error(message, token.span)
                        .with_hint("a value is a \"string\", a number, ( an array ) or a variable"),
                )
            }
        }
    }

    fn variable(&mut self, name: &str, span: Span, scope: BlockId) -> Read<Value> {
        if let Some(variable) = name.strip_prefix("env.") {
            return self.environment_variable(variable, span);
        }
        let full = full_name(name);
        match self.lookup(scope, &full, span)? {
            Some(value) => Ok(value),
            None => self.unset(&full, span, scope),
        }
    }

    fn environment_variable(&mut self, name: &str, span: Span) -> Read<Value> {
        match (self.options.environment)(name) {
            Some(value) => Ok(Value::String(value)),
            None => {
                let message = format!("the environment has no variable {}", shortened(name));
                self.fail(
                    Diagnostic::error(message, span)
                        .with_hint(format!("start the server with {} set", shortened(name))),
                )
            }
        }
    }

    fn unset(&mut self, name: &str, span: Span, scope: BlockId) -> Read<Value> {
        let message = format!("{} is not defined above", shortened(name));
        let near = self.nearest_visible(scope, name);
        let hint = match near.first() {
            Some(known) => format!("did you mean {known}?"),
            None => match name.strip_prefix("var.") {
                Some(word) => format!("text needs quotes: \"{}\"", shortened(word)),
                None => "a directive can be used only after the line that sets it".to_owned(),
            },
        };
        self.fail(
            Diagnostic::error(message, span)
                .with_label("used here")
                .with_hint(hint),
        )
    }

    fn array(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<(Value, Span)> {
        let open = cursor.step().span;
        let mut array = Array::default();
        loop {
            if let Some(close) = cursor.take(&TokenKind::Close) {
                return Ok((Value::Array(array), open.to(close.span)));
            }
            let element = self.element(cursor, scope, open)?;
            self.add_element(&mut array, element)?;
            self.end_of_element(cursor, open)?;
        }
    }

    fn element(&mut self, cursor: &mut Cursor<'_>, scope: BlockId, open: Span) -> Read<Element> {
        if ends_array_early(cursor) {
            return self.unclosed_array(open);
        }
        let (first, first_span) = self.expression(cursor, scope)?;
        if cursor.take(&TokenKind::Arrow).is_none() {
            return Ok(Element {
                key: None,
                value: first,
                span: first_span,
            });
        }
        let text = match first {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Array(_) => {
                return self.fail(Diagnostic::error(
                    "a key is a string, this is an array",
                    first_span,
                ));
            }
        };
        let (value, span) = self.expression(cursor, scope)?;
        Ok(Element {
            key: Some(Key {
                text,
                span: first_span,
            }),
            value,
            span,
        })
    }

    fn add_element(&mut self, array: &mut Array, element: Element) -> Read<()> {
        let Err(element) = array.push(element) else {
            return Ok(());
        };
        let key = element
            .key
            .as_ref()
            .expect("only an element with a key can be refused");
        let error = Diagnostic::error(
            format!(
                "the key \"{}\" is twice in this array",
                shortened(&key.text)
            ),
            key.span,
        );
        self.fail(
            error
                .with_label("again here")
                .with_hint("remove one of the two"),
        )
    }

    /// Skips the comma, or moves to the closing parenthesis.
    fn end_of_element(&mut self, cursor: &mut Cursor<'_>, open: Span) -> Read<()> {
        while let Some(len) = element_to_skip(cursor) {
            let after = self.place_of_end(cursor.last_span());
            let start = cursor.here().span;
            for _ in 0..len {
                cursor.step();
            }
            let span = start.to(cursor.last_span());
            let what = shortened(self.sources.text(span));
            let hint = format!("is a comma missing behind {after}?");
            if protects(&self.directive) {
                let message = format!(
                    "{what} would have no effect in {}, and what it protects would be open",
                    self.directive
                );
                return self.fail(Diagnostic::error(message, span).with_hint(hint));
            }
            let message = format!("{what} has no effect, as in lighttpd");
            self.note(Diagnostic::warning(message, span).with_hint(hint));
        }
        if cursor.here().kind == TokenKind::Close {
            return Ok(());
        }
        if cursor.take(&TokenKind::Comma).is_some() {
            while cursor.take(&TokenKind::Comma).is_some() {}
            return Ok(());
        }
        if ends_array_early(cursor) {
            return self.unclosed_array(open);
        }
        let token = cursor.here();
        let after = cursor.last_span();
        let message = format!(
            "expected \",\" or \")\" in this array, found {}",
            token.kind.describe()
        );
        let hint = match token.kind {
            TokenKind::Assign => "a key of an array is followed by \"=>\"".to_owned(),
            _ => format!("is a comma missing behind {}?", self.place_of_end(after)),
        };
        self.fail(Diagnostic::error(message, token.span).with_hint(hint))
    }

    /// "line 4" or, on the same line, the text itself.
    fn place_of_end(&self, span: Span) -> String {
        format!(
            "{} in line {}",
            shortened(self.sources.text(span)),
            self.sources.location(span).line
        )
    }

    fn unclosed_array<T>(&mut self, open: Span) -> Read<T> {
        let error = Diagnostic::error("this array is never closed", open).with_label("opened here");
        self.fail(error.with_hint("its \")\" is missing"))
    }

    /// `left` with the elements of `right` appended.
    fn join_arrays(&mut self, mut left: Array, right: Array) -> Read<Value> {
        let mut failed = false;
        for element in right {
            if let Err(element) = left.push(element) {
                failed |= self.duplicate(&left, &element).is_err();
            }
        }
        if failed {
            Err(Noted)
        } else {
            Ok(Value::Array(left))
        }
    }

    /// As in lighttpd, a key may occur again with the same value, but not with another one.
    fn duplicate(&mut self, array: &Array, again: &Element) -> Read<()> {
        let key = again
            .key
            .as_ref()
            .expect("only an element with a key can be refused");
        let earlier = array.get(&key.text);
        let place = earlier
            .and_then(|element| element.key.as_ref())
            .map(|key| self.sources.location(key.span).to_string());
        let place = place.unwrap_or_default();
        if earlier.is_some_and(|element| element.value == again.value) {
            let message = format!(
                "the key \"{}\" is in the array already, with the same value",
                shortened(&key.text)
            );
            self.note(
                Diagnostic::warning(message, key.span).with_hint(format!("it is at {place}")),
            );
            return Ok(());
        }
        let message = format!(
            "the key \"{}\" is in the array already, with another value",
            shortened(&key.text)
        );
        self.fail(
            Diagnostic::error(message, key.span)
                .with_label("again here")
                .with_hint(format!(
                    "it was set at {place}; \":=\" replaces a whole array"
                )),
        )
    }
}

/// Whether a list of `directive` that is shorter than it looks would leave something unprotected.
fn protects(directive: &str) -> bool {
    PROTECTING.iter().any(|begin| directive.starts_with(begin))
}

/// Prefixes of directives that decide which clients get what.
const PROTECTING: &[&str] = &[
    "access.",
    "auth.",
    "dir-listing.exclude",
    "dir-listing.hide",
    "limit.",
    "ssl.",
    "static-file.exclude-extensions",
    "url.access-",
    "userdir.exclude-user",
];

/// How many tokens the element has that begins a line here without a comma before it. lighttpd's parser skips
/// tokens that it does not expect, so only elements without parentheses and sums can be skipped as a whole.
fn element_to_skip(cursor: &Cursor<'_>) -> Option<usize> {
    let is_plain = |at| {
        let kind = &cursor.ahead(at).kind;
        matches!(
            kind,
            TokenKind::String(_) | TokenKind::Integer(_) | TokenKind::Word(_)
        )
    };
    let has_key = cursor.ahead(1).kind == TokenKind::Arrow;
    let len = if has_key { 3 } else { 1 };
    let ends = match cursor.ahead(len).kind {
        TokenKind::Comma | TokenKind::Close => true,
        _ => cursor.ahead(len).first_on_line && is_plain(len),
    };
    (cursor.here().first_on_line && is_plain(0) && is_plain(len - 1) && ends).then_some(len)
}

/// Whether the next token cannot be in an array: the end, a brace, or the begin of a statement.
fn ends_array_early(cursor: &Cursor<'_>) -> bool {
    let Token {
        kind,
        first_on_line,
        ..
    } = cursor.here();
    match kind {
        TokenKind::End | TokenKind::BlockOpen | TokenKind::BlockClose => true,
        TokenKind::Dollar => *first_on_line,
        TokenKind::Word(_) if *first_on_line => matches!(
            cursor.ahead(1).kind,
            TokenKind::Assign | TokenKind::Replace | TokenKind::Append
        ),
        _ => false,
    }
}
