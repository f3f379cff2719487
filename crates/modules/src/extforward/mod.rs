//! mod_extforward: takes the client's address from trusted proxies in front of this server.
//!
//! A request from an address that `extforward.forwarder` trusts counts as a request of the client that the
//! proxy names: in a field, or, for a whole connection, in a header of the PROXY protocol. From then on
//! conditions, access rules, logs and backends see that client. This happens before any other module looks at
//! the request, but for mod_rewrite where that is listed before. If other settings apply to the client, the
//! request begins again with those. Fields from
//! senders that are not trusted are ignored.

mod client;
mod trust;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Config, Diagnostic, Effect};
use petrel_engine::exchange::{Peer, Scheme};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::proxy_protocol::Tls;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::settings::Values;

use crate::rewrite;
use client::Client;
pub(crate) use trust::Trust;

/// An environment variable: the address of the proxy that was believed.
pub(crate) const ACTUAL_FOR: &str = "_L_EXTFORWARD_ACTUAL_FOR";

/// An environment variable: the scheme that the proxy used, if the client used another one.
pub(crate) const ACTUAL_PROTO: &str = "_L_EXTFORWARD_ACTUAL_PROTO";

/// An environment variable: the host that the proxy asked for, if the client asked for another one.
pub(crate) const ACTUAL_HOST: &str = "_L_EXTFORWARD_ACTUAL_HOST";

/// mod_extforward.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_extforward",
    doc: "Takes the client's address from a trusted proxy.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "extforward.forwarder", StringMap, Request, "()", Effect::Works,
            "The trusted proxies: addresses and ranges (10.0.0.0/8) with the value \"trust\". \"all\" trusts every address, \"\" trusts clients on unix sockets.";
        "extforward.headers", List, Request, "( \"X-Forwarded-For\", \"Forwarded-For\" )", Effect::Works,
            "The fields that name the client, in this order; the first one that a request has counts. Forwarded (RFC 7239) has to be listed explicitly, because a proxy that does not know it passes the client's own Forwarded on.";
        "extforward.params", Map, Request, "()", Effect::Works,
            "Which parameters of Forwarded are used, besides for and proto: host and remote_user.";
        "extforward.drop-untrusted", Bool, Request, "disable", Effect::Works,
            "Removes the fields that name a client (X-Forwarded-For, Forwarded, X-Real-IP and the like, and those of extforward.headers) from requests of clients that are no trusted proxy, so that no application believes what such a client says of itself.";
        "extforward.hap-PROXY", Bool, Socket, "disable", Effect::Works,
            "Connections from the proxies in extforward.forwarder must begin with a header of HAProxy's PROXY protocol, version 1 or 2. Those without it are closed.";
        "extforward.hap-PROXY-ssl-client-verify", Bool, Socket, "disable", Effect::Works,
            "Sets variables from what that header says about the client's certificate: SSL_CLIENT_VERIFY, SSL_CLIENT_S_DN_CN and the like, and REMOTE_USER if the certificate was verified.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let params = ForwardedParams::parse(values)?;
    let trust = Rc::new(Trust::parse(values));
    let drops_untrusted = values.bool("extforward.drop-untrusted").unwrap_or(false);
    if trust.is_empty() && !drops_untrusted {
        return Ok(());
    }
    if values.bool("extforward.hap-PROXY").unwrap_or(false) {
        let trust = Rc::clone(&trust);
        configure.expect_proxy_headers(Rc::new(move |peer| trust.includes(peer)));
    }
    let mut headers: Vec<String> = values
        .strings("extforward.headers")
        .into_iter()
        .map(str::to_owned)
        .collect();
    if headers.is_empty() {
        headers = HEADERS.map(str::to_owned).into();
    }
    let takes_certificate = values
        .bool("extforward.hap-PROXY-ssl-client-verify")
        .unwrap_or(false);
    configure.add_first(
        Phase::Translate,
        ExtForward {
            trust,
            headers,
            params,
            takes_certificate,
            is_behind_rewrite: is_behind_rewrite(values),
            drops_untrusted,
        },
    );
    Ok(())
}

