//! Recognises the configuration of another web server, which was pasted or included by mistake.

use crate::diagnostic::{Diagnostic, Severity};
use crate::source::{FileId, Sources};

/// Replaces the errors in files that are written for another server by one for each such file.
pub(crate) fn tell(list: &mut Vec<Diagnostic>, sources: &Sources) {
    let mut told: Vec<FileId> = Vec::new();
    list.retain_mut(|diagnostic| {
        let Some(span) = diagnostic
            .span
            .filter(|_| diagnostic.severity == Severity::Error)
        else {
            return true;
        };
        let text = sources.source(span.file).map(|source| source.text());
        let Some(other) = text.and_then(other_server) else {
            return true;
        };
        let is_first = !told.contains(&span.file);
        if is_first {
            told.push(span.file);
            let message = format!("this is written for {}", other.name);
            let hint = format!("{} says what to write instead", other.page);
            *diagnostic = Diagnostic::error(message, span).with_hint(hint);
        }
        is_first
    });
}

/// A server with another language, and the page that translates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Other {
    name: &'static str,
    page: &'static str,
}

const NGINX: Other = Other {
    name: "nginx",
    page: "docs/from-nginx.md",
};

const APACHE: Other = Other {
    name: "Apache",
    page: "docs/from-apache.md",
};

/// The server that `text` is written for, if it is surely another one.
fn other_server(text: &str) -> Option<Other> {
    let lines = || text.lines().map(str::trim);
    let begins_section = |line: &str| {
        let rest = line.strip_prefix('<')?;
        rest.strip_prefix('/').unwrap_or(rest).chars().next()
    };
    if lines().any(|line| begins_section(line).is_some_and(|next| next.is_ascii_alphabetic())) {
        return Some(APACHE);
    }
    let is_block = |line: &str| {
        let head = line.strip_suffix('{').unwrap_or_default().trim();
        let name = head.split(' ').next().unwrap_or_default();
        matches!(
            name,
            "server" | "http" | "events" | "location" | "upstream" | "stream"
        )
    };
    let is_statement = |line: &str| line.ends_with(';') && !line.contains('=');
    (lines().any(is_block) && lines().any(is_statement)).then_some(NGINX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_servers_are_told_from_mistakes() {
        for (text, other) in [
            ("server {\n    listen 80;\n}\n", Some(NGINX)),
            (
                "location ~ \\.php$ {\n    fastcgi_pass unix:/run/php.sock;\n}\n",
                Some(NGINX),
            ),
            (
                "<VirtualHost *:80>\n  ServerName a\n</VirtualHost>\n",
                Some(APACHE),
            ),
            ("  <Directory /srv>\n  </Directory>\n", Some(APACHE)),
            ("server.port = 80;\n$HTTP[\"host\"] == \"a\" {\n}\n", None),
            ("server.modules = (\n", None),
            ("server {\n}\n", None),
        ] {
            assert_eq!(other_server(text), other, "{text}");
        }
    }
}
