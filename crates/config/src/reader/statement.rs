//! Parses statements (assignments, blocks, includes), and finds the next one after an error.

use super::scope::{Assignment, Statement};
use super::{Cursor, Noted, Read, Reader};
use crate::diagnostic::Diagnostic;
use crate::lexer::{Token, TokenKind, shortened};
use crate::schema::nearest;
use crate::tree::BlockId;

impl Reader<'_> {
    /// Parses statements up to the end of the text. An extra `}` is an error.
    pub(super) fn statements(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) {
        while !cursor.at_end() && !self.gave_up() {
            self.statements_of_block(cursor, scope);
            if let Some(close) = cursor.take(&TokenKind::BlockClose) {
                self.note(
                    Diagnostic::error("this \"}\" closes nothing", close.span)
                        .with_hint("no block is open here"),
                );
            }
        }
    }

    /// Parses statements up to a `}` or the end of the text.
    pub(super) fn statements_of_block(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) {
        while !matches!(cursor.here().kind, TokenKind::End | TokenKind::BlockClose)
            && !self.gave_up()
        {
            if let Err(Noted) = self.statement(cursor, scope) {
                recover(cursor);
            }
        }
    }

    fn statement(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<()> {
        let token = cursor.here();
        match token.kind {
            TokenKind::Dollar => self.chain(cursor, scope),
            TokenKind::Word("include") if !is_assignment(&cursor.ahead(1).kind) => {
                self.include(cursor, scope)
            }
            TokenKind::Word("include_shell") if !is_assignment(&cursor.ahead(1).kind) => {
                self.include_shell(cursor, scope)
            }
            TokenKind::Word("global") if cursor.ahead(1).kind == TokenKind::BlockOpen => {
                self.global_block(cursor)
            }
            TokenKind::Word("if") if cursor.ahead(1).kind == TokenKind::Dollar => {
                self.chain(cursor, scope)
            }
            TokenKind::Word("else" | "elif" | "elsif" | "elseif")
                if !is_assignment(&cursor.ahead(1).kind) =>
            {
                cursor.step();
                let error = Diagnostic::error("this branch belongs to no condition", token.span);
                self.fail(error.with_hint(
                    "only comments may come between the \"}\" of a condition and its \"else\"",
                ))
            }
            TokenKind::Word(name) => self.assignment(cursor, scope, name),
            TokenKind::Comma => {
                self.ignored_commas(cursor);
                Ok(())
            }
            _ => {
                cursor.step();
                self.not_a_statement(token)
            }
        }
    }

    /// Skips commas at places where they do not belong. lighttpd's parser skips them without a message.
    fn ignored_commas(&mut self, cursor: &mut Cursor<'_>) {
        while let Some(comma) = cursor.take(&TokenKind::Comma) {
            let warning = Diagnostic::warning("this comma has no effect", comma.span);
            self.note(warning.with_hint("commas belong between the elements of an array"));
        }
    }

    fn not_a_statement(&mut self, token: &Token<'_>) -> Read<()> {
        let message = format!(
            "expected a directive, a condition or an include, found {}",
            token.kind.describe()
        );
        let error = Diagnostic::error(message, token.span);
        match token.kind {
            TokenKind::String(_) => {
                self.fail(error.with_hint(
                    "values are joined with \"+\", and names of directives have no quotes",
                ))
            }
            TokenKind::Close => self.fail(error.with_hint("this \")\" closes nothing")),
            TokenKind::BlockOpen => self.fail(error.with_hint("a block begins with its condition")),
            _ => self.fail(error),
        }
    }

    fn assignment(&mut self, cursor: &mut Cursor<'_>, scope: BlockId, name: &str) -> Read<()> {
        let name_span = cursor.step().span;
        let assignment = self.assignment_operator(cursor, name)?;
        let full = full_name(name);
        if name.starts_with("env.") {
            let error = Diagnostic::error(
                format!("{} cannot be set from here", shortened(name)),
                name_span,
            );
            return self.fail(error.with_hint(
                "env.NAME reads the server's environment; use var.NAME for a variable",
            ));
        }
        self.directive.clone_from(&full);
        match self.expression(cursor, scope) {
            Ok((value, value_span)) => {
                let span = name_span.to(value_span);
                self.assign(
                    scope,
                    Statement {
                        name: full,
                        assignment,
                        value,
                        span,
                        name_span,
                        value_span,
                    },
                )
            }
            Err(Noted) => {
                self.mark_broken(scope, &full);
                Err(Noted)
            }
        }
    }

    fn assignment_operator(&mut self, cursor: &mut Cursor<'_>, name: &str) -> Read<Assignment> {
        let token = cursor.here();
        let assignment = match token.kind {
            TokenKind::Assign => Assignment::Set,
            TokenKind::Replace => Assignment::Replace,
            TokenKind::Append => Assignment::Append,
            _ => {
                let message = format!(
                    "expected \"=\" behind {}, found {}",
                    shortened(name),
                    token.kind.describe()
                );
                let error = Diagnostic::error(message, token.span);
                let keywords = ["include", "include_shell", "else", "global"];
                let hint = match (&token.kind, nearest(name, keywords.into_iter()).first()) {
                    (TokenKind::Compare(_), _) => {
                        "a condition is written $HTTP[\"…\"] == \"…\" { }".to_owned()
                    }
                    (TokenKind::Arrow, _) => {
                        "\"=>\" belongs between key and value in an array".to_owned()
                    }
                    (_, Some(keyword)) => format!("did you mean {keyword}?"),
                    _ => "a directive is set by \"=\", \":=\" or \"+=\"".to_owned(),
                };
                return self.fail(error.with_hint(hint));
            }
        };
        cursor.step();
        Ok(assignment)
    }

    fn global_block(&mut self, cursor: &mut Cursor<'_>) -> Read<()> {
        let head = cursor.step().span;
        let outer = std::mem::replace(&mut self.in_global_block, true);
        let result = self.nested(head, |reader| reader.block(cursor, BlockId::GLOBAL));
        self.in_global_block = outer;
        result
    }

    /// Parses `{ statements }` into `scope`.
    pub(super) fn block(&mut self, cursor: &mut Cursor<'_>, scope: BlockId) -> Read<()> {
        self.ignored_commas(cursor);
        let Some(open) = cursor.take(&TokenKind::BlockOpen) else {
            let token = cursor.here();
            let message = format!("expected \"{{\", found {}", token.kind.describe());
            return self.fail(
                Diagnostic::error(message, token.span)
                    .with_hint("a condition is followed by its block in braces"),
            );
        };
        self.statements_of_block(cursor, scope);
        if cursor.take(&TokenKind::BlockClose).is_none() && !self.gave_up() {
            return self.fail(
                Diagnostic::error("this block is never closed", open.span)
                    .with_label("opened here")
                    .with_hint("its \"}\" is missing"),
            );
        }
        Ok(())
    }
}