fn is_behind_rewrite(values: &Values<'_>) -> bool {
    let list = values.config().global().entry("server.modules");
    let list = list.and_then(|entry| entry.value.as_strings());
    let mut names = list.into_iter().flatten();
    names.find(|name| [MODULE.name, rewrite::MODULE.name].contains(name))
        == Some(rewrite::MODULE.name)
}
/// The fields by which proxies name the client, its host and its scheme.
const OF_PROXIES: [&str; 8] = [
    "X-Forwarded-For",
    "X-Forwarded-Proto",
    "X-Forwarded-Host",
    "X-Forwarded-Port",
    "X-Forwarded-Server",
    "Forwarded-For",
    "Forwarded",
    "X-Real-IP",
];

/// The default of `extforward.headers`.
const HEADERS: [&str; 2] = ["X-Forwarded-For", "Forwarded-For"];

/// Warns about forwarders that match no address.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    trust::warnings(config)
}

struct ExtForward {
    trust: Rc<Trust>,
    headers: Vec<String>,
    params: ForwardedParams,
    takes_certificate: bool,
    /// Whether mod_rewrite is listed before, so that its rules are asked for the proxy's address, as in lighttpd.
    is_behind_rewrite: bool,
    drops_untrusted: bool,
}

/// Which parameters of Forwarded are used, besides `for` and `proto`, which always are.
#[derive(Clone, Copy, Debug, Default)]
struct ForwardedParams {
    host: bool,
    remote_user: bool,
}

impl ForwardedParams {
    fn parse(values: &Values<'_>) -> Result<ForwardedParams, Diagnostic> {
        let mut params = ForwardedParams::default();
        for element in values.array("extforward.params").into_iter().flatten() {
            let mut unused = false;
            let place = match element.key().unwrap_or_default() {
                "host" => &mut params.host,
                "remote_user" => &mut params.remote_user,
                "by" | "for" | "proto" => &mut unused,
                key => {
                    let message = format!("extforward.params has no key {key:?}");
                    let span = element.key.as_ref().map_or(element.span, |key| key.span);
                    return Err(Diagnostic::error(message, span)
                        .with_hint("there are by, for, host, proto and remote_user"));
                }
            };
            *place = element.value.as_bool().ok_or_else(|| {
                let message = "it takes \"enable\" or \"disable\"";
                Diagnostic::error(message, element.span)
            })?;
        }
        Ok(params)
    }
}

impl Hook for ExtForward {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // The request began again because other settings apply to its client, which is known by now.
        if exchange.environment.get(ACTUAL_FOR).is_some() {
            return Outcome::Next;
        }
        if self.takes_certificate {
            tell_certificate(exchange);
        }
        // A subrequest has the client of its parent.
        if exchange.is_subrequest() {
            return Outcome::Next;
        }
        if !self.trust.includes(exchange.connection.peer.ip()) {
            if self.drops_untrusted {
                let own = self.headers.iter().map(String::as_str);
                for name in OF_PROXIES.into_iter().chain(own) {
                    exchange.set_request_field(name, b"");
                }
            }
            return Outcome::Next;
        }
        match self.client(exchange) {
            Ok(None) => Outcome::Next,
            Ok(Some(client)) => self.take(client, exchange),
            Err(Malformed) => {
                let outcome = exchange.fail(CauseCode::ProxyFieldMalformed);
                exchange.log_error(
                    "translate",
                    format_args!("the Forwarded field of a trusted proxy is malformed"),
                );
                outcome
            }
        }
    }
}

/// A trusted proxy has sent a Forwarded field with invalid syntax.
#[derive(Debug)]
struct Malformed;

