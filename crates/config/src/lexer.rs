//! Splits text into tokens.
//!
//! Line ends have no meaning in this language, except that they end comments: lighttpd's grammar allows them
//! between any two tokens, and a statement can be recognised by its beginning. The lexer only marks tokens
//! that are first on their line. After an error the parser continues at such a token.

use std::borrow::Cow;

use crate::diagnostic::Diagnostic;
use crate::source::{FileId, Span};

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token<'t> {
    pub(crate) kind: TokenKind<'t>,
    pub(crate) span: Span,
    /// Whether only white space precedes it on its line.
    pub(crate) first_on_line: bool,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind<'t> {
    /// A directive, variable or keyword.
    Word(&'t str),
    /// Digits; `None` if the number does not fit into 64 bits.
    Integer(Option<i64>),
    /// A quoted string without its quotes, with escapes resolved.
    String(Cow<'t, str>),
    /// `=`
    Assign,
    /// `:=`
    Replace,
    /// `+=`
    Append,
    /// `=>`
    Arrow,
    /// `+`
    Plus,
    /// `,`
    Comma,
    /// `(`
    Open,
    /// `)`
    Close,
    /// `{`
    BlockOpen,
    /// `}`
    BlockClose,
    /// `[`
    IndexOpen,
    /// `]`
    IndexClose,
    /// `$`
    Dollar,
    /// `==`, `!=`, `=~`, `!~`, `=^`, `=$`
    Compare(crate::condition::Op),
    /// The end of the text.
    End,
}

impl TokenKind<'_> {
    /// How a message names the token.
    pub(crate) fn describe(&self) -> String {
        match self {
            TokenKind::Word(word) => format!("\"{}\"", shortened(word)),
            TokenKind::Integer(_) => "an integer".to_owned(),
            TokenKind::String(_) => "a string".to_owned(),
            TokenKind::Assign => "\"=\"".to_owned(),
            TokenKind::Replace => "\":=\"".to_owned(),
            TokenKind::Append => "\"+=\"".to_owned(),
            TokenKind::Arrow => "\"=>\"".to_owned(),
            TokenKind::Plus => "\"+\"".to_owned(),
            TokenKind::Comma => "\",\"".to_owned(),
            TokenKind::Open => "\"(\"".to_owned(),
            TokenKind::Close => "\")\"".to_owned(),
            TokenKind::BlockOpen => "\"{\"".to_owned(),
            TokenKind::BlockClose => "\"}\"".to_owned(),
            TokenKind::IndexOpen => "\"[\"".to_owned(),
            TokenKind::IndexClose => "\"]\"".to_owned(),
            TokenKind::Dollar => "\"$\"".to_owned(),
            TokenKind::Compare(op) => format!("\"{}\"", op.symbol()),
            TokenKind::End => "the end of the file".to_owned(),
        }
    }
}

/// All tokens of `text`, with [`TokenKind::End`] as the last one, and the errors in it.
pub(crate) fn tokens(file: FileId, text: &str) -> (Vec<Token<'_>>, Vec<Diagnostic>) {
    let mut lexer = Lexer {
        file,
        text,
        // Editors on other systems write a byte order mark before the text.
        at: if text.starts_with('\u{feff}') { 3 } else { 0 },
        first_on_line: true,
        tokens: Vec::new(),
        errors: Vec::new(),
    };
    lexer.run();
    (lexer.tokens, lexer.errors)
}

/// `text`, cut so that it fits into a message.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or(""))),
        None => Cow::Borrowed(text),
    }
}

struct Lexer<'t> {
    file: FileId,
    text: &'t str,
    at: usize,
    first_on_line: bool,
    tokens: Vec<Token<'t>>,
    errors: Vec<Diagnostic>,
}

impl<'t> Lexer<'t> {
    fn run(&mut self) {
        while let Some(byte) = self.peek(0) {
            match byte {
                b'\n' => {
                    self.at += 1;
                    self.first_on_line = true;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'#' => self.skip_comment(),
                b'"' | b'\'' => {
                    if !self.string(byte) {
                        break;
                    }
                }
                _ if is_word_byte(byte) => self.word(),
                _ => self.punctuation(byte),
            }
        }
        self.at = self.text.len();
        self.push(TokenKind::End, 0);
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span {
            file: self.file,
            start: start as u32,
            end: end as u32,
        }
    }

    /// Adds a token of `len` bytes that begins here, and moves behind it.
    fn push(&mut self, kind: TokenKind<'t>, len: usize) {
        let span = self.span(self.at, self.at + len);
        self.tokens.push(Token {
            kind,
            span,
            first_on_line: self.first_on_line,
        });
        self.first_on_line = false;
        self.at += len;
    }

    fn skip_comment(&mut self) {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or(b"");
        self.at += memchr::memchr(b'\n', rest).unwrap_or(rest.len());
    }

    fn word(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or("");
        let len = rest
            .bytes()
            .position(|byte| !is_word_byte(byte))
            .unwrap_or(rest.len());
        let word = rest.get(..len).unwrap_or("");
        let digits = word.strip_prefix('-').unwrap_or(word);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            self.push(TokenKind::Integer(word.parse().ok()), len);
        } else {
            self.push(TokenKind::Word(word), len);
        }
    }

