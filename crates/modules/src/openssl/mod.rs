//! mod_openssl: TLS with clients, configured by `ssl.*`. The names of lighttpd's other TLS modules load this
//! module too.
//!
//! | files | what they are about |
//! |---|---|
//! | [`options`], [`offer`], [`ciphers`], [`placement`] | what the directives say, and where they may stand |
//! | [`certificate`], [`staple`], [`client`], [`contents`] | what is in the files that they name |
//! | [`mod@load`], [`watch`] | the keeper, which reads the files at the start and when they change |
//! | [`store`], [`tickets`] | the workers, which make configurations of rustls of it |
//! | [`variables`], [`subject`] | what backends, scripts and logs are told of a connection |
//!
//! The engine finds the settings of a connection. This module puts a `TlsHost` into them, from which the
//! engine gets the rustls configuration for the host that the client asks for.

mod certificate;
mod ciphers;
mod client;
mod contents;
mod limits;
mod load;
mod offer;
mod options;
mod placement;
mod staple;
mod store;
mod subject;
mod tickets;
mod variables;
mod watch;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use petrel_engine::config::{Config, Diagnostic, Effect, Entry};
use petrel_engine::module::{Configure, Loaded, ModuleSpec, Phase, Purpose};
use petrel_engine::rustls::AlertDescription;
use petrel_engine::rustls::pki_types::UnixTime;
use petrel_engine::settings::Values;
use petrel_engine::settings::nested_tls::is_nested_listener;
use petrel_engine::tls::{ChooseForHost, RefuseClient, TlsHost};

pub use load::{LoadedStore, begin_tickets, load};
use options::{HostOptions, ServerFiles};
use store::ACME_PROTOCOL;
pub use store::TlsStore;
use variables::{ClientsOfOtherRules, TlsVariables};
pub use watch::{TlsChange, TlsWatch, adopt, turn_tickets};