impl ExtForward {
    /// The client according to the first of the configured fields that the request has.
    fn client(&self, exchange: &Exchange) -> Result<Option<Client>, Malformed> {
        let head = &exchange.request.head;
        let mut present = self
            .headers
            .iter()
            .filter_map(|name| Some((name, head.value_of(name)?)))
            .filter(|(_, value)| !value.is_empty());
        let Some((name, value)) = present.next() else {
            return Ok(None);
        };
        if name.eq_ignore_ascii_case(KnownField::Forwarded.name()) {
            return client::of_forwarded(value, &self.trust, self.params).map_err(|_| Malformed);
        }
        // Fields that the parser does not know are not joined by it.
        let values = head.fields_named(name);
        let joined = values.collect::<Vec<_>>().join(&b","[..]);
        let proto = head.field(KnownField::XForwardedProto);
        Ok(client::of_addresses(&joined, proto, &self.trust))
    }

    /// Makes `client` the client of this request.
    fn take(&self, client: Client, exchange: &mut Exchange) -> Outcome {
        let proxy = exchange.connection.peer.address_text();
        let settings = Rc::clone(&exchange.settings);
        if let Some(host) = &client.host
            && host != exchange.request.head.host()
        {
            let actual = exchange.request.head.host().to_vec();
            let options = exchange.head_options();
            if !exchange.request.head.replace_host(host, &options) {
                let outcome = exchange.fail(CauseCode::ProxyFieldMalformed);
                exchange.log_error(
                    "translate",
                    format_args!("the host that a trusted proxy names is malformed"),
                );
                return outcome;
            }
            exchange.environment.set(ACTUAL_HOST, &actual);
        }
        let environment = &mut exchange.environment;
        environment.set(ACTUAL_FOR, proxy.as_bytes());
        if let Some(user) = &client.remote_user {
            environment.set("REMOTE_USER", user);
        }
        let scheme = exchange.scheme();
        if client.scheme.is_some_and(|named| named != scheme) {
            let actual = scheme.as_str().as_bytes();
            exchange.environment.set(ACTUAL_PROTO, actual);
        }
        exchange.set_client(Peer::Ip(client.address), client.scheme.unwrap_or(scheme));
        match Rc::ptr_eq(&settings, &exchange.settings) {
            true => Outcome::Next,
            false => {
                if self.is_behind_rewrite {
                    rewrite::pass_once(exchange);
                }
                Outcome::Again(Phase::Translate)
            }
        }
    }
}

/// Sets variables from what the PROXY protocol says about the client's TLS.
fn tell_certificate(exchange: &mut Exchange) {
    let Some(tls) = exchange
        .proxied()
        .and_then(|proxied| proxied.extras.tls.as_ref())
    else {
        return;
    };
    let Tls {
        version,
        common_name,
        cipher,
        signature_algorithm,
        key_algorithm,
        ..
    } = tls.clone();
    let verified = tls.has_certificate && tls.is_verified;
    let verify = match (tls.has_certificate, tls.is_verified) {
        (true, true) => "SUCCESS",
        (true, false) => "FAILED",
        (false, _) => "NONE",
    };
    let user = common_name.clone().filter(|_| verified);
    let texts = [
        ("SSL_PROTOCOL", version),
        ("SSL_CIPHER", cipher),
        ("SSL_SERVER_A_SIG", signature_algorithm),
        ("SSL_SERVER_A_KEY", key_algorithm),
        ("SSL_CLIENT_S_DN_CN", common_name),
        ("REMOTE_USER", user),
    ];
    let environment = &mut exchange.environment;
    environment.set("SSL_CLIENT_VERIFY", verify.as_bytes());
    for (name, text) in texts {
        let Some(text) = text else { continue };
        // Names in certificates may contain anything. Control characters could end a line or a variable, so
        // such a name is dropped.
        if !text.iter().any(u8::is_ascii_control) {
            environment.set(name, &text);
            if name == "REMOTE_USER" {
                environment.set("AUTH_TYPE", b"SSL_CLIENT_VERIFY");
            }
        }
    }
}

/// The scheme that a field or parameter names.
fn scheme(text: &[u8]) -> Option<Scheme> {
    let is = |scheme: Scheme| text.eq_ignore_ascii_case(scheme.as_str().as_bytes());
    [Scheme::Http, Scheme::Https]
        .into_iter()
        .find(|known| is(*known))
}

#[cfg(test)]
mod tests;
