//! The substitutions in values of redirect, rewrite, setenv and similar directives.
//!
//! `$0` to `$9` are groups of the rule's own expression, `%0` to `%9` those of the enclosing condition.
//! Braces after either sign allow more: `${url.path}`, `${qsa}`, `${12}`, and encodings before these, such as
//! `${esc:1}` or `${tolower:url.authority}`. A group in braces without an encoding gets `escpsnde`. `$$` and
//! `%%` stand for the signs themselves, and so does a sign before anything else.
//!
//! A [`Template`] is compiled when the configuration is read. For each request it is expanded into a buffer
//! of the caller, which allocates nothing else. Knows nothing of requests; [`Lookup`] provides their values.

use crate::encode::{self, Encoding, Letters};

/// A text with substitutions, compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// Provides the values of substitutions. Every value may be empty.
pub trait Lookup {
    /// `$0` to `$9` (`${0}` to `${99}`): a group of the rule's own regular expression.
    fn rule_group(&self, number: u8) -> &[u8];
    /// `%0` to `%9`: a group of the enclosing condition's regular expression.
    fn condition_group(&self, number: u8) -> &[u8];
    /// A part of the request's URL.
    fn url_part(&self, part: UrlPart) -> &[u8];
    /// Whether the URL has a `?`, with or without text behind it.
    fn has_query(&self) -> bool;
    /// The port of the server's side of the connection.
    fn url_port(&self) -> u16;
}

/// A part of the request's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UrlPart {
    /// `${url.scheme}`
    Scheme,
    /// `${url.authority}`
    Authority,
    /// `${url.path}`: the path as the client sent it, normalised, without the query.
    Path,
    /// `${url.query}`: without the `?`.
    Query,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Value {
        what: What,
        encoding: Encoding,
        letters: Letters,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    RuleGroup(u8),
    ConditionGroup(u8),
    Url(UrlPart),
    Port,
    /// `${qsa}`: the query, joined to the text before it with `?` or, after a `?`, with `&`.
    QueryAppended,
}

impl Template {
    /// Compiles `text`. Every text is a valid template: text that is no substitution stays as it is, and
    /// braces with unknown content expand to nothing, as in lighttpd.
    #[must_use]
    pub fn compile(text: &str) -> Template {
        let mut compiler = Compiler {
            pieces: Vec::new(),
            text: Vec::new(),
        };
        let mut rest = text.as_bytes();
        while let Some(at) = memchr::memchr2(b'$', b'%', rest) {
            let (before, from_sign) = rest.split_at(at);
            compiler.text.extend_from_slice(before);
            let used = compiler.substitution(from_sign);
            rest = from_sign.get(used..).unwrap_or(b"");
        }
        compiler.text.extend_from_slice(rest);
        compiler.end_text();
        Template {
            pieces: compiler.pieces,
        }
    }

    /// Whether it uses groups of the enclosing condition. If not, they need not be stored.
    #[must_use]
    pub fn uses_condition_groups(&self) -> bool {
        self.pieces.iter().any(|piece| {
            matches!(
                piece,
                Piece::Value {
                    what: What::ConditionGroup(_),
                    ..
                }
            )
        })
    }

    /// Appends the text with all substitutions to `out`.
    pub fn expand(&self, lookup: &dyn Lookup, out: &mut Vec<u8>) {
        let start = out.len();
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Value {
                    what,
                    encoding,
                    letters,
                } => expand_value(*what, *encoding, *letters, lookup, out, start),
            }
        }
    }
}

fn expand_value(
    what: What,
    encoding: Encoding,
    letters: Letters,
    lookup: &dyn Lookup,
    out: &mut Vec<u8>,
    start: usize,
) {
    let value = match what {
        What::RuleGroup(number) => lookup.rule_group(number),
        What::ConditionGroup(number) => lookup.condition_group(number),
        What::Url(part) => lookup.url_part(part),
        What::Port => return append_number(lookup.url_port(), out),
        What::QueryAppended => {
            let query = lookup.url_part(UrlPart::Query);
            let has_query = out
                .get(start..)
                .is_some_and(|written| written.contains(&b'?'));
            if query.is_empty() {
                // As in lighttpd, the sign alone is a query, too.
                if lookup.has_query() && !has_query {
                    out.push(b'?');
                }
                return;
            }
            out.push(if has_query { b'&' } else { b'?' });
            query
        }
    };
    encode::append(value, encoding, letters, out);
}

