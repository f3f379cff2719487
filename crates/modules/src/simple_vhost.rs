//! mod_simple_vhost: a directory for each host name.
//!
//! The document root is SERVER-ROOT/HOST/DOCUMENT-ROOT if that is a directory; otherwise the same with the
//! default host; otherwise `server.document-root` of the scope applies. Directories are looked up in the file
//! cache, so that a known host costs no system call. If a directory cannot be examined, the answer is an
//! error and not the pages of another host.

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect};
use petrel_engine::file_cache::Symlinks;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::core::absolute_root;
use rustix::io::Errno;

use crate::vhost::{choose_root, is_directory, is_safe_host};

/// mod_simple_vhost.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_simple_vhost",
    doc: "Finds the document root in a directory with the name of the host.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "simple-vhost.server-root", String, Request, "unset", Effect::Works,
            "The directory that contains a directory for each host.";
        "simple-vhost.default-host", String, Request, "unset", Effect::Works,
            "The host whose directory is used for hosts without one.";
        "simple-vhost.document-root", String, Request, "unset", Effect::Works,
            "The document root below the directory of a host.";
        "simple-vhost.debug", Short, Request, "0", Effect::Works,
            "If not 0: log which directory is used, or missing.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let Some(server_root) = values.string("simple-vhost.server-root") else {
        return Ok(());
    };
    let default_host = values
        .string("simple-vhost.default-host")
        .unwrap_or_default();
    if !default_host.is_empty() && !is_safe_host(default_host.as_bytes()) {
        let message = format!("{default_host:?} cannot be the name of a host's directory");
        return Err(values.error("simple-vhost.default-host", message));
    }
    let below = values
        .string("simple-vhost.document-root")
        .unwrap_or_default();
    let hook = SimpleVhost {
        server_root: absolute_root(server_root).as_ref().into(),
        default_host: default_host.as_bytes().into(),
        document_root: below.trim_matches('/').as_bytes().into(),
        logs: values.unsigned("simple-vhost.debug", 0) > 0,
    };
    configure.add(Phase::DocumentRoot, hook);
    Ok(())
}

struct SimpleVhost {
    /// Without a slash at its end.
    server_root: Box<[u8]>,
    /// If empty, the server root itself is the default host's directory.
    default_host: Box<[u8]>,
    /// Without slashes at either end.
    document_root: Box<[u8]>,
    logs: bool,
}

impl Hook for SimpleVhost {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let mut is_default = false;
        let outcome = choose_root(exchange, |exchange, root| {
            let host = exchange.request.head.host_without_port();
            self.find(exchange, host, root, &mut is_default)
        });
        if is_default {
            let name = &mut exchange.physical.server_name;
            name.clear();
            name.extend_from_slice(&self.default_host);
        }
        outcome
    }
}

impl SimpleVhost {
    /// Appends the document root of `host`, or of the default host, to `root`. Returns whether there is one.
    /// `None`: a disk has to be waited for. `is_default` is set if it is that of the default host.
    fn find(
        &self,
        exchange: &Exchange,
        host: &[u8],
        root: &mut Vec<u8>,
        is_default: &mut bool,
    ) -> Option<Result<bool, Errno>> {
        let before = root.len();
        if !host.is_empty() {
            let found = self.append(exchange, host, root)?;
            if found != Ok(false) {
                return Some(found);
            }
            root.truncate(before);
        }
        let found = self.append(exchange, &self.default_host, root);
        *is_default = found == Some(Ok(true));
        found
    }

