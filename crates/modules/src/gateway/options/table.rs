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
        "Address or name of the backend's host, or the path of a unix socket.";
    "port", Number, "80",
        "Its port.";
    "socket", Text, "unset",
        "Path of the backend's unix socket, instead of host and port.";
    "bin-path", Text, "unset",
        "A program that Petrel runs as the backend, with arguments. It accepts connections on its standard input.";
    "bin-environment", Map, "()",
        "Environment variables for the program.";
    "bin-copy-environment", List, "everything",
        "Names of variables of the server's own environment that the program gets.";
    "min-procs", Number, "4",
        "The number of processes of the program at the start.";
    "max-procs", Number, "4",
        "The largest number of processes, under load.";
    "max-load-per-proc", Any, "unset",
        "Has no effect: all processes share one socket, and the kernel gives each connection to a process that is free.";
    "idle-timeout", Number, "60",
        "Seconds without work after which a process beyond min-procs is ended.";
    "kill-signal", Number, "15",
        "The signal that ends a process.";
    "listen-backlog", Number, "1024",
        "How many connections the kernel lets wait for the program (listen backlog).";
    "check-local", Switch, "enable",
        "Pass only requests for files that exist. Has no effect in proxy.server and ajp13.server.";
    "mode", Text, "responder",
        "The role of a FastCGI application: responder, or authorizer, which decides whether a request may go on.";
    "docroot", Text, "unset",
        "The document root that the backend is told.";
    "disable-time", Number, "1",
        "Seconds for which a backend gets no requests after its first failure; doubled with each further failure, up to 32 times.";
    "connect-timeout", Number, "8",
        "Seconds for connecting; after that another backend is tried, or the request gets 504. 0: no limit.";
    "write-timeout", Number, "0",
        "Seconds in which the backend must read more of a request; after that the request gets 504. 0: no limit.";
    "read-timeout", Number, "0",
        "Seconds until the first byte of a reply, and between two bytes; after that the request gets 504. 0: no limit.";
    "broken-scriptfilename", Switch, "disable",
        "Appends PATH_INFO to SCRIPT_FILENAME.";
    "strip-request-uri", Text, "unset",
        "A prefix that is removed from REQUEST_URI.";
    "fix-root-scriptname", Switch, "disable",
        "With the key \"/\", the whole path is PATH_INFO.";
    "allow-x-send-file", Switch, "disable",
        "The older name of x-sendfile.";
    "x-sendfile", Switch, "disable",
        "Lets the backend name a file or another URL that Petrel sends: X-Sendfile, X-Sendfile2, X-LIGHTTPD-send-file, X-LIGHTTPD-send-tempfile, X-Accel-Redirect.";
    "x-sendfile-docroot", List, "the document root",
        "Directories that such files may be in.";
    "tcp-fin-propagate", Switch, "disable",
        "Tells the backend when the client has shut down its side of the connection.";
    "upgrade", Protocols, "disable",
        "Lets clients upgrade the connection to WebSocket (\"enable\"), or to the protocols in a list: ( \"websocket\", \"my-protocol\" ). HTTP, h2c included, is refused: no access rule, limit or log would see the requests in such a tunnel.";
    "srv", Text, "unset",
        "The name of SRV records (_http._tcp.example.org), instead of host and port.";
    "split-hostnames", Switch, "disable",
        "Makes each address of a host name a backend of its own; otherwise the addresses are tried in turn. The targets of SRV records are always backends of their own.";
    "weight", Number, "1",
        "The backend's share of the requests, 1 to 100.";
    "max-connections", Number, "0",
        "The largest number of connections, of all workers together. 0: no limit, or for bin-path with PHP_FCGI_CHILDREN that number times max-procs.";
    "max-keep-alive-requests", Number, "0",
        "The largest number of requests on one connection. 0: no limit.";
    "max-keep-alive-idle", Number, "2, or 4 for HTTP",
        "Seconds that an idle connection is kept. 0: none is kept.";
    "backlog-size", Number, "1024",
        "How many requests may wait for a connection or a process; further ones get 503.";
    "backlog-timeout", Number, "30",
        "Seconds that a request waits for a connection or a process; after that it gets 504. Also how long requests wait for a backend that is being restarted; after that they get 503.";
    "proxy-protocol", Number, "0",
        "The version of the PROXY protocol header at the beginning of each connection: 1 or 2. Such a connection serves one request only.";
    "tls", Switch, "disable",
        "Uses TLS 1.3 or 1.2 to the backend, and verifies its certificate. The default port is then 443.";
    "tls-name", Text, "the host",
        "Host name or address that the backend's certificate must be valid for; it is also sent in the handshake (SNI). Required with socket and srv.";
    "tls-ca-file", Text, "the system's certificates",
        "Absolute path of a PEM file with trusted authorities, instead of the system's.";
    "tls-cert", Text, "unset",
        "Absolute path of a PEM file with the client certificate for backends that ask for one, and its intermediate certificates.";
    "tls-key", Text, "that in tls-cert",
        "Absolute path of a PEM file with the key of that certificate.";
    "tls-verify", Switch, "enable",
        "With \"disable\" any certificate is accepted: TLS then protects against eavesdropping only.";
    "health-check-path", Text, "unset",
        "A URL path that is requested regularly to check the backend. With protocols other than HTTP the check only makes a connection.";
    "health-check-interval", Number, "5",
        "Seconds between two checks.";
    "status-path", Text, "unset",
        "The path at which php-fpm tells its status (pm.status_path of its pool). The status page, the metrics and petrel top then show its children and the scripts that they run. Only in fastcgi.server.";
    "status-address", Text, "that of the backend",
        "Where php-fpm is asked for its status, \"host:port\" or \"unix:/path\": pm.status_listen of its pool, which answers even when all children are busy.";
    "slowlog", Text, "unset",
        "The file where php-fpm says which scripts are slow (slowlog of its pool). Notes about slow requests then say where their scripts were. Needs status-path beside it.";
    "slow-start", Number, "0",
        "Seconds over which the share of a backend that has come back grows to the full one.";
    "tempfile-dirs", List, "/dev/shm and server.upload-dirs",
        "Directories that X-LIGHTTPD-send-tempfile may name files in.";
    "user", Text, "that of the server",
        "The user that the program runs as.";
    "group", Text, "that of the user",
        "The group that the program runs as.";
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
