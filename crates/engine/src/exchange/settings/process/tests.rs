use std::path::Path;

use petrel_config::{LoadOptions, Shell, parse_str};

use super::*;
use crate::limits;
use crate::settings::directives::DIRECTIVES;

fn read(text: &str) -> Result<ProcessSettings, String> {
    let schema = Schema::new(&[DIRECTIVES]);
    let options = LoadOptions {
        variables: Vec::new(),
        environment: &|_| None,
        shell: Shell::Refuse,
        directory: "/".into(),
    };
    let config = parse_str("test", text, &schema, &options).expect("valid configuration");
    ProcessSettings::new(&config).map_err(|diagnostic| {
        let hint = diagnostic
            .hint
            .map(|hint| format!(" ({hint})"))
            .unwrap_or_default();
        diagnostic.message + &hint
    })
}

fn ok(text: &str) -> ProcessSettings {
    read(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    match read(text) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error,
    }
}

fn addresses(text: &str) -> Vec<String> {
    ok(text)
        .listeners
        .iter()
        .map(|listener| listener.address.to_string())
        .collect()
}

#[test]
fn defaults_are_those_of_the_reference() {
    let settings = ok("");
    assert_eq!(addresses(""), ["0.0.0.0:80"]);
    let listener = &settings.listeners[0];
    assert!(listener.is_default && listener.v6only && !listener.use_ipv6);
    assert!(!listener.defer_accept && !listener.ip_transparent);
    assert_eq!((listener.backlog, listener.socket_perms), (1024, None));
    assert_eq!(settings.error_log, LogTarget::Stderr);
    assert_eq!(settings.stat_cache, StatCache::Inotify);
    assert_eq!(settings.syslog_facility, SyslogFacility::default());
    assert_eq!(settings.head_options, HeadOptions::default());
    assert_eq!(settings.url_options, UrlOptions::default());
    assert_eq!(settings.features, Features::default());
    assert!(settings.workers.get() >= 1);
    assert!(settings.warnings.is_empty());
}

#[test]
fn port_and_bind_make_the_main_listener() {
    assert_eq!(addresses("server.port = 81"), ["0.0.0.0:81"]);
    assert_eq!(addresses("server.port = 0"), ["0.0.0.0:80"]);
    assert_eq!(
        addresses("server.bind = \"127.0.0.1\"\nserver.port = 81"),
        ["127.0.0.1:81"]
    );
    assert_eq!(
        addresses("server.bind = \"::1\"\nserver.port = 81"),
        ["[::1]:81"]
    );
    assert_eq!(addresses("server.bind = \"/run/x.sock\""), ["/run/x.sock"]);
    assert_eq!(addresses("server.use-ipv6 = \"enable\""), ["[::]:80"]);
    assert_eq!(
        addresses("server.bind = \"Example.org\""),
        ["example.org:80"]
    );
}

#[test]
fn a_port_in_bind_is_refused() {
    assert!(error("server.bind = \"127.0.0.1:81\"").contains("without a port"));
    assert!(error("server.bind = \"127.0.0.1:80\"").contains("without a port"));
    assert!(error("server.port = 1\nserver.bind = \"[::1]:1\"").contains("without a port"));
}

#[test]
fn every_socket_block_adds_its_address_once() {
    let text = r#"
        server.port = 81
        $SERVER["socket"] == "[::]:81" { }
        $SERVER["socket"] == ":82" { server.listen-backlog = 7 }
        $SERVER["socket"] == ":82" { server.defer-accept = "enable" }
        $SERVER["socket"] != ":83" { }
        $SERVER["socket"] == "127.0.0.1" { }
        $HTTP["host"] == "a" { $SERVER["socket"] == "/run/x.sock" { server.socket-perms = "0600" } }
    "#;
    assert_eq!(
        addresses(text),
        [
            "0.0.0.0:81",
            "[::]:81",
            "0.0.0.0:82",
            "127.0.0.1:81",
            "/run/x.sock"
        ]
    );
    let settings = ok(text);
    let both = &settings.listeners[2];
    assert_eq!(
        (both.backlog, both.defer_accept, both.is_default),
        (7, true, false)
    );
    assert_eq!(settings.listeners[4].socket_perms, Some(0o600));
    assert_eq!(settings.listeners[3].socket_perms, None);
}