    /// Reads a string that begins with `quote`. The only escape is a backslash before the quote itself; other
    /// backslashes are part of the string, as regular expressions need them. Returns false if the string has
    /// no end: then the rest of the text cannot be split into tokens.
    fn string(&mut self, quote: u8) -> bool {
        let rest = self.text.get(self.at + 1..).unwrap_or("");
        let mut content = Cow::Borrowed("");
        let mut from = 0;
        for end in memchr::memchr_iter(quote, rest.as_bytes()) {
            let part = rest.get(from..end).unwrap_or("");
            let escaped = part.ends_with('\\');
            let part = if escaped {
                part.get(..part.len() - 1).unwrap_or("")
            } else {
                part
            };
            if content.is_empty() && !escaped {
                content = Cow::Borrowed(part);
            } else {
                content.to_mut().push_str(part);
            }
            if !escaped {
                self.check_utf8(&content, end + 2);
                self.push(TokenKind::String(content), end + 2);
                return true;
            }
            content.to_mut().push(char::from(quote));
            from = end + 1;
        }
        let (opened, from) = self.string_without_end(self.at);
        let line = self.text.get(from..).unwrap_or("");
        let line_end = line.find('\n').unwrap_or(line.len());
        let error = Diagnostic::error(
            "this string is never closed",
            self.span(from, from + line_end),
        )
        .with_label(format!("opened by this {}", line.get(..1).unwrap_or("")))
        .with_hint("a backslash before the closing quote escapes it: \"C:\\\" does not end there");
        self.tokens.truncate(opened);
        self.errors
            .retain(|error| error.span.is_none_or(|span| span.range().start < from));
        self.errors.push(error);
        false
    }

