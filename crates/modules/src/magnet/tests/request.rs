//! What scripts see and change of a request.

use super::*;
use crate::{access, redirect};

#[test]
fn attributes_are_those_of_lighttpd() {
    let script = "for name, value in pairs(lighty.r.req_attr) do \
        if name ~= 'request.id' then o[#o + 1] = name .. '=' .. tostring(value) end end";
    let expected = "physical.path=nil|physical.rel-path=nil|physical.doc-root=nil|physical.basedir=nil|uri.path=/x|\
        uri.path-raw=/x|uri.scheme=http|uri.authority=a.example|uri.query=q=1&r=2|request.method=GET|\
        request.uri=/x?q=1&r=2|request.orig-uri=/x?q=1&r=2|request.path-info=nil|request.remote-ip=127.0.0.1|\
        request.remote-addr=127.0.0.1|request.remote-port=40000|request.server-addr=127.0.0.1|request.server-port=80|\
        request.protocol=HTTP/1.1|request.server-name=a.example|request.stage=handle-req";
    assert_eq!(shown(script), expected);
    let old = script.replace("lighty.r.req_attr", "lighty.env");
    assert_eq!(shown(&old), expected);
}

#[test]
fn the_id_of_the_request_is_read_and_not_changed() {
    let script = "local a, id = lighty.r.req_attr, lighty.r.req_attr['request.id'] \
        a['request.id'] = 'x' o[1] = tostring(#id == 16 and id == a['request.id'] and not id:find('%X'))";
    assert_eq!(shown(script), "true");
}

