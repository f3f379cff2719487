//! One backend in lighttpd 1.4's maps: lighttpd's options and Petrel's own.

use std::time::Duration;

use petrel_engine::config::{Config, Diagnostic, Value};

use super::map::OptionMap;
use super::{
    BackendHost, Family, FpmStatusPage, HealthCheck, HostAddress, Mode, Protocol, spawn,
    status_page, tls,
};
use crate::gateway::upgrade::Upgrades;

/// Reads one backend. `label` is its key in the configuration, if it has one.
pub(super) fn read(
    config: &Config,
    family: &Family,
    label: Option<&str>,
    map: &OptionMap<'_>,
) -> Result<BackendHost, Diagnostic> {
    let listens = address(map)?;
    let spawn = spawn::read(map, &listens)?;
    let address = match &spawn {
        Some(spec) => spec.address.clone(),
        None => listens,
    };
    let seconds = |key: &str, default: u32| {
        let number = map.short(key)?.unwrap_or(default);
        Ok::<_, Diagnostic>(Duration::from_secs(number.into()))
    };
    let switch =
        |key: &str, default: bool| Ok::<_, Diagnostic>(map.switch(key)?.unwrap_or(default));
    let bytes = |key: &str| {
        let text = map.text(key)?;
        Ok::<_, Diagnostic>(text.map(|text| text.as_bytes().to_vec()))
    };
    let x_sendfile = switch("x-sendfile", false)? | switch("allow-x-send-file", false)?;
    let connections_max = match map.number("max-connections", u32::MAX)? {
        None | Some(0) => spawn.as_ref().and_then(spawn::capacity),
        told => told,
    };
    Ok(BackendHost {
        label: label.map_or_else(|| shown(&address), str::to_owned),
        connections_max,
        split_hostname: switch("split-hostnames", false)?,
        protocol: family.protocol,
        mode: mode(map)?,
        weight: map.number("weight", 100)?.unwrap_or(1).max(1),
        requests_per_connection_max: map
            .number("max-keep-alive-requests", u32::MAX)?
            .unwrap_or(0),
        keep_alive_idle: seconds("max-keep-alive-idle", keep_alive_idle_s(family.protocol))?,
        backlog_max: map
            .number("backlog-size", u32::MAX)?
            .unwrap_or(BACKLOG_SIZE),
        backlog_timeout: seconds("backlog-timeout", BACKLOG_S)?,
        connect_timeout: seconds("connect-timeout", CONNECT_S)?,
        write_timeout: seconds("write-timeout", 0)?,
        read_timeout: seconds("read-timeout", 0)?,
        disable_time: seconds("disable-time", DISABLE_S)?,
        check_local: switch("check-local", true)? && family.has_local_files,
        docroot: bytes("docroot")?,
        strip_request_uri: bytes("strip-request-uri")?,
        broken_scriptfilename: switch("broken-scriptfilename", false)?,
        fix_root_scriptname: switch("fix-root-scriptname", false)?,
        x_sendfile,
        x_sendfile_docroot: map.directories("x-sendfile-docroot")?.unwrap_or_default(),
        tempfile_dirs: tempfile_dirs(config, map.directories("tempfile-dirs")?, x_sendfile),
        tcp_fin_propagate: switch("tcp-fin-propagate", false)?,
        upgrade: upgrades(map)?,
        proxy_protocol: map.number("proxy-protocol", 2)?.unwrap_or(0) as u8,
        tls: tls::read(map, &address)?,
        health_check: health_check(map)?,
        status_page: status_page(map, family.protocol)?,
        slow_start: seconds("slow-start", 0)?,
        address,
        spawn,
    })
}

/// The directories that may hold temporary files of a backend. If the option is not set (`told`), these are
/// the directory of the article that introduced the feature (/dev/shm), and `server.upload-dirs`.
pub(crate) fn tempfile_dirs(
    config: &Config,
    told: Option<Vec<Vec<u8>>>,
    x_sendfile: bool,
) -> Vec<Vec<u8>> {
    if !x_sendfile {
        return Vec::new();
    }
    told.unwrap_or_else(|| {
        let uploads = config.global().entry("server.upload-dirs");
        let uploads = uploads.and_then(|entry| entry.value.as_strings());
        let uploads = uploads.unwrap_or_default().into_iter();
        let uploads = uploads.filter(|path| path.starts_with('/'));
        std::iter::once("/dev/shm")
            .chain(uploads)
            .map(|path| path.as_bytes().to_vec())
            .collect()
    })
}

/// An address as text for messages and counters.
pub(crate) fn shown(address: &HostAddress) -> String {
    match address {
        HostAddress::Unix(path) => format!("unix:{}", String::from_utf8_lossy(path)),
        HostAddress::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
        HostAddress::Tcp(host, port) => format!("{host}:{port}"),
        HostAddress::Srv(name) => format!("srv:{name}"),
    }
}