fn append_number(number: u16, out: &mut Vec<u8>) {
    let mut digits = [0_u8; 5];
    let mut left = number;
    let mut used = 0;
    for slot in digits.iter_mut().rev() {
        *slot = b'0' + (left % 10) as u8;
        left /= 10;
        used += 1;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or(b""));
}

struct Compiler {
    pieces: Vec<Piece>,
    text: Vec<u8>,
}

impl Compiler {
    /// Compiles the substitution at the front of `rest`, which begins with the sign. Returns its length.
    fn substitution(&mut self, rest: &[u8]) -> usize {
        match *rest {
            [sign, digit @ b'0'..=b'9', ..] => {
                self.value(
                    group(sign, digit - b'0'),
                    Encoding::None,
                    Letters::AsTheyAre,
                );
                2
            }
            [sign, b'{', ref inner @ ..] => match memchr::memchr(b'}', inner) {
                Some(end) => {
                    if let Some((what, encoding, letters)) =
                        braced(sign, inner.get(..end).unwrap_or(b""))
                    {
                        self.value(what, encoding, letters);
                    }
                    end + 3
                }
                None => {
                    self.text.push(sign);
                    1
                }
            },
            [sign, next, ..] if sign == next => {
                self.text.push(sign);
                2
            }
            [sign, ..] => {
                self.text.push(sign);
                1
            }
            [] => 0,
        }
    }

    fn value(&mut self, what: What, encoding: Encoding, letters: Letters) {
        self.end_text();
        self.pieces.push(Piece::Value {
            what,
            encoding,
            letters,
        });
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            self.pieces
                .push(Piece::Text(std::mem::take(&mut self.text)));
        }
    }
}

fn group(sign: u8, number: u8) -> What {
    if sign == b'$' {
        What::RuleGroup(number)
    } else {
        What::ConditionGroup(number)
    }
}

/// Parses the content of braces: encodings, each followed by a colon, and then a value.
fn braced(sign: u8, inner: &[u8]) -> Option<(What, Encoding, Letters)> {
    let mut chosen = None;
    let mut letters = Letters::AsTheyAre;
    let mut rest = inner;
    while let Some(colon) = memchr::memchr(b':', rest) {
        match rest.get(..colon)? {
            b"esc" | b"escape" => chosen = Some(Encoding::All),
            b"escnde" => chosen = Some(Encoding::NotTwice),
            b"escpsnde" => chosen = Some(Encoding::NotTwiceKeepSlashes),
            b"noesc" | b"noescape" => chosen = Some(Encoding::None),
            b"encb64u" => chosen = Some(Encoding::ToBase64Url),
            b"decb64u" => chosen = Some(Encoding::FromBase64Url),
            b"tolower" => letters = Letters::Lower,
            b"toupper" => letters = Letters::Upper,
            _ => {}
        }
        rest = rest.get(colon + 1..)?;
    }
    let encoding = chosen.unwrap_or(Encoding::None);
    let what = match rest {
        b"url.scheme" => What::Url(UrlPart::Scheme),
        b"url.authority" => What::Url(UrlPart::Authority),
        b"url.path" => What::Url(UrlPart::Path),
        b"url.query" => What::Url(UrlPart::Query),
        b"url.port" => What::Port,
        b"qsa" => What::QueryAppended,
        _ => {
            // As in lighttpd, where only groups without braces are inserted without an encoding.
            let encoding = chosen.unwrap_or(Encoding::NotTwiceKeepSlashes);
            return group_number(rest).map(|number| (group(sign, number), encoding, letters));
        }
    };
    Some((what, encoding, letters))
}