/// mod_openssl.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_openssl",
    doc: "Speaks TLS with clients. Stands for all of lighttpd's TLS modules.",
    loaded: Loaded::Compat,
    directives: petrel_engine::directives! {
        "ssl.engine", Bool, Socket, "disable", Effect::Works,
            "Speaks TLS on this listener.";
        "ssl.pemfile", String, Request, "unset", Effect::Works,
            "The certificate and those above it, and the key unless ssl.privkey names it. Certificates of two kinds, RSA and ECDSA, may stand in one file; each client gets the one it can verify.";
        "ssl.privkey", String, Request, "unset", Effect::Works,
            "The private key. Counts in the block that sets ssl.pemfile.";
        "ssl.ca-file", String, Request, "unset", Effect::Renamed("ssl.verifyclient.ca-file"),
            "Old name of ssl.verifyclient.ca-file. A certificate without others above it in ssl.pemfile is shown with those found here.";
        "ssl.ca-dn-file", String, Request, "unset", Effect::Renamed("ssl.verifyclient.ca-dn-file"),
            "Old name of ssl.verifyclient.ca-dn-file.";
        "ssl.ca-crl-file", String, Request, "unset", Effect::Renamed("ssl.verifyclient.ca-crl-file"),
            "Old name of ssl.verifyclient.ca-crl-file.";
        "ssl.cipher-list", String, Socket, "strong ones", Effect::Works,
            "The cipher suites of TLS 1.2 to offer, in OpenSSL's language. Older than CipherString in ssl.openssl.ssl-conf-cmd, which counts if both are set.";
        "ssl.openssl.ssl-conf-cmd", Map, Socket, "()", Effect::Works,
            "Options by OpenSSL's names: MinProtocol, MaxProtocol, Protocol, CipherString, Ciphersuites, Groups (Curves), Options. What has no meaning here is told at the start.";
        "ssl.honor-cipher-order", Bool, Socket, "enable", Effect::Works,
            "The server's order of cipher suites counts, not the client's (older lighttpd).";
        "ssl.ec-curve", String, Socket, "X25519MLKEM768, X25519, P-256, P-384", Effect::Works,
            "The groups for key exchange (older lighttpd). Groups in ssl.openssl.ssl-conf-cmd counts if both are set.";
        "ssl.dh-file", String, Socket, "unset", Effect::Accepted("there is no key exchange with finite-field groups"),
            "Parameters for a key exchange that is not offered (older lighttpd).";
        "ssl.disable-client-renegotiation", Bool, Socket, "enable", Effect::Accepted("clients can never renegotiate"),
            "Refuses renegotiation.";
        "ssl.empty-fragments", Bool, Socket, "disable", Effect::Accepted("TLS 1.2 and 1.3 need none"),
            "Sends empty records before others, against an attack on TLS 1.0 (older lighttpd).";
        "ssl.use-sslv2", Bool, Socket, "disable", Effect::Accepted("SSLv2 is never spoken"),
            "Speaks SSLv2 (lighttpd 1.5).";
        "ssl.use-sslv3", Bool, Socket, "disable", Effect::Accepted("SSLv3 is never spoken"),
            "Speaks SSLv3 (older lighttpd).";
        "ssl.stek-file", String, Server, "unset", Effect::Works,
            "The file with the secret of session tickets, for several servers that share it. Read again when it changes. Unset, the server makes secrets by itself, a new one every 8 hours.";
        "ssl.ech-opts", Map, Socket, "()", Effect::NotYet("clients cannot encrypt their ClientHello: the TLS library has no server side of it"),
            "Encrypted Client Hello: its keys and public names.";
        "ssl.ech-public-name", String, Request, "unset", Effect::NotYet("clients cannot encrypt their ClientHello: the TLS library has no server side of it"),
            "The public name of this host in an Encrypted Client Hello.";
        "ssl.read-ahead", Bool, Socket, "disable", Effect::Accepted("all that has come is always read"),
            "Reads more than one record at a time.";
        "ssl.verifyclient.activate", Bool, Request, "disable", Effect::Works,
            "Asks clients for a certificate.";
        "ssl.verifyclient.enforce", Bool, Request, "enable", Effect::Works,
            "Refuses clients without a valid one.";
        "ssl.verifyclient.depth", Short, Request, "9", Effect::Works,
            "How many certificates may be above the client's, the authority's own included.";
        "ssl.verifyclient.username", String, Request, "unset", Effect::Works,
            "The variable whose value is the user's name (REMOTE_USER), such as SSL_CLIENT_S_DN_CN.";
        "ssl.verifyclient.exportcert", Bool, Request, "disable", Effect::Works,
            "Passes the certificate to backends, as SSL_CLIENT_CERT.";
        "ssl.verifyclient.ca-file", String, Request, "unset", Effect::Works,
            "The authorities that sign client certificates.";
        "ssl.verifyclient.ca-dn-file", String, Request, "unset", Effect::Works,
            "The authorities whose names clients are told, and one of which must have signed the client's certificate.";
        "ssl.verifyclient.ca-crl-file", String, Request, "unset", Effect::Works,
            "Revocation lists, one of each authority in a chain.";
        "ssl.acme-tls-1", String, Request, "unset", Effect::Works,
            "The directory with certificates for ACME's tls-alpn-01 challenge (RFC 8737): NAME.crt.pem and NAME.key.pem.";
        "ssl.stapling-file", String, Request, "unset", Effect::Works,
            "The OCSP response to send along, in DER or PEM. Counts in the block that sets ssl.pemfile. Read again when it changes; not sent once it no longer holds.";
        "debug.log-ssl-noise", Bool, Request, "disable", Effect::Works,
            "Logs handshakes that failed.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let Some(options) = HostOptions::new(configure.values)? else {
        return Ok(());
    };
    if configure.purpose == Purpose::Check {
        return match options.certificates {
            Some(_) => Ok(()),
            None => Err(no_certificate(configure.values)),
        };
    }
    if configure.handed::<InTheClear>().is_some() {
        return Ok(());
    }
    let Some(store) = configure.handed::<TlsStore>() else {
        // A start without the files would mean a listener in the clear, so the start is refused.
        return Err(configure
            .values
            .error("ssl.engine", "the files of ssl.* were not read"));
    };
    let options = Rc::new(options);
    if let Some(variables) = TlsVariables::new(configure.values, &store, &options) {
        configure.add_first(Phase::Translate, variables);
    }
    if options.enforces() {
        let client_rule_id = options.client_rule_id();
        configure.add_first(Phase::Authorize, ClientsOfOtherRules { client_rule_id });
    }
    configure.speak_tls(Rc::new(TlsHost {
        certificate_id: store.certificate_id(&options),
        client_rule_id: options.client_rule_id(),
        refuse_client: options.enforces().then(|| refuser(&store, &options)),
        choose: chooser(store, options),
    }));
    Ok(())
}

