//! mod_evhost: makes the document root out of parts of the host name.
//!
//! The pattern is parsed when settings are built. If the resulting path is no directory,
//! `server.document-root` of the scope applies, and the error log says so. If the path cannot be examined,
//! the answer is an error. Directories are looked up in the file cache, so that a known host costs no system
//! call.

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::file_cache::Symlinks;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::core::absolute_root;

use crate::vhost::{choose_root, is_directory, is_safe_host};

/// mod_evhost.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_evhost",
    doc: "Makes the document root out of parts of the host name.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "evhost.path-pattern", String, Request, "unset", Effect::Works,
            "The document root, with %0 for domain and top-level domain, %1 for the top-level domain, %2 for the domain, %3 and above for subdomains, %_ for the whole name, %{2.1} for the first character of %2, and %% for a percent sign.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let Some(text) = configure.values.string("evhost.path-pattern") else {
        return Ok(());
    };
    let pattern = Pattern::parse(text).map_err(|sequence| {
        let message = format!("evhost.path-pattern: {sequence:?} is not a known sequence");
        configure
            .values
            .error("evhost.path-pattern", message)
            .with_hint("there are %0 to %9, %_, %{N} and %{N.M} with one digit each, and %%")
    })?;
    configure.add(Phase::DocumentRoot, pattern);
    Ok(())
}

/// A parsed pattern, which begins with an absolute path.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    /// `%_`
    Name,
    /// `%0` to `%9`
    Part(u8),
    /// `%{N.M}`: character M of part N, from 1.
    Character(u8, u8),
}

impl Pattern {
    /// The error is the invalid sequence.
    fn parse(text: &str) -> Result<Pattern, &str> {
        let (first, _) = text.split_at(text.find('%').unwrap_or(text.len()));
        let mut start = absolute_root(first).to_vec();
        if first.ends_with('/') || start.is_empty() {
            start.push(b'/');
        }
        let mut pattern = Pattern {
            pieces: vec![Piece::Text(start)],
        };
        let mut rest = text.get(first.len()..).unwrap_or_default();
        while !rest.is_empty() {
            let (piece, length) = Pattern::piece(rest)?;
            pattern.push(piece);
            rest = rest.get(length..).unwrap_or_default();
        }
        pattern.strip_slash();
        Ok(pattern)
    }

    /// The piece at the front of `rest`, and its length.
    fn piece(rest: &str) -> Result<(Piece, usize), &str> {
        let digit = |byte: u8| byte - b'0';
        Ok(match *rest.as_bytes() {
            [b'%', b'%', ..] => (Piece::Text(b"%".to_vec()), 2),
            [b'%', b'_', ..] => (Piece::Name, 2),
            [b'%', part @ b'0'..=b'9', ..] => (Piece::Part(digit(part)), 2),
            [b'%', b'{', part @ b'0'..=b'9', b'}', ..] => (Piece::Part(digit(part)), 4),
            [b'%', b'{', part @ b'0'..=b'9', b'.', b'0', b'}', ..] => (Piece::Part(digit(part)), 6),
            [
                b'%',
                b'{',
                part @ b'0'..=b'9',
                b'.',
                character @ b'1'..=b'9',
                b'}',
                ..,
            ] => (Piece::Character(digit(part), digit(character)), 6),
            [b'%', ..] => {
                let end = rest.find(['}', '/']).map_or(rest.len(), |end| end + 1);
                return Err(rest.get(..end).unwrap_or(rest).trim_end_matches('/'));
            }
            _ => {
                let length = rest.find('%').unwrap_or(rest.len());
                (
                    Piece::Text(rest.as_bytes().iter().take(length).copied().collect()),
                    length,
                )
            }
        })
    }

    fn push(&mut self, piece: Piece) {
        match (self.pieces.last_mut(), piece) {
            (Some(Piece::Text(before)), Piece::Text(text)) => before.extend_from_slice(&text),
            (_, piece) => self.pieces.push(piece),
        }
    }

    /// Removes the slash at the end, which document roots do not have.
    fn strip_slash(&mut self) {
        if let Some(Piece::Text(text)) = self.pieces.last_mut() {
            while text.last() == Some(&b'/') {
                text.pop();
            }
        }
    }

    /// Appends the document root for `host` to `out`.
    fn expand(&self, host: &[u8], out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Name => out.extend_from_slice(host),
                Piece::Part(number) => out.extend_from_slice(part(host, *number)),
                Piece::Character(number, character) => {
                    let position = usize::from(*character).saturating_sub(1);
                    out.extend(part(host, *number).get(position));
                }
            }
        }
    }
}

