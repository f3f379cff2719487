//! TLS to backends: the options of one backend, or of `proxy-core.tls`.

use std::path::PathBuf;

use petrel_engine::config::Diagnostic;
use petrel_engine::tls::TlsName;

use super::HostAddress;
use super::map::OptionMap;

/// The TLS options of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The server name in the handshake (SNI), which the certificate has to be for.
    pub(crate) name: TlsName,
    /// The files.
    pub(crate) trust: TrustOptions,
}

/// How backends are verified, and which certificate they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TrustOptions {
    /// Accept any certificate.
    pub(crate) is_unverified: bool,
    /// The file with trusted authorities; `None`: the system's.
    pub(crate) ca_file: Option<PathBuf>,
    /// The client certificate for backends that ask for one.
    pub(crate) certificate: Option<PathBuf>,
    /// The key of that certificate; `None`: it is in the same file.
    pub(crate) key: Option<PathBuf>,
}

/// Whether the options in `map` ask for TLS.
pub(super) fn is_wanted(map: &OptionMap<'_>) -> Result<bool, Diagnostic> {
    Ok(map.switch(SWITCH)?.unwrap_or(false))
}

/// The files that the options in `map` name; `None` without TLS.
pub(super) fn trust(map: &OptionMap<'_>) -> Result<Option<TrustOptions>, Diagnostic> {
    let file = |key: &str| match map.text(key)? {
        Some(path) if !path.starts_with('/') => {
            let message = format!("{key} takes an absolute path, not {path:?}");
            Err(map.error(key, message))
        }
        path => Ok(path.map(PathBuf::from)),
    };
    let trust = TrustOptions {
        is_unverified: !map.switch(VERIFY)?.unwrap_or(true),
        ca_file: file(CA_FILE)?,
        certificate: file(CERTIFICATE)?,
        key: file(KEY)?,
    };
    map.text(NAME)?;
    if !is_wanted(map)? {
        // An error: otherwise such a backend would be used in the clear, although its options look like TLS.
        let mut named = NAMES.iter().filter(|key| **key != SWITCH);
        return match named.find(|key| map.array.get(key).is_some()) {
            None => Ok(None),
            Some(key) => {
                let error = map.error(key, format!("{key} has no effect without TLS"));
                Err(error.with_hint("add \"tls\" => \"enable\""))
            }
        };
    }
    let contradiction = |key: &str, message: &str| Err(map.error(key, message.to_owned()));
    if trust.is_unverified && trust.ca_file.is_some() {
        return contradiction(VERIFY, "tls-verify is off, so tls-ca-file has no effect");
    }
    if trust.key.is_some() && trust.certificate.is_none() {
        return contradiction(KEY, "tls-key has no effect without tls-cert");
    }
    Ok(Some(trust))
}

/// The TLS options of the backend at `address`; `None` in the clear.
pub(super) fn read(
    map: &OptionMap<'_>,
    address: &HostAddress,
) -> Result<Option<TlsOptions>, Diagnostic> {
    let Some(trust) = trust(map)? else {
        return Ok(None);
    };
    let (key, name) = match (map.text(NAME)?, address) {
        (Some(name), _) => (NAME, name),
        (None, HostAddress::Tcp(host, _)) => ("host", host.as_str()),
        (None, HostAddress::Unix(_) | HostAddress::Srv(_)) => {
            let message = "TLS needs a name that the certificate of the backend is for".to_owned();
            let error = map.error(SWITCH, message);
            return Err(error.with_hint("add \"tls-name\" => \"app.example.org\""));
        }
    };
    match TlsName::parse(name) {
        Ok(name) => Ok(Some(TlsOptions { name, trust })),
        Err(message) => {
            let error = map.error(key, message);
            Err(error.with_hint("tls-name takes a host name or an address"))
        }
    }
}

/// Whether to use TLS.
pub(crate) const SWITCH: &str = "tls";
const NAME: &str = "tls-name";
/// Whether to verify the backend's certificate.
pub(crate) const VERIFY: &str = "tls-verify";
/// The file with trusted authorities.
pub(crate) const CA_FILE: &str = "tls-ca-file";
/// The client certificate.
pub(crate) const CERTIFICATE: &str = "tls-cert";
/// The key of the client certificate.
pub(crate) const KEY: &str = "tls-key";

/// Every TLS option.
pub(super) const NAMES: [&str; 6] = [SWITCH, NAME, VERIFY, CA_FILE, CERTIFICATE, KEY];

#[cfg(test)]
mod tests {
    use super::super::testing::{host, refused};
    use super::*;

    const BACKEND: &str = "\"host\" => \"app.example\"";

    #[test]
    fn a_backend_speaks_tls_by_the_name_of_its_host() {
        assert_eq!(host(BACKEND).tls, None);
        let host = host(&format!("{BACKEND}, \"tls\" => \"enable\""));
        assert_eq!(
            host.address,
            HostAddress::Tcp("app.example".to_owned(), 443)
        );
        let tls = host.tls.expect("it is on");
        assert_eq!(tls.name, TlsName::parse("app.example").expect("a name"));
        assert_eq!(tls.trust, TrustOptions::default());
    }

    #[test]
    fn every_option_is_read() {
        let host = host(
            "\"socket\" => \"/s\", \"tls\" => \"enable\", \"tls-name\" => \"10.0.0.1\", \
             \"tls-ca-file\" => \"/ca\", \"tls-cert\" => \"/c\", \"tls-key\" => \"/k\"",
        );
        let tls = host.tls.expect("it is on");
        assert_eq!(tls.name, TlsName::parse("10.0.0.1").expect("an address"));
        let expected = TrustOptions {
            is_unverified: false,
            ca_file: Some("/ca".into()),
            certificate: Some("/c".into()),
            key: Some("/k".into()),
        };
        assert_eq!(tls.trust, expected);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (options, message) in [
            (
                "\"tls-name\" => \"a\"",
                "tls-name has no effect without TLS",
            ),
            ("\"tls-verify\" => \"enable\"", "tls-verify has no effect"),
            (
                "\"tls\" => \"disable\", \"tls-ca-file\" => \"/a\"",
                "without TLS",
            ),
            (
                "\"tls\" => \"enable\", \"tls-ca-file\" => \"a\"",
                "absolute path",
            ),
            (
                "\"tls\" => \"enable\", \"tls-key\" => \"/k\"",
                "without tls-cert",
            ),
            (
                "\"tls\" => \"enable\", \"tls-name\" => \"a b\"",
                "is no name",
            ),
            (
                "\"tls\" => \"enable\", \"tls-verify\" => \"disable\", \"tls-ca-file\" => \"/a\"",
                "so tls-ca-file has no effect",
            ),
        ] {
            let found = refused(&format!("{BACKEND}, {options}"));
            assert!(found.contains(message), "{options}: {found}");
        }
        for address in ["\"socket\" => \"/s\"", "\"srv\" => \"_a._tcp.b\""] {
            let found = refused(&format!("{address}, \"tls\" => \"enable\""));
            assert!(found.contains("needs a name"), "{address}: {found}");
        }
    }
}
