//! The substitution language of redirect, rewrite, setenv and their like.

/// A text with substitutions, compiled once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Template {
    pieces: Vec<()>,
}

/// Where the values of substitutions come from. Every answer may be empty.
pub trait Lookup {
    /// `$0` to `$9` (`${0}` to `${99}`): a group of the rule's own regular expression.
    fn rule_group(&self, number: u8) -> &[u8];
    /// `%0` to `%9`: a group of the enclosing condition's regular expression.
    fn condition_group(&self, number: u8) -> &[u8];
    /// A part of the request's URL.
    fn url_part(&self, part: UrlPart) -> &[u8];
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

impl Template {
    /// Compiles `text`. Every text is a template: what is no substitution stands for itself.
    #[must_use]
    pub fn compile(text: &str) -> Template {
        let _ = text;
        Template::default()
    }

    /// Whether there is no substitution in it.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Appends the text with all substitutions made to `out`.
    pub fn expand(&self, lookup: &dyn Lookup, out: &mut Vec<u8>) {
        let _ = (lookup, out);
    }
}
