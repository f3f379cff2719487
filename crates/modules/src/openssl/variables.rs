//! The hooks that set the TLS variables for backends, scripts and logs: SSL_PROTOCOL, SSL_CIPHER,
//! SSL_CLIENT_*, and REMOTE_USER.

use std::rc::Rc;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::Environment;
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::rustls::pki_types::{CertificateDer, UnixTime};
use petrel_engine::settings::Values;
use petrel_engine::tls::TlsConnectionFacts;

use super::options::HostOptions;
use super::store::TlsStore;
use super::subject;

/// The hook that sets them.
pub(super) struct TlsVariables {
    store: Arc<TlsStore>,
    options: Rc<HostOptions>,
    /// The variable whose value is the user's name.
    user_from: Option<String>,
    exports_certificate: bool,
}

impl TlsVariables {
    /// The hook for these settings; `None` if nothing in them reads variables.
    pub(super) fn new(
        values: &Values<'_>,
        store: &Arc<TlsStore>,
        options: &Rc<HostOptions>,
    ) -> Option<TlsVariables> {
        (options.clients.is_some() || are_read(values)).then(|| TlsVariables {
            store: Arc::clone(store),
            options: Rc::clone(options),
            user_from: values
                .string("ssl.verifyclient.username")
                .map(str::to_owned),
            exports_certificate: values.bool("ssl.verifyclient.exportcert") == Some(true),
        })
    }

    fn set_client(&self, exchange: &mut Exchange, tls: &TlsConnectionFacts) {
        let kept = match tls.client_rule_id == self.options.client_rule_id() {
            true => Rc::clone(tls.kept.get_or_init(|| Rc::new(self.client(tls)))),
            false => Rc::new(self.client(tls)),
        };
        let Some(client) = kept.downcast_ref::<ClientVariables>() else {
            return;
        };
        let environment = &mut exchange.environment;
        environment.set("SSL_CLIENT_VERIFY", client.verify.as_bytes());
        let Some(certificate) = &client.certificate else {
            return;
        };
        for (name, value) in &client.subject {
            environment.set(name, value);
        }
        if let Some(from) = &self.user_from
            && let Some((_, user)) = client.subject.iter().rfind(|(name, _)| name == from)
        {
            environment.set("REMOTE_USER", user);
            environment.set("AUTH_TYPE", b"SSL_CLIENT_VERIFY");
        }
        if self.exports_certificate {
            environment.set("SSL_CLIENT_CERT", pem(certificate).as_bytes());
        }
    }

    /// The variables about the client. They are computed once a connection, and again for a request that a
    /// proxy or a script has moved to a host with another rule.
    fn client(&self, tls: &TlsConnectionFacts) -> ClientVariables {
        let Some(certificate) = tls.client_certificates.first() else {
            return ClientVariables::without("NONE".to_owned());
        };
        // If this host's rule was enforced in the handshake, the certificate is good. If a proxy or a script
        // has changed the host, the handshake was made for another host.
        let is_verified =
            self.options.enforces() && tls.client_rule_id == self.options.client_rule_id();
        if !is_verified {
            let rule = self
                .store
                .configuration(&self.options)
                .ok()
                .and_then(|made| made.rule);
            let now =
                UnixTime::since_unix_epoch(std::time::Duration::from_secs(self.store.now_s()));
            let checked = rule.map(|rule| rule.check(&tls.client_certificates, now));
            match checked {
                Some(Ok(())) => {}
                Some(Err(fault)) => {
                    return ClientVariables::without(format!("FAILED:{}", fault.words));
                }
                None => return ClientVariables::without("NONE".to_owned()),
            }
        }
        ClientVariables {
            verify: "SUCCESS".to_owned(),
            subject: subject::variables(certificate),
            certificate: Some(certificate.clone()),
        }
    }
}

impl Hook for TlsVariables {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(tls) = exchange.tls().map(Rc::clone) else {
            return Outcome::Next;
        };
        let mut bits = itoa::Buffer::new();
        let bits = bits.format(tls.cipher_bits).as_bytes();
        let environment = &mut exchange.environment;
        if environment.get("SSL_CLIENT_VERIFY").is_some() {
            forget_client(environment);
        }
        environment.set("SSL_PROTOCOL", tls.version.as_str().as_bytes());
        environment.set("SSL_CIPHER", tls.cipher.as_bytes());
        environment.set("SSL_CIPHER_USEKEYSIZE", bits);
        environment.set("SSL_CIPHER_ALGKEYSIZE", bits);
        if self.options.clients.is_some() {
            self.set_client(exchange, &tls);
        }
        Outcome::Next
    }
}

/// Removes the variables that the host of the original request has set, before a proxy or a script has
/// changed the host.
fn forget_client(environment: &mut Environment) {
    let has_user = environment.get("AUTH_TYPE") == Some(b"SSL_CLIENT_VERIFY");
    environment.retain(|name| match name {
        "REMOTE_USER" | "AUTH_TYPE" => !has_user,
        _ => !name.starts_with("SSL_CLIENT_"),
    });
}

/// The hook of hosts that require a good client certificate. It refuses a request that a proxy or a script
/// has moved to this host when the handshake was made under another rule.
pub(super) struct ClientsOfOtherRules {
    pub(super) client_rule_id: u64,
}

impl Hook for ClientsOfOtherRules {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match exchange.tls() {
            Some(tls) if tls.client_rule_id != self.client_rule_id => {
                let outcome = exchange.fail(CauseCode::ClientRule);
                exchange.log_error(
                    "authorize",
                    format_args!(
                        "the request has become one for a host whose rules for clients are others than those its TLS \
                         was begun with"
                    ),
                );
                outcome
            }
            _ => Outcome::Next,
        }
    }
}

/// The variables about the client of a connection.
struct ClientVariables {
    verify: String,
    subject: Vec<(String, Vec<u8>)>,
    /// The client's certificate, if it is good.
    certificate: Option<CertificateDer<'static>>,
}

impl ClientVariables {
    fn without(verify: String) -> ClientVariables {
        ClientVariables {
            verify,
            subject: Vec::new(),
            certificate: None,
        }
    }
}

/// Whether these settings have a backend, a script or a log that may read the variables.
fn are_read(values: &Values<'_>) -> bool {
    let is_set = |name: &&str| {
        values
            .value(name)
            .is_some_and(petrel_engine::config::Value::is_enabling)
    };
    let format = values.string("accesslog.format").unwrap_or_default();
    READERS.iter().any(is_set) || format.contains("}e") || format == "json"
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let base64 = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in base64.as_bytes().chunks(64) {
        text.extend(line.iter().copied().map(char::from));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

/// Directives whose backends, scripts or logs read variables.
const READERS: [&str; 17] = [
    "fastcgi.server",
    "fastcgi.map-extensions",
    "scgi.server",
    "cgi.assign",
    "cgi.execute-x-only",
    "proxy.server",
    "ajp13.server",
    "proxy-core.backends",
    "proxy-core.protocol",
    "ssi.extension",
    "cml.extension",
    "cml.power-magnet",
    "magnet.attract-raw-url-to",
    "magnet.attract-physical-path-to",
    "magnet.attract-response-start-to",
    "auth.require",
    "webdav.activate",
];