    /// Which string lacks its closing quote: the index of its token and its offset. `last` is the offset of the
    /// quote that has no partner.
    ///
    /// Behind a missing quote, strings and the text between them are swapped. So the first string that spans
    /// lines and ends like the beginning of a value (`server.name = `) is the one to blame.
    fn string_without_end(&self, last: usize) -> (usize, usize) {
        let is_swapped = |token: &Token<'_>| match &token.kind {
            TokenKind::String(text) => {
                text.contains('\n')
                    && text
                        .trim_end()
                        .ends_with(['=', '(', ',', '[', '+', '~', '^', '>'])
            }
            _ => false,
        };
        match self.tokens.iter().position(is_swapped) {
            Some(index) => (index, self.tokens[index].span.range().start),
            None => (self.tokens.len(), last),
        }
    }

    /// Bytes that were not UTF-8 were replaced when the file was read. In a comment that is no error.
    fn check_utf8(&mut self, content: &str, len: usize) {
        if content.contains(char::REPLACEMENT_CHARACTER) {
            let error = Diagnostic::error(
                "this string is not UTF-8",
                self.span(self.at, self.at + len),
            )
            .with_hint("convert the file to UTF-8");
            self.errors.push(error);
        }
    }

    fn punctuation(&mut self, byte: u8) {
        use crate::condition::Op;
        let (kind, len) = match (byte, self.peek(1)) {
            (b'=', Some(b'=')) => (TokenKind::Compare(Op::Eq), 2),
            (b'=', Some(b'~')) => (TokenKind::Compare(Op::Match), 2),
            (b'=', Some(b'^')) => (TokenKind::Compare(Op::Prefix), 2),
            (b'=', Some(b'$')) => (TokenKind::Compare(Op::Suffix), 2),
            (b'=', Some(b'>')) => (TokenKind::Arrow, 2),
            (b'=', _) => (TokenKind::Assign, 1),
            (b'!', Some(b'=')) => (TokenKind::Compare(Op::Ne), 2),
            (b'!', Some(b'~')) => (TokenKind::Compare(Op::NotMatch), 2),
            (b':', Some(b'=')) => (TokenKind::Replace, 2),
            (b'+', Some(b'=')) => (TokenKind::Append, 2),
            (b'+', _) => (TokenKind::Plus, 1),
            (b',', _) => (TokenKind::Comma, 1),
            (b'(', _) => (TokenKind::Open, 1),
            (b')', _) => (TokenKind::Close, 1),
            (b'{', _) => (TokenKind::BlockOpen, 1),
            (b'}', _) => (TokenKind::BlockClose, 1),
            (b'[', _) => (TokenKind::IndexOpen, 1),
            (b']', _) => (TokenKind::IndexClose, 1),
            (b'$', _) => (TokenKind::Dollar, 1),
            _ => return self.stray(),
        };
        self.push(kind, len);
    }

    /// Skips characters that no token can begin with, and reports each run of them once.
    fn stray(&mut self) {
        let rest = self.text.get(self.at..).unwrap_or("");
        let len = rest
            .find(|c: char| c.is_ascii_whitespace() || is_token_start(c))
            .unwrap_or(rest.len())
            .max(1);
        let what = rest.get(..len).unwrap_or("").escape_debug().to_string();
        let error = Diagnostic::error(
            format!("unexpected {}", shortened(&what)),
            self.span(self.at, self.at + len),
        );
        let error = match what.as_str() {
            ";" => error.with_hint("statements end with their line, not with \";\""),
            _ => error.with_hint("text needs quotes, a comment begins with \"#\""),
        };
        self.errors.push(error);
        self.at += len;
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

fn is_token_start(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.-\"'#=!:+,(){}[]$".contains(c)
}

/// How many characters of a name or text a message shows.
const SHOWN_CHARS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<TokenKind<'_>> {
        let (tokens, errors) = tokens(FileId(0), text);
        assert_eq!(errors, []);
        tokens.into_iter().map(|token| token.kind).collect()
    }

    fn string(text: &str) -> String {
        match kinds(text).remove(0) {
            TokenKind::String(content) => content.into_owned(),
            other => panic!("{other:?} is no string"),
        }
    }

    #[test]
    fn the_quote_is_the_only_escape() {
        assert_eq!(string(r#""a\"b""#), "a\"b");
        assert_eq!(string(r#""^www\.x\\y\n$""#), r"^www\.x\\y\n$");
        assert_eq!(string(r"'it\'s \x'"), r"it's \x");
        assert_eq!(string(r#"'a"b'"#), "a\"b");
        assert_eq!(string(r#""\"""#), "\"");
        assert_eq!(string(r#""""#), "");
    }

    #[test]
    fn a_string_may_span_lines() {
        assert_eq!(string("\"a\n b\""), "a\n b");
    }

    #[test]
    fn a_string_that_is_never_closed_is_shown_from_its_quote() {
        let (_, errors) = tokens(FileId(0), "a = \"x\\\\\"\nb = 1\n");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].span.map(Span::range), Some(4..9));
    }

    #[test]
    fn numbers_are_words_of_digits() {
        assert_eq!(kinds("0080")[0], TokenKind::Integer(Some(80)));
        assert_eq!(kinds("-1")[0], TokenKind::Integer(Some(-1)));
        assert_eq!(kinds("99999999999999999999")[0], TokenKind::Integer(None));
        assert_eq!(kinds("1a")[0], TokenKind::Word("1a"));
        assert_eq!(kinds("A-B")[0], TokenKind::Word("A-B"));
    }

    #[test]
    fn two_character_tokens_win_over_one() {
        use crate::condition::Op;
        let expected = [
            TokenKind::Append,
            TokenKind::Replace,
            TokenKind::Arrow,
            TokenKind::Compare(Op::Eq),
            TokenKind::Compare(Op::Ne),
            TokenKind::Compare(Op::Match),
            TokenKind::Compare(Op::NotMatch),
            TokenKind::Compare(Op::Prefix),
            TokenKind::Compare(Op::Suffix),
            TokenKind::Assign,
            TokenKind::Plus,
            TokenKind::End,
        ];
        assert_eq!(kinds("+= := => == != =~ !~ =^ =$ = +"), expected);
        assert_eq!(kinds("+=:==>==!==~!~=^=$=+"), expected);
    }

    #[test]
    fn comments_end_with_their_line() {
        assert_eq!(
            kinds("# a \" b\nx#y\n#"),
            [TokenKind::Word("x"), TokenKind::End]
        );
    }

    #[test]
    fn stray_characters_are_one_error_a_run() {
        let (tokens, errors) = tokens(FileId(0), "a ;;; = 1");
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].span.map(Span::range), Some(2..5));
        assert_eq!(tokens.len(), 4);
    }
}