fn no_certificate(values: &Values<'_>) -> Diagnostic {
    let message = "ssl.engine needs a certificate: ssl.pemfile is not set";
    values
        .error("ssl.engine", message)
        .with_hint("name the file with the certificate and its key, here or outside all conditions")
}

/// Handed to [`MODULE`] in place of a [`TlsStore`] by programs that send requests to themselves: their
/// listeners speak in the clear, also with `ssl.engine`.
#[derive(Debug)]
pub struct InTheClear;

/// A function that returns the rustls configuration for a ClientHello to a host with these options.
fn chooser(store: Arc<TlsStore>, options: Rc<HostOptions>) -> Box<ChooseForHost> {
    Box::new(move |hello| {
        if let Some(key) = &options.challenges
            && hello.alpn().eq([ACME_PROTOCOL])
        {
            let name = hello.server_name().unwrap_or_default();
            return store
                .challenge(key, name)
                .ok_or(AlertDescription::UnrecognisedName);
        }
        if options.certificates.is_none() {
            return Err(AlertDescription::UnrecognisedName);
        }
        Ok(store.configuration(&options)?.server)
    })
}

/// A function that verifies a client's certificates once more. The engine calls it for hosts that require a
/// good certificate, because a resumed session skips rustls's own check.
fn refuser(store: &Arc<TlsStore>, options: &Rc<HostOptions>) -> Box<RefuseClient> {
    let (store, options) = (Arc::clone(store), Rc::clone(options));
    Box::new(move |certificates| {
        if certificates.is_empty() {
            return Err("the session has no certificate of the client, which is required");
        }
        let rule = store
            .configuration(&options)
            .ok()
            .and_then(|made| made.rule);
        let rule = rule.ok_or("certificates of clients cannot be verified")?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(store.now_s()));
        rule.check(certificates, now).map_err(|fault| fault.words)
    })
}

/// Whether `entry` refuses the start when this module is not loaded.
pub(crate) fn refuses_unloaded(entry: &Entry) -> bool {
    options::switches_on(entry)
}

/// Directives that cannot do what they say, so that something the operator wanted protected would not be.
/// They refuse the start. `is_loaded`: this module is loaded.
pub(crate) fn refusals(config: &Config, is_loaded: bool) -> Vec<Diagnostic> {
    placement::errors(config, is_loaded)
}

/// The hint that says which clients are refused when `$SERVER["socket"]` is nested in other conditions.
const NESTED: &str = "clients that ask for no name, or one that they do not match, are refused unless ssl.pemfile is set \
    outside them; to serve these, put $SERVER[\"socket\"] outside and the other conditions inside";

fn effect_of(name: &str) -> Option<Effect> {
    let spec = MODULE.directives.iter().find(|spec| spec.name == name);
    spec.map(|spec| spec.effect)
}

