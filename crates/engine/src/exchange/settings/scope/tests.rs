//! Which blocks are true, for many nestings of conditions.

use std::net::Ipv4Addr;

use petrel_config::{LoadOptions, parse_str};

use super::*;
use crate::settings::directives::DIRECTIVES;

/// A request with only the values that conditions compare.
#[derive(Default)]
struct Fake {
    url: &'static str,
    host: &'static str,
    remote: &'static str,
}

impl ConditionValues for Fake {
    fn with_value(&self, subject: &Subject, with: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        match subject {
            Subject::Url => with(self.url.as_bytes()),
            Subject::Host => with(self.host.as_bytes()),
            Subject::RemoteIp => with(self.remote.as_bytes()),
            _ => with(b""),
        }
    }
}

fn table(text: &str) -> SettingsTable {
    let schema = Schema::new(&[DIRECTIVES]);
    let config = parse_str("test.conf", text, &schema, &LoadOptions::from_process());
    let config = config.expect("the configuration is valid");
    let logs = Arc::new(LogRegistry::discarding());
    SettingsTable::new(Arc::new(config), Arc::new(schema), Vec::new(), logs)
}

fn settle(table: &SettingsTable, request: &Fake) -> Rc<Settings> {
    let peer = request
        .remote
        .parse()
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let connection = table.connection_scope("127.0.0.1:80", Some(peer), Scheme::Http);
    let host = table.host_scope(&connection, request.host.as_bytes());
    table.settings(&host, request)
}

