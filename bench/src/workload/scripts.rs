//! Scripts that run in the server itself: the same response, written for each server's own interface.
//!
//! Their texts are files below `scripts/`. Two of them make the same page. [`PAGE`] is written for speed:
//! everything that can be prepared is in a module that is loaded once. [`FLAT`] is written like most
//! published scripts for lighttpd, where each run makes what it needs.

use std::fmt::Write as _;

/// The same work for each kind of server.
#[derive(Debug)]
pub struct InServer {
    /// Name of its files.
    pub name: &'static str,
    /// For lighttpd and Petrel, which have the same interface.
    pub lighty: &'static str,
    /// For nginx with LuaJIT.
    pub nginx: &'static str,
    /// For Apache with mod_perl: package and text.
    pub perl: Option<(&'static str, &'static str)>,
    /// A Lua module that it requires: name and text.
    pub module: Option<(&'static str, &'static str)>,
    /// Which requests run it.
    pub extent: Extent,
    /// The requested paths.
    pub paths: &'static [&'static str],
    /// Header fields of each request in addition to the usual ones.
    pub request_fields: &'static str,
    /// Header fields that each response must have.
    pub reply_fields: &'static [&'static str],
    /// The response for a path. All have the same length.
    pub prints: fn(&str) -> String,
}

/// Which requests run a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Those for its only path, when the server has mapped it to a file.
    OnePath,
    /// All, before the server looks at them.
    Everything,
}

/// The article's script.
pub static PRINT: InServer = InServer {
    name: "print",
    lighty: include_str!("scripts/print.lighty.lua"),
    nginx: include_str!("scripts/print.nginx.lua"),
    perl: Some(("Bench::Print", include_str!("scripts/print.pm"))),
    module: None,
    extent: Extent::OnePath,
    paths: &["/123"],
    request_fields: "",
    reply_fields: &["Content-Type: text/html"],
    prints: |_| "123".to_owned(),
};

/// The same by the names that lighttpd had first and that most published scripts use.
pub static PRINT_OLD: InServer = InServer {
    name: "print-old",
    lighty: include_str!("scripts/print-old.lighty.lua"),
    ..PRINT
};

/// What a small site does for a page: ten routes, a cookie read and set, three header fields, and a template
/// of 2 KiB with ten values.
pub static PAGE: InServer = InServer {
    name: "page",
    lighty: include_str!("scripts/page.lighty.lua"),
    nginx: include_str!("scripts/page.nginx.lua"),
    perl: Some(("Bench::Page", include_str!("scripts/page.pm"))),
    module: Some(("harbour", include_str!("scripts/harbour.lua"))),
    extent: Extent::Everything,
    paths: &[
        "/news", "/shop", "/help", "/team", "/jobs", "/blog", "/docs", "/wiki",
    ],
    request_fields: "Cookie: theme=dark; visits=7; language=en\r\n",
    reply_fields: &[
        "Content-Type: text/html; charset=utf-8",
        "Cache-Control: private, no-cache",
        "X-Frame-Options: SAMEORIGIN",
        "Set-Cookie: visits=8; Path=/; HttpOnly",
    ],
    prints: page,
};

/// The same in one file: template and tables are part of the script, and every run searches the template for
/// placeholders. There is no Perl version, because mod_perl always compiles once.
pub static FLAT: InServer = InServer {
    name: "flat",
    lighty: include_str!("scripts/flat.lighty.lua"),
    nginx: include_str!("scripts/flat.nginx.lua"),
    perl: PAGE.perl,
    module: None,
    extent: PAGE.extent,
    paths: PAGE.paths,
    request_fields: PAGE.request_fields,
    reply_fields: PAGE.reply_fields,
    prints: page,
};

/// Waits for a Redis.
pub static ASK_REDIS: InServer = InServer {
    name: "redis",
    lighty: include_str!("scripts/redis.petrel.lua"),
    nginx: include_str!("scripts/redis.nginx.lua"),
    perl: None,
    module: None,
    extent: Extent::OnePath,
    paths: &["/waiting"],
    request_fields: "",
    reply_fields: &[],
    prints: |_| "123".to_owned(),
};

/// The article's handler. In Lua it answers for every URL, and in Perl for those that Apache passes to it.
pub static STORY: InServer = InServer {
    name: "story",
    lighty: include_str!("scripts/story.lighty.lua"),
    nginx: "",
    perl: Some(("Book::News", include_str!("scripts/story.pm"))),
    module: None,
    extent: Extent::Everything,
    paths: &[],
    request_fields: "",
    reply_fields: &[],
    prints: |path| format!("Story matching {path}\n"),
};

impl InServer {
    /// Completes one of its texts with the template and the port of the Redis.
    pub fn complete(&self, text: &str, redis_port: Option<u16>) -> String {
        let port = redis_port.map_or_else(String::new, |port| port.to_string());
        let template = TEMPLATE.trim_end();
        text.replace("@TEMPLATE@", template)
            .replace("@REDIS_PORT@", &port)
    }

    /// Its only path, if it has just one.
    pub fn only_path(&self) -> Option<&'static str> {
        match self.extent {
            Extent::OnePath => self.paths.first().copied(),
            Extent::Everything => None,
        }
    }
}

/// The expected page: the template, filled in again here.
fn page(path: &str) -> String {
    let name = path.trim_start_matches('/');
    let title = TITLES.iter().find(|(route, _)| *route == name);
    let title = title.map_or("", |(_, title)| *title);
    let value = |key: &str| match key {
        "title" => title.to_owned(),
        "heading" => format!("{title} from the harbour"),
        "class" => name.to_owned(),
        "method" => "GET".to_owned(),
        "path" => path.to_owned(),
        "agent" => "petrel-bench".to_owned(),
        "canonical" => format!("https://harbour.example{path}"),
        "next" => format!("{path}?page=2"),
        "visits" => "8".to_owned(),
        "greeting" => "Welcome back".to_owned(),
        other => format!("no value {other}"),
    };
    let mut pieces = TEMPLATE.trim_end().split("{{");
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (key, rest) = piece.split_once("}}").unwrap_or((piece, ""));
        let _infallible = write!(out, "{}{rest}", value(key));
    }
    out
}

const TITLES: [(&str, &str); 8] = [
    ("news", "Latest news"),
    ("shop", "Ship stores"),
    ("help", "Helping you"),
    ("team", "Our masters"),
    ("jobs", "All aboard!"),
    ("blog", "The logbook"),
    ("docs", "Regulations"),
    ("wiki", "Sea stories"),
];
const TEMPLATE: &str = include_str!("scripts/page.html");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_differ_but_not_in_length() {
        let first = page(PAGE.paths[0]);
        assert!(first.len() > 2048 && !first.contains("{{") && !first.contains("no value"));
        for path in &PAGE.paths[1..] {
            let other = page(path);
            assert_eq!(other.len(), first.len(), "{path}");
            assert_ne!(other, first);
        }
    }

    #[test]
    fn the_template_has_ten_values_and_is_in_every_text() {
        let mut keys: Vec<_> = TEMPLATE
            .split("{{")
            .skip(1)
            .filter_map(|piece| piece.split_once("}}"))
            .map(|(key, _)| key)
            .collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 10);
        let ((_, perl), (_, module)) = (PAGE.perl.unwrap(), PAGE.module.unwrap());
        for text in [FLAT.lighty, FLAT.nginx, module, perl] {
            assert!(
                PAGE.complete(text, None)
                    .contains("The crane on the second quay")
            );
        }
    }
}