#[test]
fn a_block_for_the_main_address_sets_its_options() {
    let settings = ok(r#"
        server.listen-backlog = 99
        $SERVER["socket"] == "0.0.0.0:80" { server.listen-backlog = 77 }
        $SERVER["socket"] == ":82" { }
    "#);
    assert_eq!(settings.listeners.len(), 2);
    assert_eq!(
        (settings.listeners[0].backlog, settings.listeners[1].backlog),
        (77, 99)
    );
}

#[test]
fn v4mapped_and_set_v6only_both_open_an_ipv6_listener_to_ipv4() {
    let v6only = |options: &str| {
        let text = format!("$SERVER[\"socket\"] == \"[::]:82\" {{ {options} }}");
        ok(&text).listeners[1].v6only
    };
    assert!(v6only(""));
    assert!(!v6only("server.set-v6only = \"disable\""));
    assert!(!v6only("server.v4mapped = \"enable\""));
}

#[test]
fn listeners_that_cannot_be_are_refused() {
    assert!(error("server.socket-perms = \"999\"").contains("octal"));
    assert!(error("server.socket-perms = \"01777\"").contains("octal"));
    assert!(error("server.bind = \"[::g]\"").contains("IPv6"));
}

#[test]
fn limits_follow_the_files_that_may_be_open() {
    let unset = ok("");
    assert_eq!(unset.fds_to_ask_for(1024), 1024);
    assert_eq!(unset.fds_to_ask_for(u64::MAX), 65_536);
    assert_eq!(unset.connections_max(1024), 341);
    assert_eq!(unset.connections_max(0), 1);
    let set = ok("server.max-fds = 100000\nserver.max-connections = 5000");
    assert_eq!(set.fds_to_ask_for(1024), 100_000);
    assert_eq!(set.connections_max(100_000), 5000);
    assert_eq!(set.connections_max(1000), 500);
}

#[test]
fn workers_are_as_many_as_asked_for() {
    assert_eq!(ok("server.max-worker = 7").workers.get(), 7);
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    assert_eq!(ok("server.max-worker = 0").workers.get(), cores);
}

#[test]
fn words_out_of_a_closed_set_are_checked() {
    assert_eq!(
        ok("server.stat-cache-engine = \"fam\"").stat_cache,
        StatCache::Inotify
    );
    assert_eq!(
        ok("server.stat-cache-engine = \"disable\"").stat_cache,
        StatCache::Disabled
    );
    let facility = SyslogFacility::from_name("local3").expect("a facility");
    assert!(error("server.stat-cache-engine = \"simpel\"").contains("simple"));
    assert_eq!(
        ok("server.syslog-facility = \"local3\"").syslog_facility,
        facility
    );
    assert!(error("server.syslog-facility = \"locl3\"").contains("local3"));
}

#[test]
fn the_error_log_is_a_file_a_command_or_syslog() {
    assert_eq!(
        ok("server.errorlog = \"/x\"").error_log,
        LogTarget::File("/x".into())
    );
    let text = "server.errorlog = \"/x\"\nserver.errorlog-use-syslog = \"enable\"";
    assert_eq!(ok(text).error_log, LogTarget::Syslog);
}

#[test]
fn upload_directories_are_never_empty() {
    assert!(!ok("server.upload-dirs = ()").upload_directories.is_empty());
    let settings = ok("server.upload-dirs = ( \"/a\", \"/b\" )");
    assert_eq!(
        settings.upload_directories,
        [Path::new("/a"), Path::new("/b")]
    );
}

#[test]
fn parse_options_switch_the_parsers() {
    let settings = ok(r#"
        server.max-request-field-size = 4096
        server.http-parseopts = (
            "header-strict" => "disable", "host-strict" => "disable", "method-get-body" => "enable",
            "url-normalize-required" => "enable", "url-query-20-plus" => "enable",
        )
    "#);
    let head = settings.head_options;
    assert_eq!(head.head_bytes_max, 4096);
    assert!(!head.header_strict && !head.host_strict && !head.host_normalize);
    assert!(head.method_get_body);
    assert!(settings.url_options.normalize_required && settings.url_options.query_20_plus);
    assert!(settings.url_options.path_2f_decode);
}

#[test]
fn the_head_limit_has_a_limit() {
    let limit = |bytes: u32| read(&format!("server.max-request-field-size = {bytes}"));
    let bytes = |bytes: u32| limit(bytes).map(|settings| settings.head_options.head_bytes_max);
    assert_eq!(bytes(0), Ok(8192));
    assert_eq!(bytes(100_000), Ok(100_000));
    assert!(limit(2_000_000).is_err());
}

#[test]
fn a_strict_host_is_a_normalised_one() {
    let text = "server.http-parseopts = ( \"host-normalize\" => \"disable\" )";
    assert!(ok(text).head_options.host_normalize);
}

#[test]
fn older_switches_count_where_the_list_is_silent() {
    let older = "server.http-parseopt-header-strict = \"disable\"\n";
    assert!(!ok(older).head_options.header_strict);
    let both = format!("{older}server.http-parseopts = ( \"header-strict\" => \"enable\" )");
    assert!(ok(&both).head_options.header_strict);
}

#[test]
fn what_decodes_and_what_refuses_exclude_each_other() {
    let reject = ok("server.http-parseopts = ( \"url-path-2f-reject\" => \"enable\" )").url_options;
    assert!(reject.path_2f_reject && !reject.path_2f_decode);
    let message = error(
        "server.http-parseopts = ( \"url-path-2f-reject\" => \"enable\", \"url-path-2f-decode\" => \"enable\" )",
    );
    assert!(message.contains("cannot both"), "{message}");
    let message = error(
        "server.http-parseopts = ( \"url-path-dotseg-reject\" => \"enable\", \"url-path-dotseg-remove\" => \"enable\" )",
    );
    assert!(message.contains("cannot both"), "{message}");
}

#[test]
fn an_unknown_parse_option_is_an_error_with_the_nearest_name() {
    let message = error("server.http-parseopts = ( \"url-normalise\" => \"enable\" )");
    assert!(
        message.contains("did you mean \"url-normalize\"?"),
        "{message}"
    );
    let message = error("server.http-parseopts = ( \"url-normalize\" => \"maybe\" )");
    assert!(
        message.contains("takes \"enable\" or \"disable\""),
        "{message}"
    );
}

#[test]
fn feature_flags_are_read_or_told() {
    let settings = ok(r#"
        server.feature-flags = (
            "server.h2proto" => "enable", "server.h2c" => "enable",
            "server.graceful-shutdown-timeout" => 5, "http10.range" => "enable",
            "server.http-pathinfo" => "disable", "server.errorlog-utf8" => "disable",
        )
    "#);
    let expected = Features {
        graceful_timeout_s: Some(5),
        http10_range: true,
        pathinfo: false,
        ..Features::default()
    };
    assert_eq!(settings.features, expected);
    assert!(settings.warnings.is_empty());
    let forever = ok("server.feature-flags = ( \"server.graceful-shutdown-timeout\" => 0 )");
    assert_eq!(forever.features.graceful_timeout_s, Some(0));
}

#[test]
fn flags_without_effect_are_warned_of() {
    let settings = ok(r#"server.feature-flags = (
        "server.network-mptcp" => "enable", "server.h2porto" => "enable" )"#);
    let messages: Vec<_> = settings
        .warnings
        .iter()
        .map(|warning| &*warning.message)
        .collect();
    assert_eq!(
        messages,
        [
            "the feature flag server.network-mptcp has no effect yet",
            "there is no feature flag server.h2porto",
        ]
    );
    assert_eq!(
        settings.warnings[1].hint.as_deref(),
        Some("did you mean server.h2proto?")
    );
}

#[test]
fn a_chunk_size_without_effect_is_told() {
    let read = |text: &str| {
        let settings = ok(text);
        let told = settings.warnings.into_iter();
        let told: Vec<String> = told.map(|warning| warning.message).collect();
        (settings.io_chunk_bytes, told)
    };
    assert_eq!(read("server.io-chunk-size = 256"), (256 << 10, vec![]));
    let most = limits::CHUNK_BYTES_CONFIGURED_MAX;
    let (bytes, told) = read("server.io-chunk-size = 16384");
    assert_eq!((bytes, told.len()), (most, 0));
    let (bytes, told) = read("server.io-chunk-size = 16385");
    assert_eq!((bytes, told.len()), (most, 1));
    assert!(told[0].contains("at most 16384 KiB"), "{told:?}");
    let some = "server.network-backend = \"writev\"
        $HTTP[\"host\"] == \"a\" { server.network-backend = \"io_uring\" }
        $HTTP[\"host\"] == \"b\" { server.network-backend = \"gthread-sendfile\" }
        $HTTP[\"host\"] == \"c\" { server.network-backend = \"sendfile\" }";
    let (_, told) = read(&format!("server.io-chunk-size = 64\n{some}"));
    let names = ["writev", "gthread-sendfile", "linux-sendfile"];
    assert_eq!(told.len(), names.len(), "{told:?}");
    for (told, name) in told.iter().zip(names) {
        assert!(told.ends_with(&format!("on what {name} sends")), "{told}");
    }
    assert_eq!(read(some), (0, vec![]));
}

#[test]
fn a_reload_leaves_a_day_and_a_stop_eight_seconds_unless_the_time_is_set() {
    let times = |text: &str| {
        let drain = ok(text).drain;
        (drain.stop_s, drain.reload_s, drain.generations)
    };
    assert_eq!(times(""), (Some(8), Some(86_400), Some(4)));
    let graceful = |seconds: u32| {
        format!("server.feature-flags = ( \"server.graceful-shutdown-timeout\" => {seconds} )")
    };
    assert_eq!(times(&graceful(5)), (Some(5), Some(5), Some(4)));
    assert_eq!(times(&graceful(0)), (None, None, Some(4)));
    let both = graceful(5) + "\nserver.drain-timeout = 60\nserver.drain-generations = 20";
    assert_eq!(times(&both), (Some(5), Some(60), Some(20)));
    let unlimited = "server.drain-timeout = 0\nserver.drain-generations = 0";
    assert_eq!(times(unlimited), (Some(8), None, None));
}
