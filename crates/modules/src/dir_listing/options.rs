//! The directives of mod_dirlisting as typed options, read once for each set of merged settings.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Array, Diagnostic, Pattern};
use petrel_engine::log::LogRegistry;
use petrel_engine::module::Purpose;
use petrel_engine::settings::Values;

use crate::cache_dir::CacheDir;

/// What a listing shows, and how.
pub(super) struct ListingOptions {
    /// Which names are listed.
    pub(crate) names: Arc<ListedNames>,
    /// `dir-listing.external-css`
    pub(crate) external_css: Option<String>,
    /// `dir-listing.external-js`
    pub(crate) external_js: Option<String>,
    /// `text/html;charset=` with the encoding.
    pub(crate) content_type: String,
    /// Whether `dir-listing.encoding` is UTF-8, so that other bytes have to be replaced.
    pub(crate) is_utf8: bool,
    /// `dir-listing.show-header` and its siblings.
    pub(crate) header: Option<Around>,
    /// `dir-listing.show-readme` and its siblings.
    pub(crate) readme: Option<Around>,
    /// `dir-listing.set-footer`
    pub(crate) footer: Option<String>,
    /// `dir-listing.auto-layout`
    pub(crate) has_layout: bool,
    /// `dir-listing.sort`
    pub(crate) is_sorted: bool,
    /// `dir-listing.cache`
    pub(crate) cache: Option<Cache>,
    /// A hash of the options that change the page; the same in all workers.
    pub(crate) fingerprint: u64,
}

/// Decides by name whether an entry is listed.
#[derive(Debug, Default)]
pub(super) struct ListedNames {
    /// `dir-listing.exclude`
    exclude: Vec<Pattern>,
    /// `dir-listing.hide-dotfiles`
    hides_dotfiles: bool,
    /// Files above or below the list that are not listed themselves.
    around: Vec<Vec<u8>>,
}

/// A file that is shown above or below the list.
pub(super) struct Around {
    /// Its name, or an absolute path.
    pub(crate) name: String,
    /// It is not listed.
    pub(crate) is_hidden: bool,
    /// It is shown as text, and not inserted as HTML.
    pub(crate) is_text: bool,
}

/// `dir-listing.cache`
pub(super) struct Cache {
    /// For how many seconds a listing is used.
    pub(crate) max_age_s: u32,
    /// The directory that listings are kept in; otherwise they are kept in memory.
    pub(crate) directory: Option<Arc<CacheDir>>,
}

impl ListingOptions {
    pub(crate) fn new(
        values: &Values<'_>,
        purpose: Purpose,
        logs: &LogRegistry,
    ) -> Result<ListingOptions, Diagnostic> {
        let switch = |name: &str, default: bool| values.bool(name).unwrap_or(default);
        let text = |name: &str| values.string(name).map(str::to_owned);
        let encoding = encoding(values)?;
        let header = around(values, "header", "HEADER.txt");
        let readme = around(values, "readme", "README.txt");
        let hidden = [&header, &readme].into_iter().flatten();
        let hidden = hidden.filter(|around| around.is_hidden);
        let names = ListedNames {
            exclude: patterns(values)?,
            hides_dotfiles: switch("dir-listing.hide-dotfiles", true),
            around: hidden
                .map(|around| around.name.clone().into_bytes())
                .collect(),
        };
        Ok(ListingOptions {
            names: Arc::new(names),
            external_css: text("dir-listing.external-css"),
            external_js: text("dir-listing.external-js"),
            is_utf8: encoding.eq_ignore_ascii_case("utf-8")
                || encoding.eq_ignore_ascii_case("utf8"),
            content_type: format!("text/html;charset={encoding}"),
            header,
            readme,
            footer: text("dir-listing.set-footer"),
            has_layout: switch("dir-listing.auto-layout", true),
            is_sorted: switch("dir-listing.sort", true),
            cache: cache(values, purpose, logs)?,
            fingerprint: fingerprint(values),
        })
    }
}

impl ListedNames {
    /// Whether an entry with this name may be listed.
    pub(crate) fn shows(&self, name: &[u8]) -> bool {
        !(self.hides_dotfiles && name.starts_with(b".")
            || self.around.iter().any(|around| around == name)
            || self.exclude.iter().any(|pattern| pattern.is_match(name)))
    }
}

fn patterns(values: &Values<'_>) -> Result<Vec<Pattern>, Diagnostic> {
    let name = "dir-listing.exclude";
    let Some(list) = values.array(name) else {
        return Ok(Vec::new());
    };
    let compiled = list.iter().map(|element| {
        let text = element.value.as_str().unwrap_or_default();
        Pattern::compile(text).map_err(|error| {
            Diagnostic::error(
                format!("{name}: {text:?} is no regular expression"),
                element.span,
            )
            .with_label(error.message)
            .with_hint("names are matched by PCRE expressions; write \"\\.bak$\" for *.bak")
        })
    });
    compiled.collect()
}

