//! Which backends a URL belongs to, and which part of its path names the program.
//!
//! As in lighttpd this is decided at one of two moments. Backends with `check-local = "disable"` get a URL
//! before its file is looked up ([`find_unchecked`]); the part of the path that names the program then
//! follows from the key ([`split`]). All other backends get URLs whose file is there ([`find`]), and the file
//! system has told where the path-info begins. This module looks at paths only: it does not know what a file
//! is or whether a backend works.

use petrel_engine::Exchange;
use petrel_engine::exchange::Physical;

use super::options::{BackendHost, Gateway, Mode, Route, RouteKey};

/// The route for a file that was found. Prefixes are compared with the URL's path, suffixes with the physical
/// path. `map-extensions` comes first, then the first key of the configuration that fits.
pub fn find<'g>(
    gateway: &'g Gateway,
    mode: Mode,
    url_path: &[u8],
    physical_path: &[u8],
) -> Option<&'g Route> {
    let routes = || {
        gateway
            .routes
            .iter()
            .filter(move |route| mode_of(route) == mode)
    };
    let mut aliases = gateway.extensions.iter();
    let alias = aliases.find(|(suffix, _)| physical_path.ends_with(suffix));
    let aliased = alias.and_then(|(_, key)| routes().find(|route| is_key(&route.key, key)));
    aliased.or_else(|| routes().find(|route| fits(&route.key, url_path, physical_path)))
}

/// The route for a URL whose file is not looked up, if the first key that fits belongs to backends with
/// `check-local` off. If a key has backends of both kinds, the first backend decides.
pub(crate) fn find_unchecked<'g>(
    gateway: &'g Gateway,
    mode: Mode,
    url_path: &[u8],
) -> Option<&'g Route> {
    let route = find(gateway, mode, url_path, url_path)?;
    let is_checked = |host: &std::rc::Rc<BackendHost>| host.check_local;
    (!route.hosts.first().is_none_or(is_checked)).then_some(route)
}

/// Splits the path of a URL that [`find_unchecked`] found a route for into program and path-info. The program
/// is the key and all that follows it up to the next slash; the rest is path-info. With `fix-root-scriptname`
/// and the key "/" the whole path is path-info.
///
/// The key `/app` splits `/app/foo/bar` into the program `/app` and `/foo/bar`; the key `/app/` splits it
/// into `/app/foo` and `/bar`. With authorizers, and with keys that are suffixes, there is no path-info.
pub fn split(route: &Route, host: &BackendHost, exchange: &mut Exchange) {
    exchange.physical.path_info.clear();
    let path = exchange.request.url.path();
    let Some(name_length) = program_length(&route.key, host, path) else {
        return;
    };
    let (name, info) = path.split_at(name_length);
    shorten(&mut exchange.physical, name, info);
}

/// The length of the part of `path` that names the program, if path-info follows it.
fn program_length(key: &RouteKey, host: &BackendHost, path: &[u8]) -> Option<usize> {
    let RouteKey::Prefix(prefix) = key else {
        return None;
    };
    if host.mode == Mode::Authorizer {
        return None;
    }
    if host.fix_root_scriptname && prefix == b"/" {
        return Some(0);
    }
    let slash = memchr::memchr(b'/', path.get(prefix.len()..)?)?;
    Some(prefix.len() + slash)
}

/// Removes `info` from the end of the physical path, so that the path leads to the program.
fn shorten(physical: &mut Physical, name: &[u8], info: &[u8]) {
    physical.path_info.extend_from_slice(info);
    let without = |path: &[u8]| {
        let length = path.len().checked_sub(info.len())?;
        path.get(length..)
            .filter(|end| *end == info || end.eq_ignore_ascii_case(info))?;
        Some(length)
    };
    let is_mapped = !physical.path.is_empty();
    match without(&physical.path).filter(|length| *length >= physical.base_length()) {
        Some(length) => physical.path.truncate(length),
        // An alias has replaced more of the path than the part that names the program.
        None => {
            physical.path.clear();
            if is_mapped {
                physical.path.extend_from_slice(&physical.document_root);
                physical.path.extend_from_slice(name);
            }
        }
    }
    if name.is_empty() && is_mapped {
        physical.path.push(b'/');
    }
    if let Some(length) = without(&physical.relative) {
        physical.relative.truncate(length);
    }
}

