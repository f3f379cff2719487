//! The parsed TLS files, shared by all workers of a server process, and the rustls configurations that are
//! built from them.
//!
//! The keeper makes a [`TlsStore`] when it opens a configuration, and each server process inherits a copy by
//! the fork. When a file changes, the keeper sends the new contents ([`super::watch`]) and each copy takes
//! them ([`TlsStore::install`]). That raises [`TlsStore::version`], and the next handshake for a host builds
//! a new configuration.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use petrel_engine::rustls::pki_types::{CertificateDer, UnixTime};
use petrel_engine::rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use petrel_engine::rustls::sign::CertifiedKey;
use petrel_engine::rustls::time_provider::TimeProvider;
use petrel_engine::rustls::{AlertDescription, CipherSuite, ServerConfig, SignatureAlgorithm};

use super::client::ClientRule;
use super::contents::FileContent;
use super::options::{FileKey, HostOptions};
use super::tickets::{TicketSecret, TicketSecrets};

/// The files and the configurations; see the documentation of this module.
pub struct TlsStore {
    keys: Vec<FileKey>,
    /// Contents by the index of their key in `keys`, and ticket secrets.
    state: RwLock<StoreState>,
    /// The configurations built so far, each with the version of the store that it was built from.
    configurations: RwLock<HashMap<HostOptions, (u64, TlsConfiguration)>>,
    version: AtomicU64,
    now_s: Arc<Now>,
}

struct StoreState {
    files: Vec<Option<Arc<Installed>>>,
    secrets: TicketSecrets,
}

/// Parsed contents, and a digest of the files they were parsed from.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) content: FileContent,
    digest: Digest,
}

/// The configuration for one host.
#[derive(Clone)]
pub(super) struct TlsConfiguration {
    pub(super) server: Arc<ServerConfig>,
    /// Which client certificates are good; `None` if clients are not asked for one.
    pub(super) rule: Option<Arc<ClientRule>>,
}

impl fmt::Debug for TlsStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("TlsStore").field(&self.keys).finish()
    }
}

impl TlsStore {
    /// A store whose files are not read yet. `now` is the present time.
    pub(super) fn new(keys: Vec<FileKey>, now: UnixTime) -> TlsStore {
        let state = StoreState {
            files: keys.iter().map(|_| None).collect(),
            secrets: TicketSecrets::default(),
        };
        TlsStore {
            keys,
            state: RwLock::new(state),
            configurations: RwLock::default(),
            version: AtomicU64::new(1),
            now_s: Arc::new(Now(AtomicU64::new(now.as_secs()))),
        }
    }

    /// The files, in the order of their numbers.
    pub(super) fn keys(&self) -> &[FileKey] {
        &self.keys
    }

    /// The contents of the files with this number, if they were read.
    pub(super) fn installed(&self, number: usize) -> Option<Arc<Installed>> {
        self.state().files.get(number).cloned().flatten()
    }

    /// Replaces the contents of the files with this number. New handshakes use them.
    pub(super) fn install(&self, number: usize, content: FileContent, files: &[Vec<u8>]) {
        let digest = digest(&SHA256, &files.concat());
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let FileContent::TicketSecret(secret) = &content {
            state.secrets.add(secret.clone());
        }
        if let Some(place) = state.files.get_mut(number) {
            *place = Some(Arc::new(Installed { content, digest }));
        }
        drop(state);
        self.changed();
    }

