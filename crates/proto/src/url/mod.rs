//! Request targets: normalised for rules and logs, and decoded for the file system.
//!
//! The rules are those of lighttpd 1.4's server.http-parseopts, so that a rewrite rule or a deny rule written
//! for lighttpd sees the same text here. [`Url::path`] is the path that rules match and that gets opened: it
//! is decoded exactly once and never holds a `..` segment, under any options.
//!
//! Knows nothing of documents or hosts. The exchange calls it once per request, and again when a rewrite has
//! replaced the target. Buffers are kept, so a [`Url`] that was used before does not allocate.

mod normalise;

use crate::escape::percent_encode_path;
use crate::method::Method;
use crate::reasons::reasons;

/// The switches of server.http-parseopts that concern the URL, under their own names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlOptions {
    /// url-normalize: normalise the target at all. Without it all other switches have no effect, and only the
    /// decoded path is made safe.
    pub normalize: bool,
    /// url-normalize-unreserved: decode `%XX` of unreserved characters, and encode characters that must be.
    /// This also applies when neither this nor `normalize_required` is set.
    pub normalize_unreserved: bool,
    /// url-normalize-required: decode every `%XX` that need not be encoded. Takes precedence over
    /// `normalize_unreserved`.
    pub normalize_required: bool,
    /// url-ctrls-reject: refuse control characters, plain or encoded, in path and query.
    pub ctrls_reject: bool,
    /// url-path-backslash-trans: `\` and `%5C` in the path become `/`.
    pub path_backslash_trans: bool,
    /// url-path-2f-decode: `%2F` in the path becomes `/`.
    pub path_2f_decode: bool,
    /// url-path-2f-reject: refuse `%2F` in the path. Takes precedence over `path_2f_decode`.
    pub path_2f_reject: bool,
    /// url-path-dotseg-remove: resolve `.` and `..` segments and doubled slashes in the target. They are
    /// always resolved in the decoded path.
    pub path_dotseg_remove: bool,
    /// url-path-dotseg-reject: refuse `.` and `..` segments and doubled slashes.
    pub path_dotseg_reject: bool,
    /// url-query-20-plus: `%20` in the query becomes `+`.
    pub query_20_plus: bool,
    /// url-invalid-utf8-reject: refuse bytes that never occur in UTF-8 (0xC0, 0xC1, 0xF5–0xFF), plain or
    /// encoded. As in lighttpd, names in older encodings still pass.
    pub invalid_utf8_reject: bool,
}

impl Default for UrlOptions {
    fn default() -> UrlOptions {
        UrlOptions {
            normalize: true,
            normalize_unreserved: true,
            normalize_required: false,
            ctrls_reject: true,
            path_backslash_trans: false,
            path_2f_decode: true,
            path_2f_reject: false,
            path_dotseg_remove: true,
            path_dotseg_reject: false,
            query_20_plus: false,
            invalid_utf8_reject: true,
        }
    }
}

reasons! {
    /// Why a target is refused. The response is always 400.
    UrlError {
        Form "The request target is neither a path, nor an http or https URL, nor `*` with OPTIONS.",
        Control "The request target holds a control character (url-ctrls-reject).",
        InvalidUtf8 "The request target holds a byte that is not UTF-8 (url-invalid-utf8-reject).",
        EncodedSlash "The path holds an encoded slash (url-path-2f-reject).",
        DotSegment "The path holds an empty, `.` or `..` segment (url-path-dotseg-reject).",
    }
}

/// One request target, split and normalised. It can be reused: see [`Url::parse`].
#[derive(Clone, Debug, Default)]
pub struct Url {
    /// The normalised path and query.
    target: Vec<u8>,
    /// Where the path ends in `target`; a query follows if there is more.
    path_length: usize,
    /// The decoded path, unless `decoded_is_raw`.
    decoded: Vec<u8>,
    /// The decoded path equals the raw one byte for byte.
    decoded_is_raw: bool,
    /// Scheme and authority of an absolute-form target, concatenated.
    origin: Vec<u8>,
    scheme_length: usize,
}