/// Refuses encodings that do not contain ASCII: the page is written in ASCII, and names are copied into it.
fn encoding(values: &Values<'_>) -> Result<String, Diagnostic> {
    let name = "dir-listing.encoding";
    let encoding = values.string(name).unwrap_or("utf-8");
    let is_name = encoding
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:+".contains(&byte));
    let lower = encoding.to_ascii_lowercase();
    let has_ascii = !["utf-16", "utf16", "utf-32", "utf32", "ucs-", "utf-7"]
        .iter()
        .any(|wide| lower.starts_with(wide));
    if is_name && has_ascii {
        return Ok(encoding.to_owned());
    }
    Err(values
        .error(name, format!("{name}: {encoding:?} cannot be the character set of a listing"))
        .with_hint("it is \"utf-8\" nearly everywhere; others that contain ASCII, such as \"iso-8859-1\", will do"))
}

fn around(values: &Values<'_>, which: &str, usual: &str) -> Option<Around> {
    let value = values.value(&format!("dir-listing.show-{which}"))?;
    let name = match (value.as_bool(), value.as_str()) {
        (Some(true), _) => usual,
        (None, Some(name)) if !name.is_empty() => name,
        _ => return None,
    };
    Some(Around {
        name: name.to_owned(),
        is_hidden: values
            .bool(&format!("dir-listing.hide-{which}-file"))
            .unwrap_or(false),
        is_text: values
            .bool(&format!("dir-listing.encode-{which}"))
            .unwrap_or(true),
    })
}

fn cache(
    values: &Values<'_>,
    purpose: Purpose,
    logs: &LogRegistry,
) -> Result<Option<Cache>, Diagnostic> {
    let name = "dir-listing.cache";
    let Some(map) = values.array(name).filter(|map| !map.is_empty()) else {
        return Ok(None);
    };
    check_keys(map)?;
    let max_age_s = match map.get("max-age") {
        None => MAX_AGE_S,
        Some(age) => age
            .value
            .as_integer()
            .and_then(|age| u32::try_from(age).ok())
            .ok_or_else(|| {
                Diagnostic::error(
                    format!("{name}: \"max-age\" is a number of seconds"),
                    age.span,
                )
            })?,
    };
    let directory = match map.get("path") {
        None => None,
        Some(path) => {
            let text = path
                .value
                .as_str()
                .filter(|text| text.starts_with('/'))
                .ok_or_else(|| {
                    Diagnostic::error(
                        format!("{name}: \"path\" is the absolute path of a directory"),
                        path.span,
                    )
                })?;
            match purpose {
                Purpose::Check | Purpose::DryRun => None,
                Purpose::Serve => open(text, logs),
            }
        }
    };
    Ok((max_age_s > 0).then_some(Cache {
        max_age_s,
        directory,
    }))
}

/// Opens the directory. If that fails, listings are kept in memory.
fn open(path: &str, logs: &LogRegistry) -> Option<Arc<CacheDir>> {
    CacheDir::open(path)
        .map(Arc::new)
        .map_err(|error| {
            logs.error(format_args!(
                "dir-listing.cache {path:?} is not used: {error}"
            ))
        })
        .ok()
}

fn check_keys(map: &Array) -> Result<(), Diagnostic> {
    const KNOWN: [&str; 2] = ["max-age", "path"];
    let Some(wrong) = map
        .iter()
        .find(|element| element.key().is_none_or(|key| !KNOWN.contains(&key)))
    else {
        return Ok(());
    };
    let key = wrong.key().unwrap_or_default();
    let hint = match nearest(key, KNOWN.into_iter()).first() {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "its keys are \"max-age\" and \"path\"".to_owned(),
    };
    Err(
        Diagnostic::error(format!("dir-listing.cache has no key {key:?}"), wrong.span)
            .with_hint(hint),
    )
}

/// A hash of all options that change the listing. The hasher's keys are fixed.
fn fingerprint(values: &Values<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for spec in super::DIRECTIVES
        .iter()
        .filter(|spec| spec.name != "dir-listing.cache")
    {
        hash_value(values, spec.name, &mut hasher);
    }
    for name in ["server.tag", "server.follow-symlink", "mimetype.assign"] {
        hash_value(values, name, &mut hasher);
    }
    hasher.finish()
}

fn hash_value(values: &Values<'_>, name: &str, hasher: &mut DefaultHasher) {
    use petrel_engine::config::Value;
    fn hash(value: &Value, hasher: &mut DefaultHasher) {
        match value {
            Value::String(text) => text.hash(hasher),
            Value::Integer(number) => number.hash(hasher),
            Value::Array(array) => {
                array.len().hash(hasher);
                for element in array {
                    element.key().hash(hasher);
                    hash(&element.value, hasher);
                }
            }
        }
    }
    name.hash(hasher);
    if let Some(value) = values.value(name) {
        hash(value, hasher);
    }
}

/// lighttpd's default for "max-age".
const MAX_AGE_S: u32 = 15;
