//! The TLS options of one host: files, rule for client certificates, and offer.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use petrel_engine::config::{Block, BlockId, Config, Diagnostic, Entry};
use petrel_engine::settings::{Values, offers_http2};

use super::offer::Offer;

/// A file, a certificate file with its key file, or a directory of challenges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileKey {
    pub(super) kind: FileKind,
    pub(super) path: String,
    /// For certificates: the file with the key, unless it is the same file.
    pub(super) key_path: Option<String>,
}

/// What the file has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKind {
    Certificates,
    Staple,
    Authorities,
    AuthorityNames,
    RevocationLists,
    TicketSecret,
    /// Certificates for ACME challenges, all in one directory.
    Challenges,
}

impl FileKey {
    /// The file that the directive `name` means by `path`; `None` if it is not a directive that names a file.
    pub(super) fn new(name: &str, path: &str) -> Option<FileKey> {
        let kind = match name {
            "ssl.stapling-file" => FileKind::Staple,
            "ssl.ca-file" | "ssl.verifyclient.ca-file" => FileKind::Authorities,
            "ssl.ca-dn-file" | "ssl.verifyclient.ca-dn-file" => FileKind::AuthorityNames,
            "ssl.ca-crl-file" | "ssl.verifyclient.ca-crl-file" => FileKind::RevocationLists,
            "ssl.stek-file" => FileKind::TicketSecret,
            "ssl.acme-tls-1" => FileKind::Challenges,
            _ => return None,
        };
        let path = path.to_owned();
        Some(FileKey {
            kind,
            path,
            key_path: None,
        })
    }
}

impl fmt::Display for FileKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key_path {
            Some(key) => write!(formatter, "{} with {key}", self.path),
            None => formatter.write_str(&self.path),
        }
    }
}

/// Hosts with equal options share one rustls configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct HostOptions {
    /// `None`: clients that ask for this host are refused. Possible on a listener whose `$SERVER["socket"]`
    /// is nested in other conditions.
    pub(super) certificates: Option<FileKey>,
    pub(super) staple: Option<FileKey>,
    pub(super) authorities: Option<FileKey>,
    pub(super) clients: Option<ClientOptions>,
    pub(super) challenges: Option<FileKey>,
    pub(super) offer: Offer,
    /// The ALPN protocols, the preferred one first.
    pub(super) protocols: Vec<&'static [u8]>,
    /// The conditions around `ssl.engine`. Tickets are accepted only by listeners with the same conditions.
    pub(super) listener: String,
}

/// `ssl.verifyclient.*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClientOptions {
    pub(super) enforce: bool,
    pub(super) depth: u32,
    pub(super) names: Option<FileKey>,
    pub(super) revoked: Option<FileKey>,
}

impl HostOptions {
    /// Reads the options from `values`; `None` if TLS is off.
    ///
    /// # Errors
    /// A value is wrong.
    pub(super) fn new(values: &Values<'_>) -> Result<Option<HostOptions>, Diagnostic> {
        let offer = Offer::new(values)?;
        if values.bool("ssl.engine") != Some(true) {
            return Ok(None);
        }
        let block = values
            .block_of("ssl.pemfile")
            .and_then(|id| values.config().block(id));
        let files = block.and_then(|block| ServerFiles::of(block, "ssl.pemfile"));
        let file = |name: &str| FileKey::new(name, values.string(name)?);
        let clients =
            (values.bool("ssl.verifyclient.activate") == Some(true)).then(|| ClientOptions {
                enforce: values.bool("ssl.verifyclient.enforce").unwrap_or(true),
                depth: values.unsigned("ssl.verifyclient.depth", DEPTH),
                names: file("ssl.verifyclient.ca-dn-file"),
                revoked: file("ssl.verifyclient.ca-crl-file"),
            });
        Ok(Some(HostOptions {
            certificates: files.as_ref().map(ServerFiles::key),
            staple: files.as_ref().and_then(ServerFiles::staple),
            authorities: file("ssl.verifyclient.ca-file"),
            clients,
            challenges: file("ssl.acme-tls-1"),
            offer,
            protocols: protocols(values),
            listener: listener(values),
        }))
    }

    /// Whether clients without a good certificate are refused.
    pub(super) fn enforces(&self) -> bool {
        self.clients.as_ref().is_some_and(|clients| clients.enforce)
    }

    /// A number that is equal for hosts with the same rule for client certificates; 0 for hosts that ask for
    /// none.
    pub(super) fn client_rule_id(&self) -> u64 {
        let Some(clients) = &self.clients else {
            return 0;
        };
        // DefaultHasher::new has no random seed, so every worker gets the same number.
        let mut hasher = DefaultHasher::new();
        (clients, &self.authorities).hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// The files of a server certificate. As in lighttpd they count only in the block that sets ssl.pemfile.
pub(super) struct ServerFiles<'c> {
    pub(super) certificates: &'c Entry,
    pub(super) key: Option<&'c Entry>,
    pub(super) staple: Option<&'c Entry>,
}

impl<'c> ServerFiles<'c> {
    /// The files of `block`, if it sets `name`, which is ssl.pemfile.
    pub(super) fn of(block: &'c Block, name: &str) -> Option<ServerFiles<'c>> {
        let find = |name: &str| {
            let mut entries = block.entries.iter();
            entries.find(|entry| entry.name == name && text(entry).is_some())
        };
        Some(ServerFiles {
            certificates: find(name)?,
            key: find("ssl.privkey"),
            staple: find("ssl.stapling-file"),
        })
    }

    /// The files with certificates and key.
    pub(super) fn key(&self) -> FileKey {
        let path = text(self.certificates).unwrap_or_default();
        let key = self.key.and_then(text).filter(|key| *key != path);
        FileKey {
            kind: FileKind::Certificates,
            path: path.to_owned(),
            key_path: key.map(str::to_owned),
        }
    }

    /// The file with the OCSP response.
    pub(super) fn staple(&self) -> Option<FileKey> {
        FileKey::new("ssl.stapling-file", text(self.staple?)?)
    }
}

/// Whether `config` switches TLS on anywhere.
pub(super) fn is_used(config: &Config) -> bool {
    let mut entries = config.blocks.iter().flat_map(|block| &block.entries);
    entries.any(switches_on)
}

/// Whether `entry` switches TLS on.
pub(super) fn switches_on(entry: &Entry) -> bool {
    entry.name == "ssl.engine" && entry.value.as_bool() == Some(true)
}

/// The text of an entry, unless it is empty.
pub(super) fn text(entry: &Entry) -> Option<&str> {
    entry.value.as_str().filter(|text| !text.is_empty())
}

/// The ALPN protocols that the server accepts, the preferred one first.
fn protocols(values: &Values<'_>) -> Vec<&'static [u8]> {
    match offers_http2(values) {
        true => vec![b"h2", b"http/1.1"],
        false => vec![b"http/1.1"],
    }
}

/// The conditions around the `ssl.engine` that counts, as text.
fn listener(values: &Values<'_>) -> String {
    let mut block = values.block_of("ssl.engine").unwrap_or(BlockId::GLOBAL);
    let mut conditions = String::new();
    while let Some(inner) = values.config().block(block) {
        if let Some(condition) = &inner.condition {
            conditions = format!(
                "{:?} {:?} {}\n{conditions}",
                condition.subject, condition.op, condition.pattern
            );
        }
        let Some(outer) = inner.parent else { break };
        block = outer;
    }
    conditions
}

/// The default of ssl.verifyclient.depth.
const DEPTH: u32 = 9;
