//! Authentication: mod_auth and where it looks passwords up.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

/// Only `auth.require` guards anything.
const NO_AUTH: &str = "it has no meaning without auth.require, which is not built";

pub(super) static AUTH: ModuleSpec = not_built(
    "mod_auth",
    "Asks for a user name and a password.",
    directives! {
        "auth.require", Map, Request, "()", Exposes("what only some may see must not be shown to all"),
            "Who may have the URLs that begin with a key, and how they prove it.";
        "auth.backend", String, Request, "unset", NotYet(NO_AUTH),
            "Where users are looked up: plain, htpasswd, htdigest, ldap, dbi, gssapi, pam or sasl.";
        "auth.extern-authn", Bool, Request, "disable", NotYet(NO_AUTH),
            "Accepts a user that something else, such as a client certificate, has established.";
        "auth.cache", Map, Request, "off", NotYet(NO_AUTH),
            "How long a good login is remembered: max-age in seconds.";
        "auth.debug", Short, Request, "0", NotYet(NO_AUTH),
            "Traces authentication (lighttpd 1.5).";
        "auth.backend.plain.userfile", String, Request, "unset", NotYet(NO_AUTH),
            "A file with lines user:password.";
        "auth.backend.plain.groupfile", String, Request, "unset", NotYet(NO_AUTH),
            "A file with lines group: user user.";
        "auth.backend.htpasswd.userfile", String, Request, "unset", NotYet(NO_AUTH),
            "A file as Apache's htpasswd writes it.";
        "auth.backend.htdigest.userfile", String, Request, "unset", NotYet(NO_AUTH),
            "A file as Apache's htdigest writes it.";
        "auth.backend.dbi", Map, Request, "()", NotYet(NO_AUTH),
            "A database and the query for a user.";
        "auth.backend.gssapi.keytab", String, Request, "unset", NotYet(NO_AUTH),
            "The Kerberos key table.";
        "auth.backend.gssapi.principal", String, Request, "unset", NotYet(NO_AUTH),
            "The Kerberos name of the service.";
        "auth.backend.gssapi.store-creds", Bool, Request, "enable", NotYet(NO_AUTH),
            "Keeps delegated credentials for backends.";
        "auth.backend.ldap.hostname", String, Request, "unset", NotYet(NO_AUTH),
            "The LDAP server, or URLs of several.";
        "auth.backend.ldap.url", String, Request, "unset", NotYet(NO_AUTH),
            "The LDAP server (lighttpd 1.5).";
        "auth.backend.ldap.base-dn", String, Request, "unset", NotYet(NO_AUTH),
            "Where the search for a user begins.";
        "auth.backend.ldap.filter", String, Request, "unset", NotYet(NO_AUTH),
            "The search filter; the user takes the place of its question mark.";
        "auth.backend.ldap.ca-file", String, Request, "unset", NotYet(NO_AUTH),
            "Certificate authorities to trust.";
        "auth.backend.ldap.cert", String, Request, "unset", NotYet(NO_AUTH),
            "The client certificate (lighttpd 1.5).";
        "auth.backend.ldap.key", String, Request, "unset", NotYet(NO_AUTH),
            "The key of the client certificate (lighttpd 1.5).";
        "auth.backend.ldap.starttls", Bool, Request, "disable", NotYet(NO_AUTH),
            "Encrypts the connection by StartTLS.";
        "auth.backend.ldap.bind-dn", String, Request, "unset", NotYet(NO_AUTH),
            "The name to search as.";
        "auth.backend.ldap.bind-pw", String, Request, "unset", NotYet(NO_AUTH),
            "The password of that name.";
        "auth.backend.ldap.allow-empty-pw", Bool, Request, "disable", NotYet(NO_AUTH),
            "Lets users in whose password is empty.";
        "auth.backend.ldap.groupmember", String, Request, "memberUid", NotYet(NO_AUTH),
            "The attribute that holds the members of a group.";
        "auth.backend.ldap.timeout", String, Request, "2000", NotYet(NO_AUTH),
            "Milliseconds to wait for the server.";
        "auth.backend.pam.opts", Map, Request, "()", NotYet(NO_AUTH),
            "Options of PAM: the service, http by default.";
        "auth.backend.sasl.opts", Map, Request, "()", NotYet(NO_AUTH),
            "Options of SASL.";
    },
);
