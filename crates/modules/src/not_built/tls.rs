//! TLS: one set of directives for all of lighttpd's TLS modules.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Accepted, NotYet, Refuses};

use super::not_built;

/// Without ssl.engine nothing of it is used, and with it start-up refuses.
const NO_TLS: &str = "it has no meaning without ssl.engine, which is not built";

pub(super) static OPENSSL: ModuleSpec = not_built(
    "mod_openssl",
    "Encrypts connections. Stands for all of lighttpd's TLS modules.",
    directives! {
        "ssl.engine", Bool, Socket, "disable", Refuses("take the encrypted listener out, or put a TLS proxy in front"),
            "Speaks TLS on this listener.";
        "ssl.pemfile", String, Request, "unset", NotYet(NO_TLS),
            "The certificate chain, and the key unless ssl.privkey names it.";
        "ssl.privkey", String, Request, "unset", NotYet(NO_TLS),
            "The private key.";
        "ssl.ca-file", String, Request, "unset", NotYet(NO_TLS),
            "Further certificates of the chain.";
        "ssl.ca-dn-file", String, Request, "unset", NotYet(NO_TLS),
            "Old name of ssl.verifyclient.ca-dn-file.";
        "ssl.ca-crl-file", String, Request, "unset", NotYet(NO_TLS),
            "Old name of ssl.verifyclient.ca-crl-file.";
        "ssl.cipher-list", String, Socket, "strong ones", NotYet(NO_TLS),
            "The cipher suites to offer.";
        "ssl.openssl.ssl-conf-cmd", Map, Socket, "()", NotYet(NO_TLS),
            "Options by OpenSSL's names: MinProtocol, MaxProtocol, CipherString, Curves and others.";
        "ssl.disable-client-renegotiation", Bool, Socket, "enable", Accepted("clients can never renegotiate"),
            "Refuses renegotiation.";
        "ssl.use-sslv2", Bool, Socket, "disable", Accepted("SSLv2 is never spoken"),
            "Speaks SSLv2 (lighttpd 1.5).";
        "ssl.stek-file", String, Server, "unset", NotYet(NO_TLS),
            "The file with the keys of session tickets.";
        "ssl.ech-opts", Map, Socket, "()", NotYet(NO_TLS),
            "Encrypted Client Hello: its keys and public names.";
        "ssl.ech-public-name", String, Request, "unset", NotYet(NO_TLS),
            "The public name of this host in an Encrypted Client Hello.";
        "ssl.read-ahead", Bool, Socket, "disable", NotYet(NO_TLS),
            "Reads more than one record at a time.";
        "ssl.verifyclient.activate", Bool, Request, "disable", NotYet(NO_TLS),
            "Asks clients for a certificate.";
        "ssl.verifyclient.enforce", Bool, Request, "enable", NotYet(NO_TLS),
            "Refuses clients without a valid one.";
        "ssl.verifyclient.depth", Short, Request, "9", NotYet(NO_TLS),
            "The longest chain of a client's certificate.";
        "ssl.verifyclient.username", String, Request, "unset", NotYet(NO_TLS),
            "The part of its subject that is the user's name.";
        "ssl.verifyclient.exportcert", Bool, Request, "disable", NotYet(NO_TLS),
            "Passes the certificate to backends.";
        "ssl.verifyclient.ca-file", String, Request, "unset", NotYet(NO_TLS),
            "The authorities that sign client certificates.";
        "ssl.verifyclient.ca-dn-file", String, Request, "unset", NotYet(NO_TLS),
            "The names of authorities that clients are told.";
        "ssl.verifyclient.ca-crl-file", String, Request, "unset", NotYet(NO_TLS),
            "Client certificates that have been revoked.";
        "ssl.acme-tls-1", String, Request, "unset", NotYet(NO_TLS),
            "The directory with certificates for ACME's tls-alpn-01 challenge (RFC 8737).";
        "ssl.stapling-file", String, Request, "unset", NotYet(NO_TLS),
            "The OCSP response to send along.";
        "debug.log-ssl-noise", Bool, Request, "disable", NotYet(NO_TLS),
            "Logs handshakes that failed.";
    },
);
