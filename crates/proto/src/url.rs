//! Request targets.
use crate::method::Method;

/// Switches of server.http-parseopts that concern the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlOptions {
    /// url-normalize: normalise at all; without it the other switches but `ctrls_reject` rest.
    pub normalize: bool,
    /// url-normalize-unreserved: decode `%XX` of unreserved characters, encode what must be.
    pub normalize_unreserved: bool,
    /// url-normalize-required: encode only what must be.
    pub normalize_required: bool,
    /// url-ctrls-reject: refuse control characters, also encoded ones.
    pub ctrls_reject: bool,
    /// url-path-backslash-trans: `\` and `%5C` become `/`.
    pub path_backslash_trans: bool,
    /// url-path-2f-decode: `%2F` becomes `/`.
    pub path_2f_decode: bool,
    /// url-path-2f-reject: refuse `%2F`.
    pub path_2f_reject: bool,
    /// url-path-dotseg-remove: resolve `.` and `..` segments.
    pub path_dotseg_remove: bool,
    /// url-path-dotseg-reject: refuse `.` and `..` segments.
    pub path_dotseg_reject: bool,
    /// url-query-20-plus: `%20` in the query becomes `+`.
    pub query_20_plus: bool,
    /// url-invalid-utf8-reject: refuse a path whose decoded bytes are not UTF-8.
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

/// Why a target is refused; always 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UrlError {
    /// A control character.
    Control,
}

/// One request target.
#[derive(Clone, Debug, Default)]
pub struct Url {}

#[allow(missing_docs, unused_variables)]
impl Url {
    pub fn new() -> Url {
        Url::default()
    }
    pub fn clear(&mut self) {}
    pub fn parse(&mut self, target: &[u8], method: Method, options: &UrlOptions) -> Result<(), UrlError> {
        todo!()
    }
    /// Replaces the target by one a rewrite made (origin-form: path, and query after `?`).
    pub fn set_path_and_query(&mut self, target: &[u8], options: &UrlOptions) -> Result<(), UrlError> {
        todo!()
    }
    pub fn target(&self) -> &[u8] {
        todo!()
    }
    pub fn path(&self) -> &[u8] {
        todo!()
    }
    pub fn path_raw(&self) -> &[u8] {
        todo!()
    }
    pub fn query(&self) -> &[u8] {
        todo!()
    }
    pub fn scheme(&self) -> &[u8] {
        todo!()
    }
    pub fn authority(&self) -> &[u8] {
        todo!()
    }
}