fn name(table: &SettingsTable, request: Fake) -> String {
    let settings = settle(table, &request);
    let name = settings.core.name.as_deref().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn host_from(host: &'static str, remote: &'static str) -> Fake {
    Fake {
        host,
        remote,
        ..Fake::default()
    }
}

fn at(url: &'static str) -> Fake {
    Fake {
        url,
        ..Fake::default()
    }
}

#[test]
fn the_last_true_block_counts() {
    let table = table(
        r#"server.name = "global"
           $HTTP["url"] =^ "/a" { server.name = "a" }
           $HTTP["url"] =^ "/a/b" { server.name = "b" }"#,
    );
    assert_eq!(name(&table, at("/")), "global");
    assert_eq!(name(&table, at("/a")), "a");
    assert_eq!(name(&table, at("/a/b")), "b");
}

#[test]
fn only_one_branch_of_a_chain_is_true() {
    let table = table(
        r#"$HTTP["url"] =^ "/a" { server.name = "first" }
           else $HTTP["url"] =^ "/b" { server.name = "second" }
           else $HTTP["url"] =^ "/a/b" { server.name = "never" }
           else { server.name = "rest" }"#,
    );
    assert_eq!(name(&table, at("/a/b")), "first");
    assert_eq!(name(&table, at("/b")), "second");
    assert_eq!(name(&table, at("/c")), "rest");
}

#[test]
fn the_true_blocks_of_a_request_are_told_in_their_order() {
    let table = table(
        r#"$HTTP["url"] =^ "/a" { server.name = "a" }
           else { server.name = "rest" }
           $HTTP["host"] == "h" { $HTTP["url"] =^ "/a/b" { server.name = "b" } }"#,
    );
    let told = |host, url| {
        let request = Fake {
            host,
            url,
            ..Fake::default()
        };
        let connection = table.connection_scope("", None, Scheme::Http);
        let scope = table.host_scope(&connection, request.host.as_bytes());
        let blocks = table.true_blocks(&scope, &request);
        blocks.iter().map(|block| block.id.0).collect::<Vec<_>>()
    };
    assert_eq!(told("h", "/a/b"), [1, 3, 4]);
    assert_eq!(told("h", "/a"), [1, 3]);
    assert_eq!(told("i", "/x"), [2]);
}

#[test]
fn a_branch_behind_a_host_that_matched_is_not_taken() {
    let table = table(
        r#"$HTTP["host"] == "a" { server.name = "host" }
           else $HTTP["url"] =^ "/" { server.name = "url" }
           else { server.name = "rest" }"#,
    );
    assert_eq!(
        name(
            &table,
            Fake {
                host: "a",
                url: "/x",
                ..Fake::default()
            }
        ),
        "host"
    );
    assert_eq!(
        name(
            &table,
            Fake {
                host: "b",
                url: "/x",
                ..Fake::default()
            }
        ),
        "url"
    );
    assert_eq!(
        name(
            &table,
            Fake {
                host: "b",
                url: "*",
                ..Fake::default()
            }
        ),
        "rest"
    );
}

#[test]
fn blocks_inside_false_blocks_stay_false() {
    let table = table(
        r#"server.name = "global"
           $HTTP["host"] == "a" { $HTTP["url"] =^ "/x" { server.name = "inner" } }"#,
    );
    assert_eq!(
        name(
            &table,
            Fake {
                host: "a",
                url: "/x",
                ..Fake::default()
            }
        ),
        "inner"
    );
    assert_eq!(
        name(
            &table,
            Fake {
                host: "b",
                url: "/x",
                ..Fake::default()
            }
        ),
        "global"
    );
}

#[test]
fn an_address_inside_a_host_is_the_clients_address() {
    let table = table(
        r#"server.name = "out"
           $HTTP["host"] == "a" { $HTTP["remoteip"] == "10.0.0.0/8" { server.name = "in" } }"#,
    );
    let from = |remote| host_from("a", remote);
    assert_eq!(name(&table, from("10.1.2.3")), "in");
    assert_eq!(name(&table, from("192.168.0.1")), "out");
    assert_eq!(name(&table, from("10.1.2.4")), "in");
}

/// Clients speak TLS where `ssl.engine` is on. `server.name` selects a numbered certificate; with the name
/// "broken" the set-up fails.
static TLS: ModuleSpec = ModuleSpec {
    name: "mod_tls_of_a_test",
    doc: "For tests.",
    loaded: crate::module::Loaded::Always,
    directives: &[],
    configure: |configure| {
        let name = configure.values.string("server.name").unwrap_or_default();
        if name == "broken" {
            return Err(Diagnostic::error_anywhere("broken"));
        }
        if configure.values.bool("ssl.engine") != Some(true) {
            return Ok(());
        }
        configure.speak_tls(Rc::new(TlsHost {
            choose: Box::new(|_| Err(rustls::AlertDescription::InternalError)),
            certificate_id: name.len() as u64,
            client_rule_id: 0,
            refuse_client: None,
        }));
        Ok(())
    },
};

fn tls_table(text: &str) -> SettingsTable {
    let mut table = table(text);
    table.modules = vec![&TLS];
    table
}

#[test]
fn a_handshake_sees_hosts_and_connections_inside_each_other() {
    let table = tls_table(
        r#"server.name = ""
           ssl.engine = "enable"
           $HTTP["host"] == "a" {
               server.name = "1"
               $HTTP["scheme"] == "https" { server.name = "22" }
               $SERVER["socket"] == "127.0.0.1:80" { $HTTP["remoteip"] == "10.0.0.0/8" { server.name = "333" } }
               else $HTTP["host"] =^ "a" { server.name = "4444" }
           }"#,
    );
    let certificate = |host: &str, listener: &str, peer: &str| {
        let peer = Some(peer.parse().expect("an address"));
        let connection = table.connection_scope(listener, peer, Scheme::Https);
        let host = table.tls_host(&connection, host.as_bytes(), listener, peer);
        host.expect("it speaks TLS").certificate_id
    };
    assert_eq!(certificate("b", "127.0.0.1:80", "10.0.0.1"), 0);
    assert_eq!(certificate("a", "127.0.0.1:80", "10.0.0.1"), 3);
    assert_eq!(certificate("a", "127.0.0.1:80", "11.0.0.1"), 2);
    assert_eq!(certificate("a", "127.0.0.1:81", "10.0.0.1"), 4);
}

#[test]
fn settings_that_cannot_be_set_up_are_not_in_the_clear() {
    let text = r#"server.name = "broken"
           ssl.engine = "enable""#;
    let table = tls_table(text);
    let connection = table.connection_scope("", None, Scheme::Https);
    assert!(connection.speaks_tls);
    assert!(table.tls_host(&connection, b"a", "", None).is_none());
    let table = tls_table(r#"server.name = "broken""#);
    assert!(!table.connection_scope("", None, Scheme::Http).speaks_tls);
}

#[test]
fn a_listener_inside_a_host_speaks_tls_with_every_client() {
    let table = tls_table(
        r#"server.name = ""
           ssl.engine = "disable"
           $HTTP["host"] == "a" {
               $SERVER["socket"] == "127.0.0.1:443" { ssl.engine = "enable" server.name = "1" }
           }
           $HTTP["host"] == "b" {
               $SERVER["socket"] == "127.0.0.1:443" { ssl.engine = "enable" server.name = "22" }
               $SERVER["socket"] == "127.0.0.1:444" { ssl.engine = "disable" }
           }"#,
    );
    // Asked first without a listener: the cached answer must not apply to the listeners below.
    assert!(!table.connection_scope("", None, Scheme::Http).speaks_tls);
    for plain in ["127.0.0.1:80", "127.0.0.1:444"] {
        assert!(!table.connection_scope(plain, None, Scheme::Http).speaks_tls);
    }
    let listener = "127.0.0.1:443";
    assert!(
        table
            .connection_scope(listener, None, Scheme::Http)
            .speaks_tls
    );
    let connection = table.connection_scope(listener, None, Scheme::Https);
    for (host, certificate_id) in [("a", 1), ("b", 2), ("c", 0)] {
        let tls = table.tls_host(&connection, host.as_bytes(), listener, None);
        assert_eq!(tls.expect("it speaks TLS").certificate_id, certificate_id);
        // Requests get the same settings.
        let scope = table.host_scope(&connection, host.as_bytes());
        let request = Fake {
            host,
            ..Fake::default()
        };
        assert!(table.settings(&scope, &request).speaks_tls);
    }
}

#[test]
fn a_host_inside_an_address_is_decided_for_each_address() {
    let table = table(
        r#"server.name = "out"
           $HTTP["remoteip"] == "10.0.0.0/8" { $HTTP["host"] == "a" { server.name = "in" } }"#,
    );
    let from = |remote| host_from("a", remote);
    assert_eq!(name(&table, from("192.168.0.1")), "out");
    assert_eq!(name(&table, from("10.1.2.3")), "in");
    assert_eq!(name(&table, from("192.168.0.1")), "out");
}

#[test]
fn equal_sets_of_true_blocks_are_one_object() {
    let table = table(r#"$HTTP["url"] =^ "/a" { server.name = "a" }"#);
    assert!(Rc::ptr_eq(
        &settle(&table, &at("/a/1")),
        &settle(&table, &at("/a/2"))
    ));
    assert!(!Rc::ptr_eq(
        &settle(&table, &at("/a/1")),
        &settle(&table, &at("/b"))
    ));
}

#[test]
fn a_flood_of_host_names_does_not_grow_the_table() {
    let table = table(r#"$HTTP["host"] == "a" { server.name = "a" }"#);
    let connection = table.connection_scope("", None, Scheme::Http);
    for number in 0..limits::HOST_SCOPES_MAX * 2 {
        table.host_scope(&connection, number.to_string().as_bytes());
    }
    assert!(connection.hosts.borrow().len() <= limits::HOST_SCOPES_MAX);
}