    /// Adds a ticket secret.
    pub(super) fn add_secret(&self, secret: TicketSecret) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = state.secrets.add(secret);
        drop(state);
        if is_new {
            self.changed();
        }
    }

    /// The ticket secrets, oldest first.
    pub(super) fn secrets(&self) -> Vec<TicketSecret> {
        self.state().secrets.all().cloned().collect()
    }

    /// The keys that make and open tickets for `domain` now.
    #[cfg(test)]
    pub(super) fn tickets(&self, domain: &[u8]) -> super::tickets::TicketKeys {
        self.state().secrets.keys(domain, self.now_s())
    }

    /// Sets the present time in seconds since 1970. Called about once a second. When an OCSP response or a
    /// ticket secret begins or ceases to be valid, the version of the store is raised.
    pub fn set_time(&self, now_s: u64) {
        let before_s = self.now_s.0.swap(now_s, Ordering::Relaxed);
        let state = self.state();
        let passes = |time_s: u64| (before_s < time_s) && (time_s <= now_s);
        let staples = state
            .files
            .iter()
            .flatten()
            .any(|installed| match &installed.content {
                FileContent::Staple(staple) => staple.next_update_s().is_some_and(passes),
                _ => false,
            });
        let secrets = state
            .secrets
            .all()
            .any(|secret| passes(secret.active_s) || passes(secret.expires_s));
        drop(state);
        if secrets {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.secrets.drop_expired(now_s);
        }
        if staples || secrets {
            self.changed();
        }
    }

    /// The present time in seconds since 1970.
    pub(super) fn now_s(&self) -> u64 {
        self.now_s.0.load(Ordering::Relaxed)
    }

    /// A number that is raised by every change of the files, the secrets, or their validity.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// The configuration for hosts with these options, built from the present contents of the files.
    ///
    /// # Errors
    /// The alert for the client, when a file that the host needs is missing. Serving without it would protect
    /// less than the operator asked for.
    pub(super) fn configuration(
        &self,
        options: &HostOptions,
    ) -> Result<TlsConfiguration, AlertDescription> {
        let version = self.version();
        let known = self
            .configurations
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some((made, configuration)) = known.get(options)
            && *made == version
        {
            return Ok(configuration.clone());
        }
        drop(known);
        let made = self.make(options).ok_or(AlertDescription::InternalError)?;
        let mut known = self
            .configurations
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        known.insert(options.clone(), (version, made.clone()));
        Ok(made)
    }

    /// The certificate that answers the challenge for `name`.
    pub(super) fn challenge(&self, key: &FileKey, name: &str) -> Option<Arc<ServerConfig>> {
        let state = self.state();
        let installed = self.find(&state, key)?;
        let FileContent::Challenges(challenges) = &installed.content else {
            return None;
        };
        let certificate = Arc::clone(challenges.get(name)?);
        let resolver = Arc::new(CertificateChooser {
            certificates: vec![certificate],
            has_tls13: true,
        });
        let mut config = ServerConfig::builder_with_details(
            Arc::new(petrel_engine::rustls::crypto::aws_lc_rs::default_provider()),
            Arc::clone(&self.now_s) as Arc<dyn TimeProvider>,
        )
        .with_safe_default_protocol_versions()
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(resolver);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![ACME_PROTOCOL.to_vec()];
        Some(Arc::new(config))
    }

    /// A number that hosts share when their certificates come from the same files; 0 if the host has no
    /// certificates.
    pub(super) fn certificate_id(&self, options: &HostOptions) -> u64 {
        let number = self
            .keys
            .iter()
            .position(|key| Some(key) == options.certificates.as_ref());
        number.map_or(0, |number| number as u64 + 1)
    }

    fn make(&self, options: &HostOptions) -> Option<TlsConfiguration> {
        let state = self.state();
        let authorities = options
            .authorities
            .as_ref()
            .map(|key| self.find(&state, key));
        let authorities = match &authorities {
            Some(found) => match &found.as_ref()?.content {
                FileContent::Authorities(authorities) => Some(authorities),
                _ => return None,
            },
            None => None,
        };
        let certificates = self.certificates(
            &state,
            options,
            authorities.map(|known| known.certificates.as_slice()),
        )?;
        let rule = match &options.clients {
            Some(_) => Some(Arc::new(self.rule(&state, options)?)),
            None => None,
        };
        let builder = ServerConfig::builder_with_details(
            Arc::new(options.offer.provider()),
            Arc::clone(&self.now_s) as Arc<dyn TimeProvider>,
        )
        .with_protocol_versions(&options.offer.versions())
        .ok()?;
        let builder = builder.with_client_cert_verifier(match &rule {
            Some(rule) => Arc::clone(rule) as _,
            None => WebPkiClientVerifier::no_client_auth(),
        });
        let mut server = builder.with_cert_resolver(Arc::new(CertificateChooser {
            certificates,
            has_tls13: options.offer.has_tls13(),
        }));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.ignore_client_order = options.offer.by_server;
        server.alpn_protocols = options.protocols.iter().map(|name| name.to_vec()).collect();
        server.send_tls13_tickets = 0;
        if options.offer.tickets {
            server.send_tls13_tickets = TICKETS;
            let domain = self.ticket_domain(&state, options)?;
            server.ticketer = Arc::new(state.secrets.keys(&domain, self.now_s()));
        }
        Some(TlsConfiguration {
            server: Arc::new(server),
            rule,
        })
    }

    fn certificates(
        &self,
        state: &StoreState,
        options: &HostOptions,
        authorities: Option<&[CertificateDer<'static>]>,
    ) -> Option<Vec<Arc<CertifiedKey>>> {
        let installed = self.find(state, options.certificates.as_ref()?)?;
        let FileContent::Certificates(set) = &installed.content else {
            return None;
        };
        let staple = options
            .staple
            .as_ref()
            .and_then(|key| self.find(state, key));
        let staple = staple
            .as_ref()
            .and_then(|installed| match &installed.content {
                FileContent::Staple(staple) if staple.holds(self.now_s()) => Some(staple),
                _ => None,
            });
        let shown = set
            .members
            .iter()
            .map(|member| Arc::new(member.shown(authorities.unwrap_or_default(), staple)));
        Some(shown.collect())
    }

    fn rule(&self, state: &StoreState, options: &HostOptions) -> Option<ClientRule> {
        let clients = options.clients.as_ref()?;
        let installed = self.find(state, options.authorities.as_ref()?)?;
        let FileContent::Authorities(authorities) = &installed.content else {
            return None;
        };
        let mut rule = ClientRule {
            anchors: authorities.anchors.clone(),
            revoked: Arc::default(),
            depth: clients.depth,
            issuers: None,
            hints: authorities.names.clone(),
            enforce: clients.enforce,
        };
        if let Some(key) = &clients.names {
            let installed = self.find(state, key)?;
            let FileContent::AuthorityNames(names) = &installed.content else {
                return None;
            };
            rule.hints.clone_from(names);
            rule.issuers = Some(names.clone());
        }
        if let Some(key) = &clients.revoked {
            let installed = self.find(state, key)?;
            let FileContent::RevocationLists(lists) = &installed.content else {
                return None;
            };
            rule.revoked.clone_from(lists);
        }
        Some(rule)
    }

    /// What the keys of tickets are derived from, beside the secret: the listener and, where clients are
    /// asked for certificates, the authorities, the revocation lists, the depth and whether the rule is
    /// enforced. A ticket from one of these domains does not open in another.
    fn ticket_domain(&self, state: &StoreState, options: &HostOptions) -> Option<Vec<u8>> {
        let mut domain = options.listener.clone().into_bytes();
        domain.push(0);
        if let Some(clients) = &options.clients {
            domain.extend_from_slice(&clients.depth.to_be_bytes());
            domain.push(u8::from(clients.enforce));
            for key in [&options.authorities, &clients.names, &clients.revoked] {
                domain.push(u8::from(key.is_some()));
                if let Some(key) = key {
                    domain.extend_from_slice(self.find(state, key)?.digest.as_ref());
                }
            }
        }
        Some(domain)
    }

    fn find(&self, state: &StoreState, key: &FileKey) -> Option<Arc<Installed>> {
        let number = self.keys.iter().position(|known| known == key)?;
        state.files.get(number).cloned().flatten()
    }

    fn state(&self) -> RwLockReadGuard<'_, StoreState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Chooses the certificate of a host that the client can verify.
#[derive(Debug)]
struct CertificateChooser {
    certificates: Vec<Arc<CertifiedKey>>,
    /// The server speaks TLS 1.3.
    has_tls13: bool,
}

impl ResolvesServerCert for CertificateChooser {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let suites = hello.cipher_suites();
        // A TLS 1.3 cipher suite works with any kind of key. The names of TLS 1.2 suites include the kind.
        let is_tls13 = |suite: &CipherSuite| u16::from(*suite) >> 8 == 0x13;
        let any_key = self.has_tls13 && suites.iter().any(is_tls13);
        let fits = |certificate: &&Arc<CertifiedKey>| {
            let algorithm = certificate.key.algorithm();
            (any_key || suites.iter().any(|suite| is_for(*suite, algorithm)))
                && certificate
                    .key
                    .choose_scheme(hello.signature_schemes())
                    .is_some()
        };
        let fitting = self.certificates.iter().filter(fits);
        // ECDSA first: an RSA signature costs the server many times as much CPU.
        let found = fitting
            .min_by_key(|certificate| certificate.key.algorithm() == SignatureAlgorithm::RSA);
        found.or(self.certificates.first()).cloned()
    }
}

/// Whether a TLS 1.2 cipher suite is for keys of this kind.
fn is_for(suite: CipherSuite, algorithm: SignatureAlgorithm) -> bool {
    let name = suite.as_str().unwrap_or_default();
    match algorithm {
        SignatureAlgorithm::RSA => name.starts_with("TLS_ECDHE_RSA"),
        _ => name.starts_with("TLS_ECDHE_ECDSA"),
    }
}

/// The time last set by [`TlsStore::set_time`].
#[derive(Debug)]
struct Now(AtomicU64);

impl TimeProvider for Now {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(
            self.0.load(Ordering::Relaxed),
        )))
    }
}

/// The ALPN protocol with which a certificate authority asks for the certificate that answers its challenge
/// (RFC 8737).
pub(super) const ACME_PROTOCOL: &[u8] = b"acme-tls/1";
/// Tickets that a client gets after a full TLS 1.3 handshake.
const TICKETS: usize = 2;