impl Url {
    /// An empty URL; [`Url::parse`] fills it.
    pub fn new() -> Url {
        Url::default()
    }

    /// Forgets the URL but keeps the buffers.
    pub fn clear(&mut self) {
        let Url {
            target,
            path_length,
            decoded,
            decoded_is_raw,
            origin,
            scheme_length,
        } = self;
        target.clear();
        *path_length = 0;
        decoded.clear();
        *decoded_is_raw = false;
        origin.clear();
        *scheme_length = 0;
    }

    /// Parses a request target (RFC 9112 3.2): origin-form, absolute-form, or `*` with OPTIONS. A fragment is
    /// dropped. After an error the URL is empty.
    pub fn parse(
        &mut self,
        target: &[u8],
        method: Method,
        options: &UrlOptions,
    ) -> Result<(), UrlError> {
        self.clear();
        match target.first() {
            Some(b'/') => self.fill(target, options),
            Some(b'*') if target.len() == 1 && method == Method::Options => {
                self.fill_clean(target, 1);
                Ok(())
            }
            _ => self.parse_absolute(target, options),
        }
    }

    /// Replaces path and query by the result of a rewrite or a script, with the same checks. Scheme and
    /// authority stay. After an error the URL is empty.
    pub fn set_path_and_query(
        &mut self,
        target: &[u8],
        options: &UrlOptions,
    ) -> Result<(), UrlError> {
        self.target.clear();
        self.decoded.clear();
        if target.first() != Some(&b'/') {
            self.clear();
            return Err(UrlError::Form);
        }
        self.fill(target, options)
    }

    /// Replaces the decoded path by one that the server itself chose, such as that of an index file. Target
    /// and query stay as the client sent them.
    pub fn set_path(&mut self, path: &[u8]) {
        self.decoded.clear();
        self.decoded.extend_from_slice(path);
        self.decoded_is_raw = false;
    }

    /// Appends `name` to the decoded path, without the checks, as [`Url::set_path`].
    pub fn extend_path(&mut self, name: &[u8]) {
        if self.decoded_is_raw {
            self.decoded.clear();
            self.decoded
                .extend_from_slice(&self.target[..self.path_length]);
            self.decoded_is_raw = false;
        }
        self.decoded.extend_from_slice(name);
    }

    /// Whether a URL with `name` as the last segment of its path, percent-encoded, leads to a file of that name.
    pub fn can_name(&mut self, name: &[u8], options: &UrlOptions) -> bool {
        let mut target = vec![b'/'];
        percent_encode_path(&mut target, name);
        let parsed = self.parse(&target, Method::Get, options);
        parsed.is_ok() && self.path().strip_prefix(b"/") == Some(name)
    }

    /// The normalised path and query, for rewrite rules and logs; `*` for `OPTIONS *`.
    #[inline]
    pub fn target(&self) -> &[u8] {
        &self.target
    }

    /// The decoded path. It starts with `/` and holds no `.`, `..` or empty segment and no control character
    /// (those become `_`); or it is `*` for `OPTIONS *`. It need not be UTF-8.
    #[inline]
    pub fn path(&self) -> &[u8] {
        if self.decoded_is_raw {
            self.path_raw()
        } else {
            &self.decoded
        }
    }

    /// The path part of [`Url::target`]: normalised, still percent-encoded.
    #[inline]
    pub fn path_raw(&self) -> &[u8] {
        &self.target[..self.path_length]
    }

    /// The normalised query without its `?`; empty if there is none.
    #[inline]
    pub fn query(&self) -> &[u8] {
        self.target.get(self.path_length + 1..).unwrap_or_default()
    }