/// The full name of a directive or variable: a name without a dot belongs to a variable, and, as in lighttpd,
/// letter case does not matter.
pub(super) fn full_name(name: &str) -> String {
    let prefix = if name.contains('.') { "" } else { "var." };
    format!("{prefix}{}", name.to_ascii_lowercase())
}

/// Skips to the next place where a statement can begin: the first word or condition of a line, outside of
/// braces that were opened on the way, or the brace that closes the block.
fn recover(cursor: &mut Cursor<'_>) {
    let mut open = 0_usize;
    loop {
        let token = cursor.here();
        match token.kind {
            TokenKind::End => return,
            TokenKind::BlockOpen => open += 1,
            TokenKind::BlockClose if open == 0 => return,
            TokenKind::BlockClose => open -= 1,
            _ if open == 0 && token.first_on_line && begins_statement(cursor) => return,
            _ => {}
        }
        cursor.step();
    }
}

fn begins_statement(cursor: &Cursor<'_>) -> bool {
    match cursor.here().kind {
        TokenKind::Dollar => cursor.ahead(2).kind == TokenKind::IndexOpen,
        TokenKind::Word("include" | "include_shell" | "global") => true,
        TokenKind::Word(_) => is_assignment(&cursor.ahead(1).kind),
        _ => false,
    }
}

fn is_assignment(kind: &TokenKind<'_>) -> bool {
    matches!(
        kind,
        TokenKind::Assign | TokenKind::Replace | TokenKind::Append
    )
}