    /// Appends the document root of `host` to `root`. Returns whether it is a directory.
    fn append(
        &self,
        exchange: &Exchange,
        host: &[u8],
        root: &mut Vec<u8>,
    ) -> Option<Result<bool, Errno>> {
        let before = root.len();
        root.extend_from_slice(&self.server_root);
        for part in [host, &self.document_root]
            .into_iter()
            .filter(|part| !part.is_empty())
        {
            root.push(b'/');
            root.extend_from_slice(part);
        }
        let path = root.get(before..).unwrap_or_default();
        let found = match host.is_empty() || is_safe_host(host) {
            true => is_directory(exchange.look_up(path, Symlinks::Follow)?.kind()),
            false => Ok(false),
        };
        if self.logs {
            let what = match found {
                Ok(true) => "is used",
                Ok(false) => "is not a directory",
                Err(_) => "cannot be examined",
            };
            let path = String::from_utf8_lossy(path);
            exchange.log_error("map", format_args!("simple-vhost: {path:?} {what}"));
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};

    fn tree() -> Tree {
        Tree::new(&[
            ("own/f", "own"),
            ("vh/a.example/htdocs/f", "a"),
            ("vh/default.example/htdocs/f", "default"),
            ("vh/file.example", "not a directory"),
            ("vh/htdocs/f", "none"),
            ("htdocs/f", "above"),
        ])
    }

    fn served(config: &str, host: &str) -> String {
        let tree = tree();
        let config = format!(
            "$HTTP[\"host\"] !~ \"^never$\" {{ server.document-root = \"ROOT/own\" }}\n\
             simple-vhost.server-root = \"ROOT/vh/\"\n{config}"
        );
        let site = tree.site(&config, &[&MODULE, &crate::static_file::MODULE]);
        let host = if host.is_empty() {
            String::new()
        } else {
            format!("Host: {host}\r\n")
        };
        let answer = site.request(&format!("GET /f HTTP/1.0\r\n{host}\r\n"));
        String::from_utf8_lossy(answer.body()).into_owned()
    }

    const HTDOCS: &str = "simple-vhost.document-root = \"/htdocs/\"\n";

    #[test]
    fn the_host_names_the_directory() {
        for host in ["a.example", "A.example:80", "a.example:8080", "a.example."] {
            assert_eq!(served(HTDOCS, host), "a", "{host}");
        }
    }

    #[test]
    fn the_default_host_serves_the_others() {
        let config = format!("{HTDOCS}simple-vhost.default-host = \"default.example\"");
        for host in ["b.example", "file.example", ""] {
            assert_eq!(served(&config, host), "default", "{host}");
        }
    }

    #[test]
    fn the_default_host_names_the_server_and_roots_are_shown_with_a_slash() {
        let tree = tree();
        let config = format!(
            "server.name = \"configured\"\nsimple-vhost.server-root = \"ROOT/vh\"\n{HTDOCS}\
             simple-vhost.default-host = \"default.example\""
        );
        let site = tree.site(&config, &[&MODULE, &crate::static_file::MODULE]);
        for (host, name) in [
            ("b.example", "default.example"),
            ("a.example", "configured"),
        ] {
            let answer = site.request(&format!("GET /f HTTP/1.0\r\nHost: {host}\r\n\r\n"));
            let exchange = answer.exchange();
            assert_eq!(exchange.server_name(), name.as_bytes());
            let physical = &exchange.physical;
            assert_eq!(physical.slash_behind(&physical.document_root), b"/");
        }
    }

    #[test]
    fn without_a_default_host_the_server_root_takes_its_place() {
        assert_eq!(served(HTDOCS, "b.example"), "none");
    }

    #[test]
    fn without_any_directory_the_document_root_stays() {
        let config = "simple-vhost.document-root = \"missing\"\nsimple-vhost.debug = 1";
        assert_eq!(served(config, "a.example"), "own");
    }

    #[test]
    fn a_host_does_not_lead_out_of_the_server_root() {
        let config = format!("server.http-parseopts = (\"host-strict\" => \"disable\")\n{HTDOCS}");
        for host in ["..x..", ".a", "a..", "..%2f"] {
            assert_eq!(served(&config, host), "none", "{host}");
        }
        assert!(!is_safe_host(b"..") && !is_safe_host(b"a/b") && !is_safe_host(b"a\0"));
    }

    #[test]
    fn a_default_host_that_leads_out_is_refused() {
        let config = "simple-vhost.server-root = \"/srv\"\nsimple-vhost.default-host = \"../etc\"";
        let message = refusal(config, &[&MODULE]);
        assert!(
            message.starts_with("test.conf:2:29: error: \"../etc\" cannot"),
            "{message}"
        );
    }
}