/// The mode of all backends of `route`.
fn mode_of(route: &Route) -> Mode {
    route
        .hosts
        .first()
        .map_or(Mode::Responder, |host| host.mode)
}

fn fits(key: &RouteKey, url_path: &[u8], physical_path: &[u8]) -> bool {
    match key {
        RouteKey::All => true,
        RouteKey::Prefix(prefix) => url_path.starts_with(prefix),
        RouteKey::Suffix(suffix) => physical_path.ends_with(suffix),
    }
}

/// Whether `key` is written as `text` in the configuration.
fn is_key(key: &RouteKey, text: &[u8]) -> bool {
    match key {
        RouteKey::All => text.is_empty(),
        RouteKey::Prefix(written) | RouteKey::Suffix(written) => written == text,
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::testing::gateway_of;
    use super::*;
    use crate::testing::Tree;

    const HOST: &str = "(( \"host\" => \"a\" ))";
    const UNCHECKED: &str = "(( \"host\" => \"a\", \"check-local\" => \"disable\" ))";

    fn gateway(keys: &[(&str, &str)], rest: &str) -> Gateway {
        let routes = keys
            .iter()
            .map(|(key, hosts)| format!("\"{key}\" => {hosts}"));
        let routes: Vec<_> = routes.collect();
        let text = format!("fastcgi.server = ( {} )\n{rest}", routes.join(", "));
        gateway_of("mod_fastcgi", &text)
    }

    fn key_of(gateway: &Gateway, url: &str, file: &str) -> Option<RouteKey> {
        let route = find(gateway, Mode::Responder, url.as_bytes(), file.as_bytes());
        route.map(|route| route.key.clone())
    }

    fn prefix(text: &str) -> Option<RouteKey> {
        Some(RouteKey::Prefix(text.as_bytes().to_vec()))
    }

    fn suffix(text: &str) -> Option<RouteKey> {
        Some(RouteKey::Suffix(text.as_bytes().to_vec()))
    }

    #[test]
    fn the_first_key_that_fits_counts() {
        let gateway = gateway(
            &[("/p", HOST), (".php", HOST), ("/pa/b", HOST), ("/q", HOST)],
            "",
        );
        for (url, file, expected) in [
            ("/pa/b", "/w/pa/b", prefix("/p")),
            ("/p.php", "/w/p.php", prefix("/p")),
            ("/q/a.php", "/w/q/a.php", suffix(".php")),
            ("/q/a", "/w/q/a", prefix("/q")),
            // The index file of a directory, and a file with path-info behind it.
            ("/x/", "/w/x/index.php", suffix(".php")),
            ("/P", "/w/P", None),
            ("/a.PHP", "/w/a.PHP", None),
            ("/x", "/w/x", None),
        ] {
            assert_eq!(key_of(&gateway, url, file), expected, "{url}");
        }
    }

    #[test]
    fn an_empty_key_fits_everything() {
        let gateway = gateway(&[(".php", HOST), ("", HOST)], "");
        assert_eq!(key_of(&gateway, "/a.php", "/w/a.php"), suffix(".php"));
        assert_eq!(key_of(&gateway, "*", ""), Some(RouteKey::All));
    }

    #[test]
    fn extensions_can_be_handled_as_others() {
        let map = "fastcgi.map-extensions = ( \".txt\" => \".php\", \".foo\" => \".missing\" )";
        let gateway = gateway(&[("/", HOST), (".php", HOST)], map);
        assert_eq!(key_of(&gateway, "/a.txt", "/w/a.txt"), suffix(".php"));
        assert_eq!(key_of(&gateway, "/a.foo", "/w/a.foo"), prefix("/"));
    }

    #[test]
    fn only_backends_that_need_no_file_get_urls_without_one() {
        let gateway = gateway(&[("/a", HOST), ("/", UNCHECKED), (".php", UNCHECKED)], "");
        let key = |url: &[u8]| {
            let route = find_unchecked(&gateway, Mode::Responder, url);
            route.map(|route| route.key.clone())
        };
        assert_eq!(key(b"/b"), prefix("/"));
        assert_eq!(key(b"/a"), None, "the first key that fits wants a file");
    }

    #[test]
    fn authorizers_and_responders_are_found_apart() {
        let both = "(( \"host\" => \"a\", \"mode\" => \"authorizer\" ), ( \"host\" => \"b\" ))";
        let gateway = gateway(&[("/", both)], "");
        for (mode, label) in [(Mode::Authorizer, "a:80"), (Mode::Responder, "b:80")] {
            let route = find(&gateway, mode, b"/", b"/w/").expect("there is one");
            assert_eq!(route.hosts[0].label, label);
        }
        assert!(find_unchecked(&gateway, Mode::Authorizer, b"/").is_none());
    }

    /// Program, path-info and physical path of `target`.
    fn parts(key: &str, options: &str, target: &str, alias: &str) -> (String, String, String) {
        let tree = Tree::new(&[]);
        let site = tree.site(alias, &[&crate::alias::MODULE]);
        let mut answer = site.get(target);
        let hosts = format!("(( \"host\" => \"a\", \"check-local\" => \"disable\"{options} ))");
        let gateway = gateway(&[(key, &hosts)], "");
        let route = &gateway.routes[0];
        let exchange = answer.exchange_mut();
        split(route, &route.hosts[0], exchange);
        let (name, info) = super::super::environment::script_name_and_path_info(exchange);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let path = text(&exchange.physical.path);
        let root = tree.path("");
        (
            text(name),
            text(info),
            path.replace(root.trim_end_matches('/'), "ROOT"),
        )
    }

    // The values are from lighttpd 1.4.69.
    #[test]
    fn the_program_ends_at_the_slash_behind_the_key() {
        let root = ", \"fix-root-scriptname\" => \"enable\"";
        let authorizer = ", \"mode\" => \"authorizer\"";
        for (key, options, target, name, info, path) in [
            ("/app", "", "/app/foo/bar", "/app", "/foo/bar", "ROOT/app"),
            (
                "/app/",
                "",
                "/app/foo/bar",
                "/app/foo",
                "/bar",
                "ROOT/app/foo",
            ),
            ("/app/", "", "/app/", "/app/", "", "ROOT/app/"),
            ("/pa", "", "/pa", "/pa", "", "ROOT/pa"),
            ("/p", "", "/pa/b", "/pa", "/b", "ROOT/pa"),
            ("/", "", "/foo/bar/x", "/foo", "/bar/x", "ROOT/foo"),
            ("/", root, "/foo/bar/x", "", "/foo/bar/x", "ROOT/"),
            ("/app", root, "/app/x", "/app", "/x", "ROOT/app"),
            ("", "", "/foo/bar", "/foo/bar", "", "ROOT/foo/bar"),
            (
                ".php",
                "",
                "/a.php/b.php",
                "/a.php/b.php",
                "",
                "ROOT/a.php/b.php",
            ),
            (
                "/app",
                authorizer,
                "/app/foo",
                "/app/foo",
                "",
                "ROOT/app/foo",
            ),
            (
                "/app",
                "",
                "/app%2Ffoo/b%20r",
                "/app",
                "/foo/b r",
                "ROOT/app",
            ),
        ] {
            let expected = (name.to_owned(), info.to_owned(), path.to_owned());
            assert_eq!(parts(key, options, target, ""), expected, "{key} {target}");
        }
    }

    #[test]
    fn aliases_lead_to_the_program() {
        let alias = "alias.url = ( \"/p/\" => \"ROOT/out/\" )";
        let found = parts("/p/", "", "/p/b.php/x", alias);
        assert_eq!(
            found,
            ("/p/b.php".into(), "/x".into(), "ROOT/out/b.php".into())
        );
        // The alias replaces more than the program's part of the path.
        let alias = "alias.url = ( \"/foo/bar\" => \"ROOT/out\" )";
        let found = parts("/", "", "/foo/bar/x", alias);
        assert_eq!(found, ("/foo".into(), "/bar/x".into(), "ROOT/foo".into()));
    }

    #[test]
    fn letter_case_of_the_url_stays() {
        let lower = "server.force-lowercase-filenames = \"enable\"";
        let found = parts("/App", "", "/App/Foo", lower);
        assert_eq!(found, ("/App".into(), "/Foo".into(), "ROOT/app".into()));
    }
}