#[test]
fn the_physical_path_is_known_before_it_is_looked_up() {
    let script = "local a, o = lighty.r.req_attr, {}
        for _, name in ipairs { 'path', 'rel-path', 'doc-root', 'basedir' } do
          local root = ('ROOT'):gsub('%p', '%%%0')
          o[#o + 1] = a['physical.' .. name]:gsub('^' .. root, '') .. '|' end
        lighty.content = o return 200";
    let answer = Scripts::new(&[("physical-path", script)]).get("/walk/..//no/%41");
    assert_eq!(text(&answer), "/www/no/A|/no/A|/www|/www|");
}

#[test]
fn attributes_that_are_written_are_read_again() {
    for (name, value, read) in [
        ("physical.path", "/x", "/x"),
        ("physical.rel-path", "/x", "/x"),
        ("physical.doc-root", "/x", "/x"),
        ("uri.path", "/x y", "/x y"),
        ("uri.path-raw", "/r%20w", "/r%20w"),
        ("uri.scheme", "https", "https"),
        ("uri.authority", "au.th", "au.th"),
        ("uri.query", "n=w", "n=w"),
        ("request.uri", "/nu%20x?y", "/nu%20x?y"),
        ("request.orig-uri", "/oo", "/oo"),
        ("request.path-info", "/pi", "/pi"),
        ("request.remote-ip", "192.0.2.5", "192.0.2.5"),
        ("request.remote-addr", "2001:db8::1", "2001:db8::1"),
        ("request.remote-port", "5", "5"),
        // These cannot be changed: writing them does nothing.
        ("request.method", "POST", "GET"),
        ("request.server-port", "6", "80"),
        ("request.protocol", "HTTP/1.0", "HTTP/1.1"),
        ("request.server-name", "other", "a.example"),
        ("request.stage", "x", "handle-req"),
        // Sanitized, so that a script cannot be made to leave the document root.
        ("uri.path", "/../../etc/passwd", "/etc/passwd"),
        ("uri.path", "no-slash", "/no-slash"),
    ] {
        let script = format!(
            "local a = lighty.r.req_attr a['{name}'] = '{value}' o[1] = tostring(a['{name}'])"
        );
        assert_eq!(shown(&script), read, "{name}");
    }
}

#[test]
fn attributes_that_cannot_be_are_errors() {
    for (name, value) in [
        ("foo", "'x'"),
        ("uri.authority", "'a b'"),
        ("uri.scheme", "'gopher'"),
        ("request.remote-ip", "'x'"),
        ("physical.path", "'relative'"),
        ("physical.path", "'/a\\0b'"),
        ("uri.query", "{}"),
    ] {
        let script =
            format!("o[1] = tostring(pcall(function() lighty.r.req_attr['{name}'] = {value} end))");
        assert_eq!(shown(&script), "false", "{name} = {value}");
    }
    assert_eq!(
        shown("o[1] = tostring(lighty.env['foo']) .. tostring(lighty.env[5])"),
        "nilnil"
    );
}

#[test]
fn the_target_counts_when_the_request_begins_again() {
    let script = "lighty.r.req_attr['request.uri'] = 'a.txt'
        o[1] = lighty.r.req_attr['request.uri'] o[2] = lighty.r.req_attr['uri.path']";
    assert_eq!(shown(script), "a.txt|/x");
    let written = |then: &str| {
        let script = format!(
            "if lighty.r.req_attr['request.uri'] ~= '/a.txt?q' then
             lighty.r.req_attr['request.uri'] = '/a.txt?q' {then} end"
        );
        Scripts::new(&[("raw-url", &script)]).get("/missing")
    };
    assert_eq!(written("").status(), 404);
    assert_eq!(
        text(&written("return lighty.RESTART_REQUEST")),
        "0123456789"
    );
    let script = "lighty.r.req_attr['request.uri'] = 'a.txt' return lighty.RESTART_REQUEST";
    assert_eq!(run(script).status(), 400);
}

/// Applications get no REDIRECT_URI in this case.
#[test]
fn the_target_stays_when_a_query_is_written() {
    let script = "local a = lighty.env a['uri.query'] = 'q=x' a['uri.path'] = '/a.txt'
        o[1] = a['request.uri'] o[2] = a['uri.query']";
    assert_eq!(shown(script), "/x?q=1&r=2|q=x");
}

#[test]
fn a_whole_path_as_path_info_names_the_program_as_well() {
    let script = "local a = lighty.r.req_attr a['request.path-info'] = a['uri.path']";
    let scripts = Scripts::new(&[("physical-path", script)]);
    let answer = scripts.get("/a.txt");
    let told = crate::gateway::environment::script_name_and_path_info(answer.exchange());
    assert_eq!(told, (&b"/a.txt"[..], &b"/a.txt"[..]));
}

#[test]
fn a_path_outside_the_root_leaves_the_base_directory_and_has_path_info() {
    let script = "local a = lighty.r.req_attr
        local before, root = a['physical.basedir'], a['physical.doc-root']
        a['physical.path'] = 'ROOT/elsewhere/b.txt' .. lighty.r.req_attr['uri.path']
        lighty.r.resp_header['X-Same'] = tostring(before == root and a['physical.basedir'] == root)";
    let scripts = Scripts::new(&[("physical-path", script)]);
    scripts.write("elsewhere/b.txt", "elsewhere");
    let answer = scripts.get("/info");
    assert_eq!(answer.field("X-Same").as_deref(), Some("true"));
    assert_eq!(text(&answer), "elsewhere");
    assert_eq!(answer.exchange().physical.path_info, b"/info");
    assert!(
        answer
            .exchange()
            .physical
            .path
            .ends_with(b"/elsewhere/b.txt")
    );
}

#[test]
fn a_path_that_is_written_is_what_is_served() {
    let script = "local a = lighty.env if not lighty.stat(a['physical.path']) then
        a['uri.path'] = '/a.txt' a['physical.rel-path'] = a['uri.path']
        a['physical.path'] = a['physical.doc-root'] .. a['physical.rel-path'] end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    for path in ["/missing", "/deep/er", "/a.txt"] {
        assert_eq!(text(&scripts.get(path)), "0123456789", "{path}");
    }
    assert_eq!(text(&scripts.get("/sub/")), "index");
}

#[test]
fn fields_are_read_written_and_walked_through() {
    let script = "local h = lighty.request o[1] = h['host'] o[2] = tostring(h['X-None'])
        h['X-New'] = 'v' h['x-new'] = 'v2' h['Host'] = 'new.example' h['X-Num'] = 5
        h['Content-Length'] = '5' h['Transfer-Encoding'] = 'x' h['Upgrade'] = 'x'
        for name, value in pairs(lighty.r.req_header) do o[#o + 1] = name:lower() .. '=' .. value end
        h['X-New'] = nil o[#o + 1] = tostring(h['X-New']) .. lighty.env['uri.authority']";
    assert_eq!(
        shown(script),
        "a.example|nil|host=new.example|x-new=v2|x-num=5|nilnew.example"
    );
    for value in ["{}", "true", "function() end"] {
        let script =
            format!("o[1] = tostring(pcall(function() lighty.r.req_header['X'] = {value} end))");
        assert_eq!(shown(&script), "false");
    }
}

#[test]
fn the_environment_reaches_the_module_that_answers() {
    let script = "local e = lighty.req_env e['A'] = '1' e['B'] = 2 e['lower'] = 'x'
        for name, value in pairs(lighty.r.req_env) do o[#o + 1] = name .. '=' .. value end
        o[#o + 1] = e['LOWER'] .. tostring(e['none'])";
    assert_eq!(shown(script), "A=1|B=2|lower=x|xnil");
    let script = "local e = lighty.r.req_env e['A'] = '1' e['B'] = '2' e['a'] = nil e['C'] = nil e['b'] = '3'
        for name, value in pairs(e) do o[#o + 1] = name .. '=' .. value end";
    assert_eq!(
        shown(script),
        "b=3",
        "nil removes, and letter case does not matter"
    );
    let answer = run("lighty.r.req_env['REMOTE_USER'] = 'me'");
    assert_eq!(
        answer.exchange().environment.get("REMOTE_USER"),
        Some(&b"me"[..])
    );
}

#[test]
fn items_are_numbers_about_the_request() {
    let script = "local i = lighty.r.req_item
        for name, value in pairs(i) do if name ~= 'start_time' then o[#o + 1] = name .. '=' .. value end end
        local seconds, nanoseconds = i.start_time() o[#o + 1] = tostring(math.abs(os.time() - seconds) < 60 and nanoseconds < 1e9)
        o[#o + 1] = tostring(pcall(function() return i.foo end))
        o[#o + 1] = tostring(pcall(function() i.bytes_in = 1 end))
        i.keep_alive = 0 o[#o + 1] = i.keep_alive";
    assert_eq!(
        shown(script),
        "bytes_in=44|bytes_out=0|stream_id=0|req_count=1|keep_alive=1|http_status=0|req_header_len=44|\
         resp_header_len=0|true|false|false|0"
    );
}

#[test]
fn a_connection_can_be_ended_before_another_module_answers() {
    let scripts = Scripts::new(&[("raw-url", "lighty.r.req_item.keep_alive = 0")]);
    assert!(scripts.get("/a.txt").exchange().response.close);
    let scripts = Scripts::new(&[("raw-url", "lighty.r.req_item.keep_alive = 1")]);
    assert!(!scripts.get("/a.txt").exchange().response.close);
}

#[test]
fn the_body_of_a_request_is_collected_and_changed() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local b, o = lighty.r.req_body, {}
         o[1] = tostring(b.len) o[2] = tostring(b.collect) o[3] = tostring(b.get) o[4] = tostring(b.unspecified_len)
         b.add('+') o[5] = b.get b.set({ 'new', '!' }) o[6] = b.get .. b.len
         o[7] = tostring(pcall(function() return b.foo end)) o[8] = tostring(pcall(function() b.len = 5 end))
         lighty.content = { table.concat(o, '|') } return 200",
    )]);
    let post = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n0123456789";
    let answer = scripts.site.request(post);
    assert_eq!(
        text(&answer),
        "10|true|0123456789|false|0123456789+|new!4|false|false"
    );
    let chunked = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nabc";
    let answer = scripts.site.request(chunked);
    assert_eq!(text(&answer), "nil|true|abc|true|abc+|new!4|false|false");
    let answer = scripts.get("/");
    assert_eq!(text(&answer), "0|true|nil|false|+|new!4|false|false");
}

#[tokio::test(flavor = "local")]
async fn a_body_that_went_to_a_file_is_added_to() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local b = lighty.r.req_body
         b.add('+') lighty.content = { #b.get, b.get:sub(-2) } return 200",
    )]);
    let length = petrel_engine::limits::SPOOL_LARGE_BYTES_MAX + 1;
    let body = "x".repeat(length);
    let head = format!("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    let request = format!("{head}{body}");
    let answer = scripts.site.request_async(&request).await;
    assert_eq!(text(&answer), format!("{}x+", length + 1));
}

#[test]
fn the_tables_of_lighty_are_what_lighttpd_has() {
    let script = "local function names(t) local n = {} for name in pairs(t) do n[#n + 1] = tostring(name) end
          table.sort(n) return table.concat(n, ' ') end
        o[1] = names(lighty) o[2] = names(lighty.r) o[3] = names(lighty.server) o[4] = names(lighty.c)
        o[5] = tostring(lighty.RESTART_REQUEST) .. tostring(lighty.unknown) .. tostring(lighty.r.unknown)";
    assert_eq!(
        shown(script),
        "RESTART_REQUEST c env r req_env request server stat status|\
         req_attr req_body req_env req_header req_item resp_body resp_header|\
         irequests plugin_stats stats|\
         b64dec b64enc b64urldec b64urlenc bsdec bsenc bsenc_json cookie_tokens digest_eq fspath_simplify \
         header_tokens hexdec hexenc hmac hrtime md quoteddec quotedenc rand readdir readlink secret_eq stat time \
         urldec urldec_query urlenc urlenc_normalize urlenc_query xmlenc|\
         99nilnil"
    );
}

/// Also where the other host has fewer hooks in the phase than have run.
#[test]
fn the_redirects_and_rules_of_a_host_that_a_script_chooses_count() {
    let tree = Tree::new(&[
        ("a.txt", "a"),
        (
            "host.lua",
            "local r = lighty.r r.req_attr['uri.authority'] = r.req_header['X-Host']",
        ),
    ]);
    let config =
        "$REQUEST_HEADER[\"X-Host\"] != \"\" { magnet.attract-raw-url-to = ( \"ROOT/host.lua\" ) }
        $HTTP[\"host\"] == \"moved.example\" { url.redirect = ( \"\" => \"/there\" ) }
        $HTTP[\"host\"] == \"closed.example\" { url.access-deny = ( \"\" ) }";
    let modules = [
        &access::MODULE,
        &redirect::MODULE,
        &lua::MODULE,
        &super::super::MODULE,
        &static_file::MODULE,
    ];
    let site = Site::new(&tree.config(config), &modules);
    for (host, status) in [
        ("a.example", 200),
        ("moved.example", 301),
        ("closed.example", 403),
    ] {
        let head = format!("GET /a.txt HTTP/1.1\r\nHost: a.example\r\nX-Host: {host}\r\n\r\n");
        assert_eq!(site.request(&head).status(), status, "{host}");
        let head = format!("GET /a.txt HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(site.request(&head).status(), status, "{host}");
    }
}
