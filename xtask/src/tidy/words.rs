//! Pronouns that hide who does something, such as "nobody", in comments, string literals and Markdown files. "The
//! client", "a disk thread" or "no request" tell the reader more.
//!
//! A word that stands in quotes of its own is only mentioned, and "nobody" is also the name of a user of the system.

use std::path::Path;

/// A word that should not be there.
#[derive(Debug, PartialEq, Eq)]
pub struct FoundWord {
    /// The line, from 1.
    pub line: usize,
    /// The word, in lower case.
    pub word: &'static str,
}

/// The words in all Rust and Markdown files below `root`, each as `FILE:LINE: WORD`.
pub fn complaints(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    list(root, Path::new(""), &mut files);
    files.sort();
    let mut complaints = Vec::new();
    for file in files {
        // A file that is no text has no sentences.
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue;
        };
        let found = match file.ends_with(".rs") {
            true => words_in(&prose(&text)),
            false => words_in(&text),
        };
        complaints.extend(found.iter().map(|found| {
            let FoundWord { line, word } = found;
            format!("{file}:{line}: \"{word}\" hides who it is: name the client, the worker, the request …")
        }));
    }
    complaints
}

/// Adds the Rust and Markdown files below `folder`, by their paths from `root`.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = folder.join(&name);
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && name != "target" && !name.starts_with('.') => {
                list(root, &path, files);
            }
            Ok(kind) if kind.is_file() && (name.ends_with(".rs") || name.ends_with(".md")) => {
                files.push(path.display().to_string());
            }
            _ => {}
        }
    }
}

/// Finds the words in a text.
fn words_in(text: &str) -> Vec<FoundWord> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let lower = line.to_ascii_lowercase();
        for word in WORDS {
            let uses = lower.match_indices(word).filter(|(at, _)| {
                let (before, behind) = (&lower[..*at], &lower[at + word.len()..]);
                is_whole(before, behind) && !is_name(before, behind)
            });
            found.extend(uses.map(|_| FoundWord {
                line: index + 1,
                word,
            }));
        }
    }
    found
}

/// Whether a word between these texts is not a part of a longer one, or of an identifier.
fn is_whole(before: &str, behind: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    !before.ends_with(is_part) && !behind.starts_with(is_part)
}

/// Whether a word between these texts is a mention in quotes, or the name of a user.
fn is_name(before: &str, behind: &str) -> bool {
    let quotes = ['"', '\'', '`', '“', '”'];
    let is_quoted = before.ends_with(quotes) && behind.starts_with(quotes);
    is_quoted
        || ["user ", "user = ", "-u "]
            .iter()
            .any(|user| before.ends_with(user))
}

/// The comments and string literals of a Rust text. Everything else becomes spaces, so that lines stay.
fn prose(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after_word = prose_ends_in_word(text, rest);
        let (length, is_prose) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (block_comment(rest), true)
        } else if let Some(length) = raw_string(rest).filter(|_| !after_word) {
            (length, true)
        } else if first == '"' {
            (string(rest), true)
        } else if first == '\'' {
            (character(rest), false)
        } else {
            (first.len_utf8(), false)
        };
        let (part, left) = rest.split_at(length);
        match is_prose {
            true => prose.push_str(&without_escapes(part)),
            false => prose.extend(part.chars().map(|c| if c == '\n' { c } else { ' ' })),
        }
        rest = left;
    }
    prose
}

/// Whether the text before `rest` ends within a word, so that an `r` there does not begin a raw string.
fn prose_ends_in_word(text: &str, rest: &str) -> bool {
    let before = &text[..text.len() - rest.len()];
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// The length of the block comment that `rest` begins with; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let (step, change) = match rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// The length of the raw string that `rest` begins with, if it does.
fn raw_string(rest: &str) -> Option<usize> {
    let behind = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    let behind = behind.strip_prefix('r')?;
    let content = behind.trim_start_matches('#');
    let end = format!("\"{}", "#".repeat(behind.len() - content.len()));
    let content = content.strip_prefix('"')?;
    let length = content
        .find(&end)
        .map_or(content.len(), |at| at + end.len());
    Some(rest.len() - content.len() + length)
}

/// The length of the string that `rest` begins with.
fn string(rest: &str) -> usize {
    let mut is_escaped = true;
    for (at, c) in rest.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of the character literal that `rest` begins with, or 1 if it begins with a lifetime.
fn character(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            let behind = at + c.len_utf8();
            let end = rest[behind..].find('\'');
            end.map_or(rest.len(), |end| behind + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Makes spaces of escapes such as `\n`, which would look like letters of a word. Escaped quotes become quotes.
fn without_escapes(text: &str) -> String {
    text.replace("\\\"", "\"")
        .replace("\\n", "  ")
        .replace("\\t", "  ")
}

/// What this check looks for.
const WORDS: [&str; 6] = [
    "somebody", "someone", "anybody", "nobody", "whoever", "whomever",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines with words in a text that has WHO in their place: this file is checked, too.
    fn lines(text: &str) -> Vec<usize> {
        let text = text.replace("WHO", "nobody");
        let found = words_in(&prose(&text));
        found.iter().map(|found| found.line).collect()
    }

    #[test]
    fn words_are_found_in_comments_and_strings() {
        assert_eq!(lines("// WHO\n//! WHO asks.\n/// for WHO's"), [1, 2, 3]);
        assert_eq!(lines("/* a /* b */\n WHO */ WHO();"), [2]);
        let strings = "f(\"\\nWHO waits\", r#\"a \"WHO\" and\n WHO\"#, b\"x\", br\"y\");";
        assert_eq!(lines(strings), [1, 2]);
        let quotes = "let a = '\"'; // WHO\nlet b: &'static str = \"WHO came\";";
        assert_eq!(lines(quotes), [1, 2]);
    }

    #[test]
    fn every_word_is_found_in_any_letter_case() {
        for word in WORDS {
            let text = format!("# Title\n{} knows\n", word.to_ascii_uppercase());
            assert_eq!(words_in(&text), [FoundWord { line: 2, word }]);
        }
    }

    #[test]
    fn code_mentions_and_names_are_left_alone() {
        for text in [
            "fn waits_for_WHO(WHO: u8) {}",
            "let name = \"WHO\"; let other = '\\''; let WHO = 1;",
            "const CONFIG: &str = \"server.username = \\\"WHO\\\"\";",
            "// the group of the user WHO, and \"WHO\" in quotes",
            "f(\"user = WHO\\ngroup = nogroup\", \"petrel-WHO-1\")",
        ] {
            assert_eq!(lines(text), [0; 0], "{text}");
        }
    }
}
