//! All options of a backend in lighttpd 1.4's maps. The reference is generated from this table, and the
//! start-up check finds misspelt options with it.

/// One option.
pub struct HostOption {
    /// Its key.
    pub name: &'static str,
    /// The type of its value.
    pub kind: HostOptionKind,
    /// The default as text; the unit is in `doc`.
    pub default: &'static str,
    /// What it does, in sentences for the reference.
    pub doc: &'static str,
}

/// Types of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOptionKind {
    /// A string.
    Text,
    /// A whole number.
    Number,
    /// "enable" or "disable".
    Switch,
    /// A list of strings.
    List,
    /// "enable", "disable", or a list of protocols.
    Protocols,
    /// A map from names to strings.
    Map,
    /// Any value; it is ignored.
    Any,
}

impl HostOptionKind {
    /// The name of the type in the reference.
    pub const fn name(self) -> &'static str {
        match self {
            HostOptionKind::Text => "string",
            HostOptionKind::Number => "int",
            HostOptionKind::Switch => "bool",
            HostOptionKind::List => "list",
            HostOptionKind::Protocols => "bool or list",
            HostOptionKind::Map => "map",
            HostOptionKind::Any => "any",
        }
    }
}

/// The option `name`, if there is one.
pub(super) fn find(name: &str) -> Option<&'static HostOption> {
    HOST_OPTIONS.iter().find(|option| option.name == name)
}

macro_rules! options {
    ($($name:literal, $kind:ident, $default:literal, $doc:literal;)*) => {
        &[$(HostOption {
            name: $name,
            kind: HostOptionKind::$kind,
            default: $default,
            doc: $doc,
        }),*]
    };
}