/// Refuses a path that is too long for a socket.
pub(super) fn unix(path: &str) -> Result<HostAddress, String> {
    match path.len() {
        ..=SOCKET_PATH_BYTES_MAX => Ok(HostAddress::Unix(path.as_bytes().to_vec())),
        length => Err(format!(
            "the path of a unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes, and this one {length}"
        )),
    }
}

/// How long, in seconds, a connection to a backend with this protocol may be idle. Node's HTTP server closes
/// idle connections after 5 seconds. This server must close first: otherwise a request may be sent on a
/// connection that the backend is just closing. With other protocols an idle connection occupies a process of
/// the backend.
pub(super) fn keep_alive_idle_s(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Http => 4,
        // Another front end, or another route to the same backend, may be waiting for that process.
        Protocol::FastCgi | Protocol::Scgi | Protocol::Uwsgi | Protocol::Ajp13 => 2,
    }
}

fn address(map: &OptionMap<'_>) -> Result<HostAddress, Diagnostic> {
    let port = map.number("port", u16::MAX.into())?.unwrap_or(0);
    let port = u16::try_from(port).unwrap_or(0);
    let host = map.text("host")?;
    let of_path = |key: &str, path: &str| {
        // The socket of a program gets "-0" appended to its name, which must fit as well.
        let longest = if map.text("bin-path")?.is_some() {
            format!("{path}-0")
        } else {
            path.to_owned()
        };
        unix(&longest).map_err(|message| map.error(key, message))?;
        Ok(HostAddress::Unix(path.as_bytes().to_vec()))
    };
    match (map.text("srv")?, map.text("socket")?, host) {
        (Some(name), None, None) if port == 0 => Ok(HostAddress::Srv(name.to_owned())),
        (Some(_), ..) => Err(both(
            map,
            "srv",
            "srv takes the place of host and port, or socket: set only one of them",
        )),
        (None, Some(path), None) if port == 0 => of_path("socket", path),
        (None, Some(_), _) => Err(both(
            map,
            "socket",
            "either host and port or socket can be set",
        )),
        (None, None, Some(path)) if path.starts_with('/') => of_path("host", path),
        (None, None, Some(host)) => {
            let bare = host
                .strip_prefix('[')
                .and_then(|host| host.strip_suffix(']'));
            let port = match port {
                0 if tls::is_wanted(map)? => TLS_PORT,
                0 => PORT,
                port => port,
            };
            Ok(HostAddress::Tcp(bare.unwrap_or(host).to_owned(), port))
        }
        (None, None, None) if port != 0 && map.text("bin-path")?.is_some() => {
            Ok(HostAddress::Tcp("127.0.0.1".to_owned(), port))
        }
        (None, None, None) => {
            let message = "a backend needs \"host\" and \"port\", or \"socket\"".to_owned();
            Err(map.error("", message))
        }
    }
}

fn both(map: &OptionMap<'_>, key: &str, message: &str) -> Diagnostic {
    map.error(key, message.to_owned())
}

/// An unknown mode means responder, as in lighttpd; the start-up check warns about it.
fn mode(map: &OptionMap<'_>) -> Result<Mode, Diagnostic> {
    Ok(match map.text("mode")? {
        Some("authorizer") => Mode::Authorizer,
        _ => Mode::Responder,
    })
}

fn upgrades(map: &OptionMap<'_>) -> Result<Upgrades, Diagnostic> {
    let read = map
        .array
        .get("upgrade")
        .map(|element| Upgrades::read(&element.value));
    read.unwrap_or_else(|| Ok(Upgrades::default()))
        .map_err(|message| map.error("upgrade", format!("upgrade {message}")))
}

fn health_check(map: &OptionMap<'_>) -> Result<Option<HealthCheck>, Diagnostic> {
    let interval = map
        .short("health-check-interval")?
        .unwrap_or(HEALTH_CHECK_S)
        .max(1);
    match map.text("health-check-path")? {
        None => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(HealthCheck {
            path: path.as_bytes().to_vec(),
            interval: Duration::from_secs(interval.into()),
        })),
        Some(path) => {
            let message = format!("health-check-path takes a URL path, not {path:?}");
            Err(map.error("health-check-path", message))
        }
    }
}

fn status_page(
    map: &OptionMap<'_>,
    protocol: Protocol,
) -> Result<Option<FpmStatusPage>, Diagnostic> {
    let path = map.text(status_page::PATH)?;
    let address = map.text(status_page::ADDRESS)?;
    let slow_log = map.text(status_page::SLOW_LOG)?;
    FpmStatusPage::read(protocol, path, address, slow_log)
        .map_err(|(option, why)| map.error(option, why))
}

