//! Parses conditions and their branches.

use super::{Cursor, Draft, Read, Reader};
use crate::condition::Subject;
use crate::diagnostic::Diagnostic;
use crate::lexer::{TokenKind, shortened};
use crate::schema::nearest;
use crate::source::Span;
use crate::tree::BlockId;

/// How a further branch begins.
enum Branch {
    /// `else { }`
    Otherwise(Span),
    /// `else $…`, `else if $…`, `elif $…`, `elsif $…`, `elseif $…`
    Conditional,
}

impl Reader<'_> {
    /// Parses a condition with its block, and all branches that follow.
    pub(super) fn chain(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<()> {
        if cursor.is_word(0, "if") {
            cursor.step();
        }
        if self.in_global_block {
            let error = Diagnostic::error(
                "a condition cannot stand in a global block",
                cursor.here().span,
            );
            self.note(error.with_hint("close the global block before it"));
        }
        let mut last = self.branch(cursor, scope, None)?;
        let mut otherwise = None;
        while let Some(branch) = next_branch(cursor) {
            if let Some(span) = otherwise {
                let error = Diagnostic::error(
                    "this branch comes after a plain else and is never reached",
                    cursor.last_span(),
                );
                self.note(error.with_hint(format!(
                    "the plain else is at {}",
                    self.sources.location(span)
                )));
            }
            last = match branch {
                Branch::Conditional => self.branch(cursor, scope, Some(last))?,
                Branch::Otherwise(span) => {
                    otherwise = Some(span);
                    let block = self.add_block(Some(scope), None, Some(last), span);
                    self.nested(span, |reader| reader.block(cursor, block))?;
                    block
                }
            };
        }
        Ok(())
    }

    /// Parses one condition and its block. As in lighttpd, a condition that `scope` already has is continued:
    /// both parts of the text are one block. Branches of an else always make a new block.
    fn branch(
        &mut self,
        cursor: &mut Cursor<'_>,
        scope: BlockId,
        previous: Option<BlockId>,
    ) -> Read<BlockId> {
        let draft = self.condition(cursor, scope)?;
        let span = draft.span;
        let key = (draft.subject.clone(), draft.op, draft.pattern.clone());
        let known = self
            .scopes
            .get(scope.index())
            .and_then(|values| values.conditions.get(&key))
            .copied();
        let block = match known {
            Some(block) if previous.is_none() => block,
            _ => {
                let block = self.add_block(Some(scope), Some(draft), previous, span);
                if let Some(values) = self
                    .scopes
                    .get_mut(scope.index())
                    .filter(|_| previous.is_none())
                {
                    values.conditions.insert(key, block);
                }
                block
            }
        };
        self.nested(span, |reader| reader.block(cursor, block))?;
        Ok(block)
    }

    fn condition(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<Draft> {
        let dollar = self.expect(
            cursor,
            &TokenKind::Dollar,
            "a condition such as $HTTP[\"host\"]",
        )?;
        let (object, object_span) = self.object(cursor)?;
        self.expect(cursor, &TokenKind::IndexOpen, "\"[\"")?;
        let (field, field_span) = self.text_expression(cursor, scope, "the name in brackets")?;
        self.expect(cursor, &TokenKind::IndexClose, "\"]\"")?;
        let subject = self.subject(object, object_span, &field, field_span);
        let token = cursor.here();
        let TokenKind::Compare(op) = token.kind else {
            let message = format!("expected a comparison, found {}", token.kind.describe());
            return self.fail(
                Diagnostic::error(message, token.span)
                    .with_hint("comparisons are ==, !=, =~, !~, =^ and =$"),
            );
        };
        cursor.step();
        let (pattern, pattern_span) =
            self.text_expression(cursor, scope, "the right side of a comparison")?;
        Ok(Draft {
            subject,
            op,
            pattern,
            span: dollar.to(pattern_span),
            pattern_span,
        })
    }

    fn object<'t>(&mut self, cursor: &mut Cursor<'t>) -> Read<(&'t str, Span)> {
        let token = cursor.here();
        match token.kind {
            TokenKind::Word(object) => {
                cursor.step();
                Ok((object, token.span))
            }
            ref other => {
                let message = format!(
                    "expected HTTP, SERVER, REQUEST_HEADER or PHYSICAL behind \"$\", found {}",
                    other.describe()
                );
                self.fail(Diagnostic::error(message, token.span))
            }
        }
    }

    /// The subject. For an unknown one, reports the error and returns a substitute, so that parsing can
    /// continue.
    fn subject(
        &mut self,
        object: &str,
        object_span: Span,
        field: &str,
        field_span: Span,
    ) -> Subject {
        if let Some(subject) = Subject::parse(object, field) {
            return subject;
        }
        let error = if OBJECTS.contains(&object) {
            let error = Diagnostic::error(
                format!("there is no ${object}[\"{}\"]", shortened(field)),
                field_span,
            );
            let fields = Subject::fields(object);
            match nearest(field, fields.iter().copied()).first() {
                Some(known) => error.with_hint(format!("did you mean ${object}[\"{known}\"]?")),
                None if fields.is_empty() => {
                    error.with_hint("write the name of a request header in the brackets")
                }
                None => error.with_hint(format!("there are: {}", fields.join(", "))),
            }
        } else {
            let error = Diagnostic::error(
                format!("there is no condition ${}", shortened(object)),
                object_span,
            );
            let known = nearest(object, OBJECTS.iter().copied());
            error.with_hint(match known.first() {
                Some(known) => format!("did you mean ${known}?"),
                None => format!("there are: ${}", OBJECTS.join(", $")),
            })
        };
        self.note(error);
        Subject::RequestHeader(field.to_owned())
    }

    fn expect(&mut self, cursor: &mut Cursor<'_>, kind: &TokenKind<'_>, what: &str) -> Read<Span> {
        if let Some(token) = cursor.take(kind) {
            return Ok(token.span);
        }
        let token = cursor.here();
        self.fail(Diagnostic::error(
            format!("expected {what}, found {}", token.kind.describe()),
            token.span,
        ))
    }
}

/// Skips the words that begin a further branch, if there is one.
fn next_branch(cursor: &mut Cursor<'_>) -> Option<Branch> {
    let span = cursor.here().span;
    let words = match cursor.here().kind {
        TokenKind::Word("else") if cursor.is_word(1, "if") => 2,
        TokenKind::Word("else" | "elif" | "elsif" | "elseif") => 1,
        _ => return None,
    };
    let branch = match cursor.ahead(words).kind {
        TokenKind::Dollar => Branch::Conditional,
        TokenKind::BlockOpen if cursor.is_word(0, "else") && words == 1 => Branch::Otherwise(span),
        // A variable with that name, or an error that the statement parser reports.
        TokenKind::Assign | TokenKind::Replace | TokenKind::Append => return None,
        _ => Branch::Conditional,
    };
    for _ in 0..words {
        cursor.step();
    }
    Some(branch)
}

const OBJECTS: [&str; 4] = ["HTTP", "SERVER", "REQUEST_HEADER", "PHYSICAL"];