/// Part `number` of `host`: 0 is its last two labels, 1 the last label, 2 the one before, and so on. Empty if
/// there are fewer. An IPv6 address is part 0 and has no other parts.
fn part(host: &[u8], number: u8) -> &[u8] {
    match number {
        0 if host.starts_with(b"[") => host,
        0 => {
            let mut dots = memchr::memrchr_iter(b'.', host);
            let start = dots.nth(1).map_or(0, |dot| dot + 1);
            host.get(start..).unwrap_or_default()
        }
        _ if host.starts_with(b"[") => b"",
        _ => {
            let nth = usize::from(number).saturating_sub(1);
            host.rsplit(|byte| *byte == b'.')
                .nth(nth)
                .unwrap_or_default()
        }
    }
}

impl Hook for Pattern {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        choose_root(exchange, |exchange, root| {
            let host = exchange.request.head.host_without_port();
            if !is_safe_host(host) {
                return Some(Ok(false));
            }
            let before = root.len();
            self.expand(host, root);
            let path = root.get(before..).unwrap_or_default();
            let found = is_directory(exchange.look_up(path, Symlinks::Follow)?.kind());
            if found == Ok(false) {
                let path = String::from_utf8_lossy(path);
                exchange.log_error("map", format_args!("evhost: {path:?} is not a directory"));
            }
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};

    fn expanded(pattern: &str, host: &str) -> String {
        let mut out = Vec::new();
        Pattern::parse(pattern)
            .expect("it is sound")
            .expand(host.as_bytes(), &mut out);
        String::from_utf8(out).expect("all of it is text")
    }

    // As lighttpd 1.4.69 expands them, except for the slash at the end.
    #[test]
    fn patterns_are_filled_in() {
        let pattern = "/e/p%%_%_/0_%0/1_%1/2_%2/3_%3/4_%4/5_%{5}/%{2.1}/%{2.9}/%{3.0}/x";
        for (host, expected) in [
            (
                "s3.s2.s1.example.org",
                "/e/p%_s3.s2.s1.example.org/0_example.org/1_org/2_example/3_s1/4_s2/5_s3/e//s1/x",
            ),
            (
                "example.org",
                "/e/p%_example.org/0_example.org/1_org/2_example/3_/4_/5_/e///x",
            ),
            (
                "127.0.0.1",
                "/e/p%_127.0.0.1/0_0.1/1_1/2_0/3_0/4_127/5_/0//0/x",
            ),
            ("single", "/e/p%_single/0_single/1_single/2_/3_/4_/5_////x"),
        ] {
            assert_eq!(expanded(pattern, host), expected);
        }
    }

    #[test]
    fn an_ipv6_address_is_one_part() {
        assert_eq!(
            expanded("/e/%0/%1/%2/%_/x", "[::1.2.3.4]"),
            "/e/[::1.2.3.4]///[::1.2.3.4]/x"
        );
    }

    #[test]
    fn roots_have_no_slash_at_their_end() {
        assert_eq!(expanded("//e/%0//", "a.b"), "/e/a.b");
        assert_eq!(expanded("/", "a.b"), "");
        assert!(expanded("e/%0", "a.b").ends_with("/e/a.b"));
    }

    #[test]
    fn the_directory_is_the_document_root_if_there_is_one() {
        let tree = Tree::new(&[
            ("f", "own"),
            ("ev/example.com/www/f", "example"),
            ("ev/no.com", ""),
        ]);
        let config = "evhost.path-pattern = \"ROOT/ev/%0/www/\"";
        let site = tree.site(config, &[&MODULE, &crate::static_file::MODULE]);
        for (host, body) in [
            ("www.example.com", "example"),
            ("Example.com:8080", "example"),
            ("nope.com", "own"),
            ("no.com", "own"),
            ("127.0.0.1", "own"),
        ] {
            let answer = site.request(&format!("GET /f HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(answer.body(), body.as_bytes(), "{host}");
        }
        assert_eq!(site.request("GET /f HTTP/1.0\r\n\r\n").body(), b"own");
    }

    #[test]
    fn a_host_does_not_lead_out_of_the_pattern() {
        let tree = Tree::new(&[("f", "own"), ("ev/f", "ev"), ("www/f", "above")]);
        let config = "server.http-parseopts = (\"host-strict\" => \"disable\")\n\
            evhost.path-pattern = \"ROOT/ev/%0/\"";
        let site = tree.site(config, &[&MODULE, &crate::static_file::MODULE]);
        for host in ["a..", ".a", "..a.."] {
            let answer = site.request(&format!("GET /f HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(answer.body(), b"own", "{host}");
        }
    }

    #[test]
    fn a_sequence_that_means_nothing_is_refused_at_its_place() {
        for (pattern, sequence) in [
            ("/a/%x/b", "%x"),
            ("/%{1.2", "%{1.2"),
            ("/%{12.1}/", "%{12.1}"),
            ("/a%", "%"),
        ] {
            let config = format!("evhost.path-pattern = \"{pattern}\"");
            let message = refusal(&config, &[&MODULE]);
            let expected =
                format!("test.conf:1:23: error: evhost.path-pattern: {sequence:?} is not a known");
            assert!(message.starts_with(&expected), "{message}");
        }
    }
}
