//! The same scripts under lighttpd 1.4 and under Petrel. Where Petrel differs on purpose, the test says so
//! and why.

use std::path::Path;

use petrel_tests::{Difference, Differential, Tree, skip};

use crate::magnet::{ANSWER, PATH, URL, directive};

const SCRIPTS: &[(&str, &str, &str)] = &[
    ("plain", URL, "lighty.content = { '123' } return 200"),
    ("typed", URL, "lighty.header['Content-Type'] = 'text/plain' lighty.content = { 'a', 'b' } return 201"),
    ("forbidden", URL, "lighty.content = { 'mine' } return 403"),
    ("nobody", URL, "return 403"),
    ("empty", URL, "return 204"),
    ("moved", URL, "lighty.header['Location'] = '/a.txt' return 302"),
    ("number", URL, "lighty.content = { 1, ' ', 2.5 } return 200"),
    ("string", URL, "return '202'"),
    ("words", URL, "return 'words'"),
    ("fraction", URL, "return 200.5"),
    ("error", URL, "error('x')"),
    ("syntax", URL, "x = = 1"),
    ("readonly", URL, "lighty.r.foo = 1 return 200"),
    ("unknown", URL, "return lighty.r.req_item.foo"),
    ("attribute", URL, "lighty.r.req_attr['foo'] = 'x' return 200"),
    ("rewritten", URL, "lighty.env['uri.path'] = '/a.txt'"),
    ("restarted", URL, "lighty.env['request.uri'] = '/a.txt?x=1' return lighty.RESTART_REQUEST"),
    ("missing", PATH, "lighty.env['physical.path'] = lighty.env['physical.doc-root'] .. '/a.txt'"),
    ("index", PATH, "lighty.env['physical.path'] = lighty.env['physical.doc-root'] .. '/none'"),
    ("parts", PATH, "local f = lighty.env['physical.doc-root'] .. '/a.txt' lighty.content = { { filename = f },
        '-', { filename = f, offset = 2 }, '-', { filename = f, offset = 2, length = 4 }, '-', { filename = f, length = 3 } }
        return 200"),
    ("body", PATH, "local f = lighty.env['physical.doc-root'] .. '/a.txt' lighty.r.resp_body.set({ { filename = f },
        '-', { filename = f, offset = 2, length = 4 } }) lighty.r.resp_body.add('+') return 200"),
    ("both", URL, "lighty.r.resp_body.set('one') lighty.content = { 'two' } return 200"),
    ("new", ANSWER, "lighty.content = { 'new' } return 200"),
    ("kept", ANSWER, "lighty.content = { 'not taken' }"),
    ("gone", ANSWER, "return 410"),
    ("every", PATH, "local o = {} for _, name in ipairs { 'uri.path', 'uri.path-raw', 'uri.scheme', 'uri.authority',
        'uri.query', 'request.method', 'request.uri', 'request.orig-uri', 'request.path-info', 'request.remote-ip',
        'request.protocol', 'request.server-name', 'physical.rel-path', 'request.stage', 'foo' } do
        o[#o + 1] = name .. '=' .. tostring(lighty.r.req_attr[name]) .. tostring(lighty.env[name]) .. '\\n' end
        lighty.content = o return 200"),
    ("fields", URL, "local o, h = {}, lighty.r.req_header h['X-New'] = 'n' h['X-Sent'] = nil
        for _, name in ipairs { 'host', 'X-Sent', 'X-New', 'x-kept', 'X-None' } do
        o[#o + 1] = name .. '=' .. tostring(h[name]) .. tostring(lighty.request[name]) .. '\\n' end
        lighty.content = o return 200"),
    ("codecs", URL, "local c, o = lighty.c, {} local function add(v) o[#o + 1] = tostring(v) .. '\\n' end
        local all = '' for i = 1, 126 do all = all .. string.char(i) end
        for _, name in ipairs { 'xmlenc', 'urlenc', 'b64enc', 'b64urlenc', 'hexenc', 'quotedenc' } do add(c[name](all)) add(c[name](nil)) end
        for _, s in ipairs { 'YWJj', 'YWI', 'Y', '-_', '=', '' } do add(c.b64dec(s)) add(c.b64urldec(s)) end
        for _, s in ipairs { 'a%20b+%2f', '%zz%', '%00%0a' } do add(c.urldec(s)) end
        for _, s in ipairs { '/a/../b', 'a/../b', '/a//b/.', '..', '/a/b/' } do add(c.fspath_simplify(s)) end
        for _, s in ipairs { '/a/../b?c d', '/%41 b', '/x?y#z', '/a//b', 'a/b' } do add(c.urlenc_normalize(s)) end
        for _, s in ipairs { '\"a\\\\\"b\"', 'x', '\"x' } do add(c.quoteddec(s)) end
        for _, s in ipairs { 'a\\\\nb', '\\\\x41', '\\\\q' } do add(c.bsdec(s)) end
        for _, a in ipairs { 'md5', 'sha1', 'sha256', 'sha512', 'none' } do add(c.md(a, all)) end
        for _, a in ipairs { 'sha1', 'sha256', 'sha512', 'none' } do add(c.hmac(a, 'key', all)) end
        add(c.digest_eq('aB', 'Ab')) add(c.digest_eq('aa', 'ab')) add(c.secret_eq('a', 'a')) add(c.secret_eq('a', 'A'))
        add(table.concat(c.header_tokens('a;q=0.5, \"b c\"; d'), '|'))
        local k = c.cookie_tokens('a=1; b=\"x\"; c') add(k.a .. k.b .. k.c)
        local q = c.urldec_query('a=1&b=+%41&a=2') add(q.a .. q.b)
        lighty.content = o return 200"),
    ("stat", PATH, "local o, r = {}, lighty.env['physical.doc-root']
        for _, path in ipairs { r .. '/a.txt', r, r .. '/none', '/dev/null' } do local s = lighty.c.stat(path)
          if s then for _, name in ipairs { 'is_file', 'is_dir', 'is_char', 'is_link', 'is_fifo', 'st_mode', 'st_size', 'st_mtime',
            'st_uid', 'st_gid', 'st_ino', 'content-type' } do o[#o + 1] = tostring(name == 'st_ino' and s[name] > 0 or s[name]) .. ' ' end
          else o[#o + 1] = 'nil' end end
        lighty.content = o return 200"),
    ("counters", URL, "local p = lighty.server.plugin_stats p['t.x'] = 5 p['t.x'] = p['t.x'] + 1
        lighty.content = { p['t.x'], lighty.status['t.x'], p['t.none'] } return 200"),
];

fn site(tree: &Tree) {
    tree.write("www/a.txt", "0123456789")
        .modified("www/a.txt", 1_000_000_000)
        .modified("www", 1_000_000_000);
    for (name, _, script) in SCRIPTS {
        tree.write(&format!("{name}.lua"), script);
    }
}

/// The path of lighttpd's mod_magnet in Debian's package lighttpd-modules-lua.
pub(crate) const MOD_MAGNET: &str = "/usr/lib/lighttpd/mod_magnet.so";

fn start() -> Option<Differential> {
    if !Path::new(MOD_MAGNET).exists() {
        skip(
            "a comparison with lighttpd",
            "its mod_magnet is not installed",
        );
        return None;
    }
    let mut config = "server.modules = (\"mod_indexfile\", \"mod_magnet\", \"mod_staticfile\")\n\
        mimetype.assign = (\".txt\" => \"text/plain\")\n"
        .to_owned();
    for (name, hook, _) in SCRIPTS {
        config += &directive(name, hook);
        config.push('\n');
    }
    Differential::start(&config, site)
}

/// Scripts that make the server answer with its own page.
const PAGES: &[&str] = &[
    "nobody",
    "words",
    "fraction",
    "error",
    "syntax",
    "readonly",
    "unknown",
    "attribute",
    "index",
    "kept",
    "gone",
    "forbidden",
    "new",
];

/// A script that adds to a page of lighttpd's own changes its text, which differs from Petrel's.
#[test]
fn scripts_give_the_same_answers() {
    let Some(mut both) = start() else { return };
    for (name, _, _) in SCRIPTS {
        let except = match PAGES.contains(name) {
            true => Difference::Page,
            false => Difference::None,
        };
        let target = format!("/{name}/x%20y?q=1");
        let fields = [("X-Sent", "s"), ("X-Kept", "k")];
        both.request("GET", &target, &fields, except);
    }
    both.expect_no_difference();
}
