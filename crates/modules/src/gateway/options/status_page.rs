//! `status-path`, `status-address` and `slowlog`: where php-fpm tells its status, and which scripts are slow.

use std::path::PathBuf;

use super::{HostAddress, Protocol, proxy_core};

/// Where php-fpm tells its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FpmStatusPage {
    /// `pm.status_path` of its pool.
    pub(crate) path: Vec<u8>,
    /// The address to ask, which is numeric, a name or a unix socket; `None`: the backend's own.
    pub(crate) address: Option<HostAddress>,
    /// `slowlog` of its pool.
    pub(crate) slow_log: Option<PathBuf>,
}

impl FpmStatusPage {
    /// The page of a backend with these options.
    ///
    /// # Errors
    /// The option that is wrong, and why.
    pub(super) fn read(
        protocol: Protocol,
        path: Option<&str>,
        address: Option<&str>,
        slow_log: Option<&str>,
    ) -> Result<Option<FpmStatusPage>, (&'static str, String)> {
        let used = match (path, address, slow_log) {
            (None, None, None) => return Ok(None),
            (Some(_), _, _) => PATH,
            (None, Some(_), _) => ADDRESS,
            (None, None, Some(_)) => SLOW_LOG,
        };
        if protocol != Protocol::FastCgi {
            let name = protocol.name();
            let why = format!("{used} is for php-fpm, which speaks FastCGI and not {name}");
            return Err((used, why));
        }
        let path = path.ok_or_else(|| (used, format!("{used} needs {PATH} beside it")))?;
        if !path.starts_with('/') {
            return Err((PATH, format!("{PATH} takes a URL path, not {path:?}")));
        }
        if let Some(file) = slow_log.filter(|file| !file.starts_with('/')) {
            let why = format!("{SLOW_LOG} takes an absolute path, not {file:?}");
            return Err((SLOW_LOG, why));
        }
        Ok(Some(FpmStatusPage {
            path: path.as_bytes().to_vec(),
            address: address.map(read_address).transpose()?,
            slow_log: slow_log.map(PathBuf::from),
        }))
    }
}

fn read_address(text: &str) -> Result<HostAddress, (&'static str, String)> {
    // No port is written as 0.
    match proxy_core::address(text, NO_PORT) {
        Ok(HostAddress::Srv(_) | HostAddress::Tcp(_, NO_PORT)) => {
            let why = format!("{ADDRESS} takes \"host:port\" or \"unix:/path\", not {text:?}");
            Err((ADDRESS, why))
        }
        Ok(address) => Ok(address),
        Err(why) => Err((ADDRESS, format!("{ADDRESS}: {why}"))),
    }
}

/// The option with the path.
pub(super) const PATH: &str = "status-path";

/// The option with the address.
pub(super) const ADDRESS: &str = "status-address";

/// The option with the slow log.
pub(super) const SLOW_LOG: &str = "slowlog";

const NO_PORT: u16 = 0;

#[cfg(test)]
mod tests {
    use super::super::testing::{gateway_of, host, refusal, refused};
    use super::*;

    #[test]
    fn path_and_address_are_read() {
        let page = |address| {
            Some(FpmStatusPage {
                path: b"/fpm-status".to_vec(),
                address,
                slow_log: None,
            })
        };
        let own = "\"socket\" => \"/s\", \"status-path\" => \"/fpm-status\"";
        assert_eq!(host(own).status_page, page(None));
        assert_eq!(host("\"socket\" => \"/s\"").status_page, None);
        for (text, address) in [
            ("php:9001", HostAddress::Tcp("php".to_owned(), 9001)),
            ("[::1]:9001", HostAddress::Tcp("::1".to_owned(), 9001)),
            ("unix:/t", HostAddress::Unix(b"/t".to_vec())),
        ] {
            let other = format!("{own}, \"status-address\" => \"{text}\"");
            assert_eq!(host(&other).status_page, page(Some(address)));
        }
        let gateway = gateway_of(
            "mod_proxy_core",
            "proxy-core.protocol = \"fastcgi\"\nproxy-core.backends = ( \"unix:/s\" )\n\
             proxy-core.status-path = \"/fpm-status\"\nproxy-core.status-address = \"unix:/t\"",
        );
        let address = HostAddress::Unix(b"/t".to_vec());
        assert_eq!(gateway.routes[0].hosts[0].status_page, page(Some(address)));
        let slow = host(&format!("{own}, \"slowlog\" => \"/l\"")).status_page;
        let core = gateway_of(
            "mod_proxy_core",
            "proxy-core.protocol = \"fastcgi\"\nproxy-core.backends = ( \"unix:/s\" )\n\
             proxy-core.status-path = \"/fpm-status\"\nproxy-core.slowlog = \"/l\"",
        );
        for page in [slow, core.routes[0].hosts[0].status_page.clone()] {
            assert_eq!(page.expect("it is set").slow_log, Some(PathBuf::from("/l")));
        }
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for (options, message) in [
            (
                "\"status-path\" => \"status\"",
                "status-path takes a URL path, not \"status\"",
            ),
            (
                "\"status-address\" => \"a:1\"",
                "status-address needs status-path",
            ),
            (
                "\"slowlog\" => \"/l\"",
                "slowlog needs status-path beside it",
            ),
            (
                "\"status-path\" => \"/s\", \"slowlog\" => \"l\"",
                "slowlog takes an absolute path, not \"l\"",
            ),
            (
                "\"status-path\" => \"/s\", \"status-address\" => \"a\"",
                "status-address takes \"host:port\" or \"unix:/path\", not \"a\"",
            ),
            (
                "\"status-path\" => \"/s\", \"status-address\" => \"srv:_a._tcp.b\"",
                "takes \"host:port\"",
            ),
            (
                "\"status-path\" => \"/s\", \"status-address\" => \"a:b\"",
                "status-address: \"a:b\" is no address",
            ),
        ] {
            let found = refused(&format!("\"socket\" => \"/s\", {options}"));
            assert!(found.contains(message), "{options}: {found}");
        }
        let http = "proxy.server = ( \"/\" => (( \"host\" => \"a\", \"status-path\" => \"/s\" )) )";
        let found = refusal("mod_proxy", http);
        assert!(found.contains("speaks FastCGI and not HTTP"), "{found}");
        let core = "proxy-core.backends = ( \"a:1\", \"b:1\" )\n";
        for (protocol, options, message) in [
            ("http", "proxy-core.status-path = \"/s\"", "and not HTTP"),
            (
                "fastcgi",
                "proxy-core.status-path = \"s\"",
                "proxy-core.status-path takes a URL path",
            ),
            (
                "fastcgi",
                "proxy-core.status-address = \"a:1\"",
                "proxy-core.status-address needs status-path",
            ),
            (
                "fastcgi",
                "proxy-core.status-path = \"/s\"\nproxy-core.status-address = \"a:1\"",
                "one backend",
            ),
        ] {
            let text = format!("{core}proxy-core.protocol = \"{protocol}\"\n{options}");
            let found = refusal("mod_proxy_core", &text);
            assert!(found.contains(message), "{options}: {found}");
        }
    }
}
