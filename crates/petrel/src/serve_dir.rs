//! `petrel serve DIR`: the configuration for serving one directory.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::check::DENY_DOT_FILES;
use crate::load::Origin;

/// What to serve.
pub(crate) struct Site {
    /// The directory.
    pub(crate) directory: PathBuf,
    /// The address to listen on.
    pub(crate) bind: IpAddr,
    /// The TCP port.
    pub(crate) port: u16,
    /// Whether directories without an index file are listed.
    pub(crate) listing: bool,
    /// The file with certificate and key, if the server speaks TLS.
    pub(crate) certificate: Option<PathBuf>,
}

impl Site {
    /// The configuration for the site.
    ///
    /// # Errors
    /// The directory does not exist, or its path cannot be written in a configuration.
    pub(crate) fn configuration(&self) -> io::Result<Origin> {
        let directory = self
            .directory
            .canonicalize()
            .map_err(|error| about(&self.directory, error))?;
        if !directory.is_dir() {
            return Err(about(&self.directory, io::ErrorKind::NotADirectory.into()));
        }
        let mut text = String::from("server.modules = ( \"mod_access\" )\n");
        let _ = writeln!(text, "server.document-root = {}", quoted(&directory)?);
        if let Some(certificate) = &self.certificate {
            let file = as_string(certificate)?;
            text += "server.modules += ( \"mod_openssl\" )\nssl.engine = \"enable\"\n";
            let _ = writeln!(text, "ssl.pemfile = \"{file}\"");
        }
        let _ = writeln!(text, "server.bind = \"{}\"", self.bind);
        let _ = writeln!(text, "server.port = {}", self.port);
        text += "index-file.names = ( \"index.html\", \"index.htm\" )\n";
        text += "dir-listing.encoding = \"utf-8\"\n";
        text += "dir-listing.hide-dotfiles = \"enable\"\n";
        let _ = writeln!(text, "dir-listing.activate = \"{}\"", switch(self.listing));
        text += DENY_DOT_FILES;
        text.push('\n');
        Ok(Origin::Text {
            name: "petrel serve",
            text,
        })
    }

    /// The URL of the site, for a browser.
    pub(crate) fn url(&self) -> String {
        let scheme = match self.certificate {
            Some(_) => "https",
            None => "http",
        };
        let address = std::net::SocketAddr::new(self.bind, self.port);
        format!("{scheme}://{address}/")
    }
}

fn about(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn switch(on: bool) -> &'static str {
    if on { "enable" } else { "disable" }
}

/// A directory as a string of the configuration language. A slash is appended, so that a backslash at the end
/// of the name does not escape the closing quote.
fn quoted(directory: &Path) -> io::Result<String> {
    let text = as_string(directory)?;
    Ok(format!("\"{}/\"", text.trim_end_matches('/')))
}

/// A path for use between quotes of the configuration language, in which a backslash escapes only a quote.
fn as_string(path: &Path) -> io::Result<String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(|c: char| c.is_control()));
    let text = text.ok_or_else(|| {
        let message = "a path with bytes that a configuration cannot hold";
        about(path, io::Error::new(io::ErrorKind::InvalidInput, message))
    })?;
    Ok(text.replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load;

    #[test]
    fn any_directory_name_comes_through() {
        let base = tempfile::tempdir().expect("a directory");
        for name in [
            "plain",
            "with \"quotes\"",
            "back\\",
            "\\\"",
            "a + 'b' # c",
            "\u{e9}%0$1",
        ] {
            let directory = base.path().join(name);
            std::fs::create_dir(&directory).expect("a directory");
            let bind = "::1".parse().expect("an address");
            let site = Site {
                directory: directory.clone(),
                bind,
                port: 8080,
                listing: true,
                certificate: None,
            };
            let origin = site.configuration().expect("a configuration");
            let loaded = load::load(&origin).unwrap_or_else(|errors| panic!("{errors}"));
            let root = loaded
                .config
                .global()
                .entry("server.document-root")
                .expect("set");
            let expected = directory
                .canonicalize()
                .expect("there")
                .display()
                .to_string()
                + "/";
            assert_eq!(root.value.as_str(), Some(expected.as_str()));
            assert_eq!(
                loaded.warnings().count(),
                0,
                "sound defaults need no warning"
            );
        }
        assert!(
            Site {
                directory: base.path().join("none"),
                bind: "::1".parse().expect("an address"),
                port: 1,
                listing: false,
                certificate: None,
            }
            .configuration()
            .is_err()
        );
    }
}
