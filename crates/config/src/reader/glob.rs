//! Patterns in include paths, as in glob(3): `*`, `?`, `[a-z]`, `[!x]`, a backslash before any of them, and
//! `{a,b}` alternatives. Only a dot in the pattern matches the leading dot of a name.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::limits::{GLOB_ALTERNATIVES_MAX, GLOB_MATCHES_MAX};

/// Whether `text` is a pattern and not just a path.
pub(super) fn is_pattern(text: &str) -> bool {
    text.bytes()
        .any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'{'))
}

/// The paths that match `pattern`; a relative one starts at `base`. The matches of each alternative are
/// sorted by their bytes.
///
/// # Errors
/// A message if there are too many.
pub(super) fn matches(base: &Path, pattern: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for alternative in alternatives(pattern)? {
        let mut paths = vec![if alternative.starts_with('/') {
            PathBuf::from("/")
        } else {
            base.to_owned()
        }];
        for component in alternative
            .split('/')
            .filter(|component| !component.is_empty())
        {
            paths = step(&paths, component);
            if paths.len() > GLOB_MATCHES_MAX {
                return Err(format!(
                    "the pattern matches more than {GLOB_MATCHES_MAX} names"
                ));
            }
        }
        paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        found.extend(paths);
    }
    Ok(found)
}

/// Extends the paths by one component.
fn step(paths: &[PathBuf], component: &str) -> Vec<PathBuf> {
    if !component
        .bytes()
        .any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
    {
        return paths
            .iter()
            .map(|path| path.join(component))
            .filter(|path| path.symlink_metadata().is_ok())
            .collect();
    }
    let mut found = Vec::new();
    for directory in paths {
        let Ok(entries) = fs::read_dir(directory) else {
            continue;
        };
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        found.extend(
            names
                .filter(|name| name_matches(component, name))
                .map(|name| directory.join(name)),
        );
    }
    found
}

fn name_matches(pattern: &str, name: &OsStr) -> bool {
    let name = name.as_bytes();
    if name.first() == Some(&b'.') && !pattern.starts_with('.') {
        return false;
    }
    wildcard(pattern.as_bytes(), name)
}

/// Whether `pattern` matches all of `name`. Backtracks only to the last `*`, so that the work is limited to
/// the product of both lengths.
fn wildcard(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, n));
            p += 1;
        } else if let Some(len) = name
            .get(n)
            .and_then(|&byte| one(pattern.get(p..).unwrap_or(b""), byte))
        {
            p += len;
            n += 1;
        } else if let Some((after_star, from)) = retry {
            retry = Some((after_star, from + 1));
            (p, n) = (after_star, from + 1);
        } else {
            return false;
        }
    }
    pattern
        .get(p..)
        .unwrap_or(b"")
        .iter()
        .all(|&byte| byte == b'*')
}

/// How many bytes of `pattern` match `byte`. `None`: it does not match.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', rest @ ..] => match class(rest, byte) {
            Some((matched, len)) => matched.then_some(len + 1),
            None => (byte == b'[').then_some(1),
        },
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Whether the class after a `[` contains `byte`, and the length of the class with its `]`. `None`: it is not
/// closed.
fn class(rest: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(rest.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let mut matched = false;
    let first = at;
    loop {
        let low = *rest.get(at)?;
        if low == b']' && at > first {
            return Some((matched != negated, at + 1));
        }
        match (rest.get(at + 1), rest.get(at + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                matched |= (low..=high).contains(&byte);
                at += 3;
            }
            _ => {
                matched |= low == byte;
                at += 1;
            }
        }
    }
}

/// Expands the braces of `pattern`, beginning with the leftmost. Braces without a partner are literal.
fn alternatives(pattern: &str) -> Result<Vec<String>, String> {
    let mut done = Vec::new();
    let mut waiting = vec![pattern.to_owned()];
    while let Some(next) = waiting.pop() {
        match braces(&next) {
            None => done.push(next),
            Some((head, choices, tail)) => waiting.extend(
                choices
                    .iter()
                    .rev()
                    .map(|choice| format!("{head}{choice}{tail}")),
            ),
        }
        if done.len() + waiting.len() > GLOB_ALTERNATIVES_MAX {
            return Err(format!(
                "the braces of the pattern expand to more than {GLOB_ALTERNATIVES_MAX} alternatives"
            ));
        }
    }
    Ok(done)
}

/// The text before, in and after the first pair of braces.
fn braces(pattern: &str) -> Option<(&str, Vec<&str>, &str)> {
    let open = pattern.find('{')?;
    let inner = pattern.get(open + 1..)?;
    let mut depth = 0_usize;
    let mut from = 0;
    let mut choices = Vec::new();
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' if depth == 0 => {
                choices.push(inner.get(from..at)?);
                from = at + 1;
            }
            b'}' => {
                choices.push(inner.get(from..at)?);
                return Some((pattern.get(..open)?, choices, inner.get(at + 1..)?));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_glob() {
        let matches = |pattern: &str, name: &str| name_matches(pattern, OsStr::new(name));
        assert!(
            matches("*.conf", "a.conf")
                && !matches("*.conf", "a.conf~")
                && !matches("*.conf", ".conf")
        );
        assert!(matches(".*", ".conf") && matches("a?c", "abc") && !matches("a?c", "ac"));
        assert!(
            matches("[0-9][!x]*", "1y-z") && !matches("[0-9][!x]*", "1x") && matches("[]a]", "]")
        );
        assert!(matches("[a", "[a") && matches(r"\*", "*") && !matches(r"\*", "a"));
        assert!(matches("*a*b*c", "xxaxxbxxc") && !matches("*a*b*c", "xxaxxbxx"));
    }

    #[test]
    fn a_pattern_of_many_stars_ends_soon() {
        let name = "a".repeat(200);
        assert!(!wildcard(
            format!("{}b", "*a".repeat(100)).as_bytes(),
            name.as_bytes()
        ));
    }

    #[test]
    fn braces_expand_in_the_order_written() {
        assert_eq!(
            alternatives("a{b,c{d,e}}f").expect("few"),
            ["abf", "acdf", "acef"]
        );
        assert_eq!(
            alternatives("{x,y}{1,2}").expect("few"),
            ["x1", "x2", "y1", "y2"]
        );
        assert_eq!(alternatives("a{}{b").expect("few"), ["a{b"]);
        assert!(alternatives(&"{a,b}".repeat(20)).is_err());
    }
}