/// Whether `value` is a mode that lighttpd knows.
pub(super) fn is_mode(value: &Value) -> bool {
    matches!(value.as_str(), Some("responder" | "authorizer" | ""))
}

/// The port of a host without one, with every protocol, as in lighttpd.
pub(super) const PORT: u16 = 80;

/// The port of a host without one, with TLS.
pub(super) const TLS_PORT: u16 = 443;

/// `connect-timeout`, in seconds.
pub(super) const CONNECT_S: u32 = 8;

/// `disable-time`, in seconds.
pub(super) const DISABLE_S: u32 = 1;

/// The default of `backlog-size`. Most listening sockets let as many connections wait in the kernel.
pub(super) const BACKLOG_SIZE: u32 = 1024;

/// `backlog-timeout`, in seconds.
pub(super) const BACKLOG_S: u32 = 30;

/// `health-check-interval`, in seconds.
const HEALTH_CHECK_S: u32 = 5;

/// The largest length of a unix socket's path: `sun_path` has 108 bytes, and the last one is 0.
const SOCKET_PATH_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::super::testing::{host, refused};
    use super::*;

    #[test]
    fn addresses_are_hosts_sockets_or_services() {
        let tcp = |host: &str, port| HostAddress::Tcp(host.to_owned(), port);
        for (options, expected) in [
            (
                "\"host\" => \"127.0.0.1\", \"port\" => 9000",
                tcp("127.0.0.1", 9000),
            ),
            (
                "\"host\" => \"app.example\", \"port\" => \"81\"",
                tcp("app.example", 81),
            ),
            ("\"host\" => \"10.0.0.1\"", tcp("10.0.0.1", 80)),
            ("\"host\" => \"[::1]\", \"port\" => 1", tcp("::1", 1)),
            ("\"host\" => \"::1\", \"port\" => 1", tcp("::1", 1)),
            (
                "\"socket\" => \"/run/s\"",
                HostAddress::Unix(b"/run/s".to_vec()),
            ),
            (
                "\"host\" => \"/run/s\"",
                HostAddress::Unix(b"/run/s".to_vec()),
            ),
            (
                "\"srv\" => \"_a._tcp.example\"",
                HostAddress::Srv("_a._tcp.example".to_owned()),
            ),
        ] {
            assert_eq!(host(options).address, expected, "{options}");
        }
    }

    // lighttpd 1.4.69 refuses the same, except for the forms of addresses that only Petrel has.
    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("\"socket\" => \"/{}\"", "s".repeat(107));
        let room = format!(
            "\"socket\" => \"/{}\", \"bin-path\" => \"/a\"",
            "s".repeat(105)
        );
        for (options, message) in [
            ("", "needs \"host\""),
            ("\"port\" => 1", "needs \"host\""),
            ("\"host\" => \"\", \"port\" => 1", "needs \"host\""),
            ("\"bin-path\" => \"/a\"", "needs \"host\""),
            ("\"socket\" => \"/s\", \"port\" => 1", "either"),
            ("\"socket\" => \"/s\", \"host\" => \"a\"", "either"),
            ("\"srv\" => \"a\", \"host\" => \"a\"", "srv takes the place"),
            (
                "\"host\" => \"a\", \"port\" => 65536",
                "port takes a number",
            ),
            (&long, "at most 107 bytes"),
            (&room, "at most 107 bytes"),
        ] {
            let found = refused(options);
            assert!(found.contains(message), "{options}: {found}");
        }
    }

    #[test]
    fn defaults_are_lighttpds() {
        let host = host("\"host\" => \"a\", \"port\" => 1");
        assert_eq!(host.label, "a:1");
        assert!(host.check_local && host.mode == Mode::Responder);
        assert_eq!(host.connect_timeout, Duration::from_secs(8));
        assert_eq!((host.read_timeout, host.write_timeout), Default::default());
        assert_eq!(host.disable_time, Duration::from_secs(1));
        assert_eq!((host.weight, host.connections_max), (1, None));
        assert!(!host.x_sendfile && host.upgrade == Upgrades::default() && !host.tcp_fin_propagate);
        assert!(host.tempfile_dirs.is_empty() && host.spawn.is_none());
    }

    #[test]
    fn every_option_is_read() {
        let host = host(
            "\"host\" => \"a\", \"port\" => 1, \"check-local\" => \"disable\", \"mode\" => \"authorizer\", \
             \"docroot\" => \"/d\", \"disable-time\" => 2, \"connect-timeout\" => 3, \"write-timeout\" => 4, \
             \"read-timeout\" => 5, \"broken-scriptfilename\" => \"enable\", \"strip-request-uri\" => \"/p\", \
             \"fix-root-scriptname\" => 1, \"allow-x-send-file\" => \"enable\", \
             \"x-sendfile-docroot\" => (\"/x\", \"/y\"), \"tcp-fin-propagate\" => \"true\", \"upgrade\" => \"enable\", \
             \"weight\" => 7, \"max-connections\" => 8, \"max-keep-alive-requests\" => 9, \
             \"max-keep-alive-idle\" => 10, \"backlog-size\" => 11, \"backlog-timeout\" => 12, \
             \"proxy-protocol\" => 2, \"health-check-path\" => \"/h\", \"health-check-interval\" => 13, \
             \"slow-start\" => 14, \"tempfile-dirs\" => (\"/t\"), \"split-hostnames\" => \"enable\"",
        );
        let s = Duration::from_secs;
        assert!(!host.check_local && host.mode == Mode::Authorizer && host.split_hostname);
        assert_eq!(host.docroot.as_deref(), Some(&b"/d"[..]));
        assert_eq!(host.strip_request_uri.as_deref(), Some(&b"/p"[..]));
        assert!(host.broken_scriptfilename && host.fix_root_scriptname && host.x_sendfile);
        assert_eq!(host.x_sendfile_docroot, [b"/x", b"/y"]);
        assert_eq!(host.tempfile_dirs, [b"/t"]);
        assert!(host.tcp_fin_propagate && host.upgrade == Upgrades::websocket());
        let limits = (
            host.weight,
            host.connections_max,
            host.requests_per_connection_max,
        );
        assert_eq!(limits, (7, Some(8), 9));
        assert_eq!((host.backlog_max, host.proxy_protocol), (11, 2));
        let times = [
            host.disable_time,
            host.connect_timeout,
            host.write_timeout,
            host.read_timeout,
            host.keep_alive_idle,
            host.backlog_timeout,
            host.slow_start,
        ];
        assert_eq!(times, [s(2), s(3), s(4), s(5), s(10), s(12), s(14)]);
        let check = host.health_check.expect("it is set");
        assert_eq!((check.path, check.interval), (b"/h".to_vec(), s(13)));
    }

    #[test]
    fn temporary_files_are_where_the_server_keeps_its_own() {
        let on = "\"host\" => \"a\", \"x-sendfile\" => \"enable\"";
        assert_eq!(host(on).tempfile_dirs, [b"/dev/shm".to_vec()]);
        let config = super::super::testing::config(&format!(
            "server.upload-dirs = ( \"/up\", \"relative\" )\nfastcgi.server = ( \"/\" => (({on})) )"
        ));
        let host = super::super::testing::first_host(&config).expect("valid");
        assert_eq!(host.tempfile_dirs, [b"/dev/shm".to_vec(), b"/up".to_vec()]);
    }

    #[test]
    fn values_of_another_type_are_refused() {
        for (options, message) in [
            ("\"socket\" => 12", "socket takes a string, not 12"),
            (
                "\"host\" => \"a\", \"check-local\" => \"maybe\"",
                "check-local takes \"enable\"",
            ),
            (
                "\"host\" => \"a\", \"disable-time\" => \"soon\"",
                "disable-time takes a number from 0 to 65535, not \"soon\"",
            ),
            ("\"host\" => \"a\", \"disable-time\" => ()", "not an array"),
            (
                "\"host\" => \"a\", \"x-sendfile-docroot\" => \"/x\"",
                "a list of strings",
            ),
            (
                "\"host\" => \"a\", \"x-sendfile-docroot\" => (\"x\")",
                "absolute paths, not \"x\"",
            ),
            (
                "\"host\" => \"a\", \"tempfile-dirs\" => (\"x\")",
                "absolute paths",
            ),
            ("\"host\" => \"a\", \"proxy-protocol\" => 3", "from 0 to 2"),
            (
                "\"host\" => \"a\", \"health-check-path\" => \"h\"",
                "a URL path",
            ),
            (
                "\"socket\" => \"/s\", \"bin-path\" => \"/a '\"",
                "no command",
            ),
            (
                "\"socket\" => \"/s\", \"bin-path\" => \"/a\", \"kill-signal\" => 65",
                "no signal 65",
            ),
            (
                "\"socket\" => \"/s\", \"bin-path\" => \"/a\", \"bin-environment\" => (\"A\" => 1)",
                "a map of strings",
            ),
        ] {
            let found = refused(options);
            assert!(found.contains(message), "{options}: {found}");
        }
    }

    #[test]
    fn sockets_are_shown_as_they_are_written() {
        assert_eq!(shown(&HostAddress::Tcp("::1".to_owned(), 1)), "[::1]:1");
        assert_eq!(shown(&HostAddress::Unix(b"/s".to_vec())), "unix:/s");
        assert_eq!(shown(&HostAddress::Srv("a".to_owned())), "srv:a");
    }
}