/// One or two digits.
fn group_number(digits: &[u8]) -> Option<u8> {
    match *digits {
        [one @ b'0'..=b'9'] => Some(one - b'0'),
        [ten @ b'0'..=b'9', one @ b'0'..=b'9'] => Some((ten - b'0') * 10 + (one - b'0')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The request `http://a.example:8080/Dir/a%20b?x=1` matched by `^/(Dir)/(.*)$`.
    struct Request {
        query: &'static [u8],
    }

    impl Lookup for Request {
        fn rule_group(&self, number: u8) -> &[u8] {
            match number {
                0 => b"/Dir/a%20b/c~?",
                1 => b"Dir",
                2 => b"a%20b/c~?",
                3 => b"QWJj",
                12 => b"twelve",
                _ => b"",
            }
        }

        fn condition_group(&self, number: u8) -> &[u8] {
            if number == 1 { b"www" } else { b"" }
        }

        fn url_part(&self, part: UrlPart) -> &[u8] {
            match part {
                UrlPart::Scheme => b"http",
                UrlPart::Authority => b"A.example",
                UrlPart::Path => b"/Dir/a%20b",
                UrlPart::Query => self.query,
            }
        }

        fn has_query(&self) -> bool {
            true
        }

        fn url_port(&self) -> u16 {
            8080
        }
    }

    fn expanded(template: &str) -> String {
        let mut out = Vec::new();
        Template::compile(template).expand(&Request { query: b"x=1" }, &mut out);
        String::from_utf8(out).expect("the test uses text")
    }

    #[test]
    fn signs_with_digits_are_groups() {
        assert_eq!(expanded("/r?$1|%1|%2|$9|$12"), "/r?Dir|www|||Dir2");
    }

    #[test]
    fn doubled_signs_are_signs_and_others_stand_for_themselves() {
        assert_eq!(expanded("%%|$$|$a|%z|$%1|$"), "%|$|$a|%z|$www|$");
        assert_eq!(expanded("100%"), "100%");
    }

    #[test]
    fn braces_name_groups_and_parts_of_the_url() {
        assert_eq!(expanded("${1}|%{1}|${12}"), "Dir|www|twelve");
        assert_eq!(
            expanded("${url.scheme}://${url.authority}:${url.port}${url.path}?%{url.query}"),
            "http://A.example:8080/Dir/a%20b?x=1"
        );
    }

    #[test]
    fn what_is_unknown_in_braces_is_nothing() {
        assert_eq!(expanded("a${nosuch}b${url.foo}c${}d${1x}e"), "abcde");
        assert_eq!(expanded("a${1"), "a${1");
    }

    #[test]
    fn the_query_is_appended_with_the_sign_that_fits() {
        assert_eq!(expanded("/x${qsa}"), "/x?x=1");
        assert_eq!(expanded("/x?a=b${qsa}"), "/x?a=b&x=1");
        assert_eq!(expanded("/x${esc:qsa}"), "/x?x%3D1");
        let mut out = b"earlier?".to_vec();
        Template::compile("/x${qsa}").expand(&Request { query: b"x=1" }, &mut out);
        assert_eq!(out, b"earlier?/x?x=1");
        out.clear();
        Template::compile("/x${qsa}").expand(&Request { query: b"" }, &mut out);
        Template::compile(" /x?y${qsa}").expand(&Request { query: b"" }, &mut out);
        assert_eq!(out, b"/x? /x?y");
    }

    #[test]
    fn encodings_are_those_of_lighttpd() {
        assert_eq!(
            expanded("${esc:2}|${escape:2}"),
            "a%2520b%2Fc~%3F|a%2520b%2Fc~%3F"
        );
        assert_eq!(expanded("${escnde:2}"), "a%20b%2Fc~%3F");
        assert_eq!(expanded("${escpsnde:2}"), "a%20b/c~%3F");
        assert_eq!(expanded("${2}|%{1}|$2"), "a%20b/c~%3F|www|a%20b/c~?");
        assert_eq!(expanded("${noesc:2}|${noescape:2}"), "a%20b/c~?|a%20b/c~?");
        assert_eq!(
            expanded("${tolower:url.authority}|${toupper:1}|${esc:tolower:2}"),
            "a.example|DIR|a%2520b%2Fc~%3F"
        );
        assert_eq!(
            expanded("${encb64u:1}|${decb64u:3}|${decb64u:2}"),
            "RGly|Abc|"
        );
    }

    #[test]
    fn a_template_knows_whether_it_needs_groups_of_a_condition() {
        assert!(
            Template::compile("%{esc:1}").uses_condition_groups()
                && !Template::compile("$1").uses_condition_groups()
        );
    }

    #[test]
    fn ports_are_written_in_decimal() {
        for port in [0, 9, 10, 80, 443, 8080, 65535] {
            let mut out = Vec::new();
            append_number(port, &mut out);
            assert_eq!(out, port.to_string().into_bytes());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_template(text in "[$%{}:a-z0-9.]{0,30}") {
            expanded(&text);
        }
    }
}