/// Every option: lighttpd's first, then Petrel's own. Any other option has no effect, and the start-up check
/// says so.
pub static HOST_OPTIONS: &[HostOption] = options! {
    "host", Text, "unset",
        "Address or name of the backend's host. A path is a unix socket.";
    "port", Number, "80",
        "Its port.";
    "socket", Text, "unset",
        "Path of its unix socket, in place of host and port.";
    "bin-path", Text, "unset",
        "A program to run, with arguments. It accepts connections on its standard input.";
    "bin-environment", Map, "()",
        "Variables that the program gets.";
    "bin-copy-environment", List, "everything",
        "Names of the server's own variables that the program gets.";
    "min-procs", Number, "4",
        "Processes of the program at the start.";
    "max-procs", Number, "4",
        "Processes under load.";
    "max-load-per-proc", Any, "unset",
        "Has no effect: processes share one socket, and the kernel gives a connection to one that is free.";
    "idle-timeout", Number, "60",
        "Seconds without work after which processes beyond min-procs end.";
    "kill-signal", Number, "15",
        "The signal that ends the program.";
    "listen-backlog", Number, "1024",
        "Connections that the kernel lets wait for the program.";
    "check-local", Switch, "enable",
        "Passes only requests for files that exist. proxy.server and ajp13.server never ask.";
    "mode", Text, "responder",
        "What a FastCGI application does: a \"responder\" answers requests, an \"authorizer\" \
         says which requests may go on.";
    "docroot", Text, "unset",
        "The document root as the backend sees it.";
    "disable-time", Number, "1",
        "Seconds without requests for a backend that failed; twice as long each further time, up \
         to 32 times as long.";
    "connect-timeout", Number, "8",
        "Seconds to connect; then another backend, or 504. 0 is no limit.";
    "write-timeout", Number, "0",
        "Seconds in which the backend must take more of a request; then 504. 0 is no limit.";
    "read-timeout", Number, "0",
        "Seconds to the first byte of a reply, and between two; then 504. 0 is no limit.";
    "broken-scriptfilename", Switch, "disable",
        "Leaves PATH_INFO at the end of SCRIPT_FILENAME.";
    "strip-request-uri", Text, "unset",
        "Is removed from the front of REQUEST_URI.";
    "fix-root-scriptname", Switch, "disable",
        "With the key \"/\", all of the path is PATH_INFO.";
    "allow-x-send-file", Switch, "disable",
        "The older name of x-sendfile.";
    "x-sendfile", Switch, "disable",
        "Lets the backend name a file or another URL to send: X-Sendfile, X-Sendfile2, X-LIGHTTPD-send-file, X-LIGHTTPD-send-tempfile, X-Accel-Redirect.";
    "x-sendfile-docroot", List, "the document root",
        "Directories that such files may be in.";
    "tcp-fin-propagate", Switch, "disable",
        "Tells the backend when the client has ended its side of the connection.";
    "upgrade", Protocols, "disable",
        "Lets clients change the connection to WebSocket (\"enable\"), or to the protocols in a list: ( \"websocket\", \"my-protocol\" ). HTTP, h2c included, is refused: no access rule, limit or log would see the requests in such a tunnel.";
    "srv", Text, "unset",
        "The name of SRV records (_http._tcp.example.org), in place of host and port.";
    "split-hostnames", Switch, "disable",
        "Makes every address of a host name a backend of its own; otherwise one after the other is tried. The targets of SRV records always are.";
    "weight", Number, "1",
        "The backend's share of the requests, 1 to 100.";
    "max-connections", Number, "0",
        "Connections of all workers together. 0: Petrel measures how many a FastCGI application \
         can work on; others have no limit then.";
    "max-keep-alive-requests", Number, "0",
        "Requests on one connection. 0 is no limit.";
    "max-keep-alive-idle", Number, "2, or 4 for HTTP",
        "Seconds that an idle connection stays open. 0 closes each after its request.";
    "backlog-size", Number, "1024",
        "Requests that wait for a connection; more are answered 503.";
    "backlog-timeout", Number, "30",
        "Seconds that a request waits for a connection; then 504.";
    "proxy-protocol", Number, "0",
        "The version of the PROXY protocol that connections begin with: 1 or 2. Such a connection serves one request.";
    "tls", Switch, "disable",
        "Speaks TLS 1.3 or 1.2 with the backend, and verifies it. The port is 443 then, if none is set.";
    "tls-name", Text, "the host",
        "Host name or address that the certificate of the backend has to be for; the backend is asked for it (SNI). Needed beside socket and srv.";
    "tls-ca-file", Text, "the system's certificates",
        "Absolute path of a pem file with the issuers that are trusted, in place of those that the system trusts.";
    "tls-cert", Text, "unset",
        "Absolute path of a pem file with the certificate that is shown to backends that ask for one, and those above it.";
    "tls-key", Text, "that in tls-cert",
        "Absolute path of a pem file with its key.";
    "tls-verify", Switch, "enable",
        "With \"disable\" the backend may have any certificate: TLS then protects against \
         eavesdroppers only.";
    "health-check-path", Text, "unset",
        "URL path to ask for regularly. Backends that do not speak HTTP are asked whether they accept a connection.";
    "health-check-interval", Number, "5",
        "Seconds between two such questions.";
    "slow-start", Number, "0",
        "Seconds until a backend that has come back gets its full share.";
    "tempfile-dirs", List, "/dev/shm and server.upload-dirs",
        "Directories that X-LIGHTTPD-send-tempfile may name files in.";
    "user", Text, "that of the server",
        "User that the program runs as.";
    "group", Text, "that of the user",
        "Group that it runs as.";
};

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    const BASE: [(&str, &str); 3] = [
        ("host", "\"127.0.0.1\""),
        ("port", "9"),
        ("bin-path", "\"/a\""),
    ];

    /// The code that reads an option refuses a value of another type. So an option that refuses it is read.
    #[test]
    fn every_option_is_read_as_what_the_table_says() {
        for option in HOST_OPTIONS {
            let wrong = match option.kind {
                HostOptionKind::List | HostOptionKind::Map => "7",
                HostOptionKind::Any => continue,
                _ => "( \"a\" => \"b\" )",
            };
            let base = BASE.iter().filter(|(name, _)| *name != option.name);
            let base: Vec<_> = base
                .map(|(name, value)| format!("\"{name}\" => {value}"))
                .collect();
            let base = base.join(", ");
            let name = option.name;
            let text = format!("fastcgi.server = ( \"/\" => (( {base}, \"{name}\" => {wrong} )) )");
            let message = testing::refusal("mod_fastcgi", &text);
            assert!(
                message.contains(&format!("{name} takes ")),
                "{name}: {message}"
            );
        }
    }

    #[test]
    fn names_stand_once_and_say_what_they_do() {
        for (index, option) in HOST_OPTIONS.iter().enumerate() {
            let mut before = HOST_OPTIONS.iter().take(index);
            assert!(
                before.all(|other| other.name != option.name),
                "{}",
                option.name
            );
            assert!(option.doc.ends_with('.'), "{}", option.name);
            assert!(!option.default.is_empty(), "{}", option.name);
        }
    }
}