/// Directives whose effect differs from what they say.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let mut warnings = offer::warnings(config);
    if !options::is_used(config) {
        return warnings;
    }
    let is_set = |entry: &Entry, name: &str| entry.name == name && options::text(entry).is_some();
    let mut all = config.blocks.iter().flat_map(|block| &block.entries);
    let has_authorities =
        all.any(|entry| is_set(entry, "ssl.ca-file") || is_set(entry, "ssl.verifyclient.ca-file"));
    for block in &config.blocks {
        for entry in &block.entries {
            let name = entry.name.as_str();
            let warning = |message: String| Diagnostic::warning(message, entry.name_span);
            match name {
                "ssl.engine"
                    if options::switches_on(entry) && is_nested_listener(config, block) =>
                {
                    let message = "ssl.engine: the listener speaks TLS with every client, whatever the conditions around it say";
                    warnings.push(warning(message.to_owned()).with_hint(NESTED));
                }
                "ssl.use-sslv2" | "ssl.use-sslv3" | "ssl.dh-file"
                    if entry.value.is_enabling()
                        && let Some(Effect::Accepted(why)) = effect_of(name) =>
                {
                    let message = format!("{name} is obsolete and has no effect: {why}");
                    warnings.push(warning(message).with_hint("remove it"));
                }
                "ssl.privkey" | "ssl.stapling-file"
                    if ServerFiles::of(block, "ssl.pemfile").is_none() =>
                {
                    let message =
                        format!("{name} has no effect: ssl.pemfile is not set in the same block");
                    warnings.push(
                        warning(message).with_hint("set both in one block, as lighttpd wants it"),
                    );
                }
                "ssl.verifyclient.activate"
                    if entry.value.as_bool() == Some(true) && !has_authorities =>
                {
                    let message = "clients are refused: their certificates cannot be verified without ssl.verifyclient.ca-file";
                    warnings.push(warning(message.to_owned()));
                }
                _ => {}
            }
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use petrel_engine::config::{BlockId, LoadOptions, Shell, parse_str};
    use petrel_engine::rustls::pki_types::CertificateDer;
    use petrel_engine::rustls::server::ProducesTickets;
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose,
        IsCa, KeyPair, date_time_ymd,
    };

    use super::contents::FileContent;
    use super::*;

    /// 1 January 2030.
    const END_S: u64 = 1_893_456_000;

    fn options(text: &str) -> HostOptions {
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let schema = crate::schema();
        let config = parse_str("test", text, &schema, &options).expect("valid");
        let values = Values::merge(&config, &schema, std::iter::once(BlockId::GLOBAL));
        let options = HostOptions::new(&values).expect("valid");
        options.expect("it speaks TLS")
    }

    #[test]
    fn a_new_secret_makes_tickets_every_eight_hours_and_the_last_one_opens_its_own_for_as_long() {
        let begin_s = 1_000_000;
        let turn_s = limits::TICKET_SECRET_S;
        let store = TlsStore::new(
            Vec::new(),
            UnixTime::since_unix_epoch(Duration::from_secs(begin_s)),
        );
        begin_tickets(&store, None).expect("random numbers");
        let ticket = || store.tickets(b"").encrypt(b"state").expect("a ticket");
        let opens = |ticket: &[u8]| store.tickets(b"").decrypt(ticket).is_some();
        let first = ticket();
        let pass_until = |now_s: u64| {
            // The real processes call this once a second. The test skips the seconds in between.
            store.set_time(now_s);
            load::turn_secrets(&store).expect("random numbers");
        };
        pass_until(begin_s + turn_s - 1);
        assert_eq!(store.secrets().len(), 1);
        let version = store.version();
        pass_until(begin_s + turn_s);
        assert_eq!(store.secrets().len(), 2);
        // A new version makes workers rebuild their rustls configurations.
        assert_ne!(store.version(), version);
        let second = ticket();
        assert_ne!(first[..16], second[..16]);
        assert!(opens(&first) && opens(&second));
        pass_until(begin_s + 2 * turn_s - 1);
        assert!(opens(&first));
        pass_until(begin_s + 2 * turn_s);
        assert!(!opens(&first) && opens(&second));
        assert_eq!(store.secrets().len(), 2);
        // The store of a reloaded configuration takes over the secrets of the one before.
        let after = TlsStore::new(
            Vec::new(),
            UnixTime::since_unix_epoch(Duration::from_secs(store.now_s())),
        );
        begin_tickets(&after, Some(&store)).expect("random numbers");
        assert_eq!(after.secrets(), store.secrets());
    }

    #[test]
    fn a_resumed_client_is_refused_once_its_certificate_has_expired() {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"));
        let ca = ca.expect("a certificate");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(["a".to_owned()]).expect("a name");
        params.not_after = date_time_ymd(2030, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = params.signed_by(&key, &ca).expect("signed");
        let options = options(
            "ssl.engine = \"enable\"\nssl.pemfile = \"/s\"\nssl.verifyclient.activate = \"enable\"\n\
             ssl.verifyclient.ca-file = \"/ca\"",
        );
        let authorities = options.authorities.clone().expect("there are some");
        let certificates = options.certificates.clone().expect("there are some");
        let keys = vec![certificates, authorities];
        let now = |s| UnixTime::since_unix_epoch(Duration::from_secs(s));
        let store = TlsStore::new(keys, now(END_S - 10));
        let both = [client.pem(), key.serialize_pem()].concat().into_bytes();
        for (number, file) in [both, ca.pem().into_bytes()].into_iter().enumerate() {
            let files = [file];
            let content = FileContent::parse(&store.keys()[number], &files).expect("sound");
            store.install(number, content, &files);
        }
        begin_tickets(&store, None).expect("random numbers");
        let store = Arc::new(store);
        let refuse = refuser(&store, &Rc::new(options));
        let shown: [CertificateDer<'static>; 1] = [client.der().clone()];
        assert_eq!(refuse(&shown), Ok(()));
        assert!(refuse(&[]).is_err());
        store.set_time(END_S + 10);
        assert_eq!(refuse(&shown), Err("certificate has expired"));
    }
}
