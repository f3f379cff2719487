//! The order of `server.modules`: every order of the modules whose order counts, in both servers.

use super::compare::notes;
use super::requests::Request;
use super::{at_the_same_time, site};
use petrel_tests::{Backend, Differential, Speaks, Tree};

/// Every order of `modules`.
fn orders(modules: &[&'static str]) -> Vec<Vec<&'static str>> {
    if modules.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, module) in modules.iter().enumerate() {
        let others = [&modules[..at], &modules[at + 1..]].concat();
        for mut order in orders(&others) {
            order.insert(0, module);
            all.push(order);
        }
    }
    all
}

/// Asks both servers for `targets` under `config` with each order of `modules`, and expects the same answers.
fn expect_no_difference(modules: &[&'static str], config: &str, targets: &[String]) {
    let make = |tree: &Tree| {
        site::make(tree);
        tree.write("answers.lua", ANSWERS);
        tree.write("tells.lua", TELLS);
    };
    let found = at_the_same_time(&orders(modules), |order| {
        let list: Vec<_> = order.iter().map(|name| format!("\"{name}\"")).collect();
        let config = format!("server.modules = ( {} )\n{config}", list.join(", "));
        let Some(both) = Differential::start(&config, make) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for target in targets {
            let request = Request::get([127, 0, 0, 1].into(), "a.test", target);
            let [ours, theirs] = both.servers().map(|server| request.send_to(server));
            for note in notes(&ours, &theirs) {
                found.push(format!("{}: {target}: {note}", order.join(" ")));
            }
        }
        found
    });
    assert!(found.is_empty(), "{}:\n{}", found.len(), found.join("\n"));
}

/// Answers where the query has an `s`, and leads `/led` to a file that is guarded.
const ANSWERS: &str = "local attr = lighty.env
    if (attr['uri.query'] or ''):find('s') then
        lighty.header['X-Script'] = attr['uri.path']
        lighty.content = { 'from the script' }
        return 200
    end
    if attr['uri.path'] == '/led.txt' then attr['uri.path'] = '/a.txt' end";

/// Which path the modules before have made.
const TELLS: &str = "if (lighty.env['uri.query'] or ''):find('s') then
        lighty.content = { lighty.env['physical.path'] }
        return 200
    end";

/// Starts both servers with each of 120 orders, which takes half a minute.
#[test]
fn rules_redirects_and_scripts_count_in_every_order() {
    let config = "auth.backend = \"plain\"
        auth.backend.plain.userfile = var.dir + \"/users\"
        server.modules += ( \"mod_authn_file\" )
        auth.require = ( \"/dir/\" => ( \"method\" => \"basic\", \"realm\" => \"Dir\", \"require\" => \"valid-user\" ) )
        server.feature-flags += ( \"auth.delay-invalid-creds\" => \"disable\" )
        url.access-deny = ( \".inc\" )
        url.redirect = ( \"^(/.*)\\?.*r\" => \"/moved$1\" )
        url.rewrite-once = ( \"^/w(/.*)\" => \"$1\" )
        magnet.attract-raw-url-to = ( var.dir + \"/answers.lua\" )
        mimetype.assign = ( \".txt\" => \"text/plain\" )";
    let mut targets = vec!["/led.txt".to_owned(), "/dir/x.txt?s".to_owned()];
    // Each is for two modules or more, or for one of those that guard.
    for path in ["/a.txt", "/dir/x.txt", "/secret.inc", "/dir/x.inc"] {
        for query in ["?r", "?s", "?r&s", "?q"] {
            if path != "/a.txt" || query == "?r&s" {
                targets.push(format!("/w{path}{query}"));
            }
        }
    }
    let modules = [
        "mod_rewrite",
        "mod_access",
        "mod_auth",
        "mod_redirect",
        "mod_magnet",
    ];
    expect_no_difference(&modules, config, &targets);
}

/// Starts both servers with each of 24 orders, which takes some seconds.
#[test]
fn what_makes_the_path_counts_in_every_order() {
    let config = "alias.url = ( \"/there/\" => var.dir + \"/elsewhere/\" )
        userdir.path = \"public_html\"
        userdir.basepath = var.dir + \"/homes/\"
        url.rewrite-if-not-file = ( \"^/(?:there|~jan|none)/(none[^?]*)(\\?.*)?\" => \"/there/f.txt$2\" )
        magnet.attract-physical-path-to = ( var.dir + \"/tells.lua\" )
        mimetype.assign = ( \".txt\" => \"text/plain\" )";
    let mut targets = Vec::new();
    for path in [
        "/a.txt",
        "/there/f.txt",
        "/there/none.txt",
        "/~jan/a.txt",
        "/~jan/none.txt",
        "/none/none.txt",
    ] {
        for query in ["", "?s"] {
            targets.push(format!("{path}{query}"));
        }
    }
    let modules = ["mod_alias", "mod_userdir", "mod_rewrite", "mod_magnet"];
    expect_no_difference(&modules, config, &targets);
}

/// A gateway that needs no file claims a request at its place, and answers when all modules have had their say.
#[test]
fn the_gateway_that_is_listed_first_has_the_url() {
    let fastcgi = Backend::start(Speaks::FastCgi, |exchange| exchange.say("by FastCGI"));
    let scgi = Backend::start(Speaks::Scgi, |exchange| exchange.say("by SCGI"));
    let config = format!(
        "fastcgi.server = ( \"/\" => (( {}, \"check-local\" => \"disable\" )) )
        scgi.server = ( \"/\" => (( {}, \"check-local\" => \"disable\" )) )
        url.redirect = ( \"^/moved\" => \"/there\" )",
        fastcgi.host(),
        scgi.host()
    );
    let modules = ["mod_fastcgi", "mod_redirect", "mod_scgi"];
    let targets = ["/x".to_owned(), "/moved".to_owned()];
    expect_no_difference(&modules, &config, &targets);
}

/// mod_extforward and mod_rewrite are before all others, in their own order.
#[test]
fn a_rewrite_before_extforward_sees_the_address_of_the_proxy() {
    let config = "extforward.forwarder = ( \"127.0.0.1\" => \"trust\" )
        $HTTP[\"remoteip\"] == \"192.0.2.7\" { url.rewrite-once = ( \"^/dir/x\" => \"/a\" ) }
        mimetype.assign = ( \".txt\" => \"text/plain\" )";
    let found = at_the_same_time(&orders(&["mod_extforward", "mod_rewrite"]), |order| {
        let config = format!(
            "server.modules = ( \"{}\" )\n{config}",
            order.join("\", \"")
        );
        let Some(both) = Differential::start(&config, site::make) else {
            return Vec::new();
        };
        let mut request = Request::get([127, 0, 0, 1].into(), "a.test", "/dir/x.txt");
        request.field = Some("X-Forwarded-For: 192.0.2.7".to_owned());
        let [ours, theirs] = both.servers().map(|server| request.send_to(server));
        notes(&ours, &theirs)
    });
    assert!(found.is_empty(), "{found:?}");
}

/// A list that names only mod_authn_file has mod_auth in front.
#[test]
fn mod_auth_is_put_in_front_where_only_a_part_of_it_is_listed() {
    let config = "auth.backend = \"plain\"
        auth.backend.plain.userfile = var.dir + \"/users\"
        auth.require = ( \"/dir/\" => ( \"method\" => \"basic\", \"realm\" => \"Dir\", \"require\" => \"valid-user\" ) )
        url.redirect = ( \"^/dir/\" => \"/moved\" )
        mimetype.assign = ( \".txt\" => \"text/plain\" )";
    let targets = ["/a.txt".to_owned(), "/dir/x.txt".to_owned()];
    expect_no_difference(&["mod_redirect", "mod_authn_file"], config, &targets);
    let config = format!("{config}\nserver.modules += ( \"mod_auth\" )");
    expect_no_difference(&["mod_redirect", "mod_authn_file"], &config, &targets);
}