    /// Whether there is a `?`, with or without text behind it.
    pub fn has_query(&self) -> bool {
        self.target.len() > self.path_length
    }

    /// The scheme of an absolute-form target, as it was written; else empty.
    pub fn scheme(&self) -> &[u8] {
        &self.origin[..self.scheme_length]
    }

    /// The authority of an absolute-form target, as it was written; else empty.
    pub fn authority(&self) -> &[u8] {
        &self.origin[self.scheme_length..]
    }

    #[cold]
    fn parse_absolute(&mut self, target: &[u8], options: &UrlOptions) -> Result<(), UrlError> {
        let absolute = AbsoluteForm::split(target).ok_or(UrlError::Form)?;
        self.origin.extend_from_slice(absolute.scheme);
        self.scheme_length = absolute.scheme.len();
        self.origin.extend_from_slice(absolute.authority);
        if absolute.path_and_query.first() == Some(&b'/') {
            return self.fill(absolute.path_and_query, options);
        }
        // RFC 9110 4.2.3: an empty path is the same as "/".
        let mut target = Vec::with_capacity(absolute.path_and_query.len() + 1);
        target.push(b'/');
        target.extend_from_slice(absolute.path_and_query);
        self.fill(&target, options)
    }

    fn fill(&mut self, target: &[u8], options: &UrlOptions) -> Result<(), UrlError> {
        // A clean target stays as it is under any options: there is nothing to decode, encode or resolve.
        if let Some(path_length) = normalise::clean_path_length(target) {
            self.fill_clean(target, path_length);
            return Ok(());
        }
        let filled = self.fill_unclean(target, options);
        if filled.is_err() {
            self.clear();
        }
        filled
    }

    #[inline]
    fn fill_clean(&mut self, target: &[u8], path_length: usize) {
        self.target.extend_from_slice(target);
        self.path_length = path_length;
        self.decoded_is_raw = true;
    }

    fn fill_unclean(&mut self, target: &[u8], options: &UrlOptions) -> Result<(), UrlError> {
        let target = &target[..memchr::memchr(b'#', target).unwrap_or(target.len())];
        let path_length = memchr::memchr(b'?', target).unwrap_or(target.len());
        let (path, query) = target.split_at(path_length);
        if options.normalize {
            normalise::path(&mut self.target, path, options)?;
            self.path_length = self.target.len();
            normalise::query(&mut self.target, query, options)?;
        } else {
            self.target.extend_from_slice(target);
            self.path_length = path_length;
        }
        self.decoded_is_raw = false;
        normalise::decode_path(&mut self.decoded, &self.target[..self.path_length]);
        Ok(())
    }
}

/// The parts of an absolute-form target (RFC 9112 3.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbsoluteForm<'a> {
    /// `http` or `https`, in any letter case.
    pub(crate) scheme: &'a [u8],
    /// Never empty; not yet checked to be a host and port.
    pub(crate) authority: &'a [u8],
    /// The rest: empty, or beginning with `/`, `?` or `#`.
    pub(crate) path_and_query: &'a [u8],
}

impl AbsoluteForm<'_> {
    /// Splits `target`; `None` if it is not an http or https URL with an authority.
    pub(crate) fn split(target: &[u8]) -> Option<AbsoluteForm<'_>> {
        let scheme_length = memchr::memchr(b':', target)?;
        let (scheme, rest) = target.split_at(scheme_length);
        let known = [&b"http"[..], b"https"]
            .iter()
            .any(|name| scheme.eq_ignore_ascii_case(name));
        let rest = rest.strip_prefix(b"://").filter(|_| known)?;
        let authority_length = memchr::memchr3(b'/', b'?', b'#', rest).unwrap_or(rest.len());
        let (authority, path_and_query) = rest.split_at(authority_length);
        (!authority.is_empty()).then_some(AbsoluteForm {
            scheme,
            authority,
            path_and_query,
        })
    }
}

#[cfg(test)]
mod tests;
