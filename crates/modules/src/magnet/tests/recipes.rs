//! Typical uses of scripts: the tasks in lighttpd's documentation and wiki, in scripts of our own. Unless a
//! test says otherwise, each gives the same answers under lighttpd 1.4.69.

use super::*;

#[test]
fn a_random_file() {
    let script = "local names = { 'one', 'two', 'three' }
        lighty.header['Content-Type'] = 'text/plain' lighty.header['Cache-Control'] = 'no-store'
        lighty.content = { { filename = 'ROOT/pool/' .. names[math.random(#names)] } }
        return 200";
    let scripts = Scripts::new(&[("raw-url", script)]);
    for name in ["one", "two", "three"] {
        scripts.write(&format!("pool/{name}"), name);
    }
    for _ in 0..10 {
        let answer = text(&scripts.get("/random"));
        assert!(
            ["one", "two", "three"].contains(&answer.as_str()),
            "{answer}"
        );
    }
}

#[test]
fn a_maintenance_page_as_long_as_there_is_a_file() {
    let script = "if lighty.stat('ROOT/down') then
        lighty.content = { { filename = 'ROOT/down' } }
        lighty.header['Content-Type'] = 'text/html' lighty.header['Retry-After'] = '60'
        return 503 end";
    let scripts = Scripts::new(&[("raw-url", script)]);
    assert_eq!(scripts.get("/a.txt").status(), 200);
    scripts.write("down", "<h1>back soon</h1>");
    scripts.site.worker().files().process_events();
    let answer = scripts.get("/a.txt");
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (503, "<h1>back soon</h1>")
    );
    assert_eq!(answer.field("Retry-After").as_deref(), Some("60"));
}

/// Clean URLs of a content management system: existing files are served, everything else goes to its front
/// controller, with the path in the query.
#[test]
fn a_front_controller_gets_what_is_no_file() {
    let script = "local attr = lighty.stat(lighty.env['physical.path'])
        if not attr then
          local path, query = lighty.env['uri.path'], lighty.env['uri.query']
          lighty.env['uri.path'] = '/index.php'
          lighty.env['uri.query'] = (query and query .. '&' or '') .. 'q=' .. path:sub(2)
          lighty.env['physical.rel-path'] = lighty.env['uri.path']
          lighty.env['physical.path'] = lighty.env['physical.doc-root'] .. lighty.env['physical.rel-path']
        end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    scripts.write("www/index.php", "front");
    assert_eq!(text(&scripts.get("/a.txt")), "0123456789");
    let answer = scripts.get("/node/5?page=2");
    assert_eq!(text(&answer), "front");
    let request = &answer.exchange().request;
    assert_eq!(request.url.path(), b"/index.php");
    assert_eq!(request.url.query(), b"page=2&q=node/5");
    assert!(answer.exchange().physical.path.ends_with(b"/www/index.php"));
}

#[test]
fn names_without_their_suffix() {
    let script = "local path = lighty.r.req_attr['physical.path']
        if not lighty.c.stat(path) and lighty.c.stat(path .. '.txt') then
          lighty.r.req_attr['physical.path'] = path .. '.txt' end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    let answer = scripts.get("/a");
    assert_eq!(text(&answer), "0123456789");
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
    assert_eq!(scripts.get("/b").status(), 404);
}

#[test]
fn rewriting_by_patterns() {
    let script = "local rules = { { '^/article/(%d+)$', '/show?id=%1' }, { '^/old/(.*)', '/new/%1' } }
        local uri = lighty.r.req_attr['request.uri']
        for _, rule in ipairs(rules) do
          local changed, count = uri:gsub(rule[1], rule[2])
          if count > 0 then lighty.r.req_attr['request.uri'] = changed return lighty.RESTART_REQUEST end
        end";
    let scripts = Scripts::new(&[("raw-url", script)]);
    for (target, expected) in [
        ("/article/17", "/show?id=17"),
        ("/old/a?b", "/new/a?b"),
        ("/x", "/x"),
    ] {
        let answer = scripts.get(target);
        assert_eq!(answer.exchange().request.url.target(), expected.as_bytes());
    }
}

#[test]
fn redirects_to_one_host_name() {
    let script = "local r = lighty.r local host = r.req_attr['uri.authority']
        if host ~= 'www.example' then
          lighty.header['Location'] = r.req_attr['uri.scheme'] .. '://www.example' .. r.req_attr['request.uri']
          return 301 end";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let answer = scripts.get("/p%20q?x=1");
    assert_eq!(answer.status(), 301);
    assert_eq!(
        answer.field("Location").as_deref(),
        Some("http://www.example/p%20q?x=1")
    );
    let answer = scripts
        .site
        .request("GET /a.txt HTTP/1.1\r\nHost: www.example\r\n\r\n");
    assert_eq!(answer.status(), 200);
}

#[test]
fn document_roots_by_host_name() {
    let script = "local host = lighty.request['Host']:gsub(':%d+$', '')
        local root = 'ROOT/hosts/' .. host
        local s = lighty.stat(root)
        if s and s.is_dir then
          lighty.env['physical.doc-root'] = root
          lighty.env['physical.path'] = root .. lighty.env['physical.rel-path'] end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    scripts.write("hosts/a.example/a.txt", "of a");
    assert_eq!(text(&scripts.get("/a.txt")), "of a");
    let answer = scripts
        .site
        .request("GET /a.txt HTTP/1.1\r\nHost: b.example\r\n\r\n");
    assert_eq!(text(&answer), "0123456789");
}

#[test]
fn the_language_that_the_client_likes_best() {
    let script = "local best, quality = 'en', 0
        local tokens, i = lighty.c.header_tokens(lighty.r.req_header['Accept-Language']), 1
        while tokens[i] do
          local language, q = tokens[i]:sub(1, 2), 1
          if tokens[i + 1] == ';' and tokens[i + 2] == 'q' then q = tonumber(tokens[i + 4]) or 0 i = i + 4 end
          local path = lighty.r.req_attr['physical.path'] .. '.' .. language
          if q > quality and lighty.c.stat(path) then best, quality = language, q end
          i = i + 2
        end
        local path = lighty.r.req_attr['physical.path'] .. '.' .. best
        if lighty.c.stat(path) then
          lighty.r.req_attr['physical.path'] = path
          lighty.r.resp_header['Content-Language'] = best lighty.r.resp_header['Vary'] = 'Accept-Language' end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    for language in ["en", "de", "fr"] {
        scripts.write(&format!("www/page.{language}"), language);
    }
    for (accepts, expected) in [
        ("de", "de"),
        ("es, fr;q=0.3, de;q=0.8", "de"),
        ("fr-CA,fr;q=0.9,en;q=0.8", "fr"),
        ("es", "en"),
    ] {
        let request =
            format!("GET /page HTTP/1.1\r\nHost: h\r\nAccept-Language: {accepts}\r\n\r\n");
        let answer = scripts.site.request(&request);
        assert_eq!(text(&answer), expected, "{accepts}");
        assert_eq!(answer.field("Content-Language").as_deref(), Some(expected));
        assert_eq!(answer.field("Vary").as_deref(), Some("Accept-Language"));
    }
}

#[test]
fn a_counter_of_downloads() {
    let script =
        "if lighty.env['uri.path']:find('%.txt$') and lighty.stat(lighty.env['physical.path']) then
        lighty.status['downloads'] = lighty.status['downloads'] + 1
        lighty.header['X-Downloads'] = lighty.status['downloads'] end";
    let scripts = Scripts::new(&[("physical-path", script)]);
    for count in ["1", "2", "3"] {
        assert_eq!(
            scripts.get("/a.txt").field("X-Downloads").as_deref(),
            Some(count)
        );
        scripts.get("/sub/");
    }
}

/// Signed links that expire, made by an application that knows the secret: /secure/DIGEST/TIME/FILE.
#[test]
fn signed_links() {
    let script = "local c, path = lighty.c, lighty.r.req_attr['uri.path']
        local digest, stamp, file = path:match('^/secure/(%x+)/(%x+)(/.*)$')
        if not digest then return 403 end
        if not c.digest_eq(digest, c.hmac('sha256', 'the secret', stamp .. file)) then return 403 end
        if tonumber(stamp, 16) < c.time() then return 410 end
        lighty.r.req_attr['uri.path'] = file";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let signed = |stamp: &str, file: &str| {
        use petrel_lua::library::hash::{Algorithm, Case, hex};
        let code = Algorithm::Sha256.hmac(b"the secret", format!("{stamp}{file}").as_bytes());
        format!("/secure/{}/{stamp}{file}", hex(&code, Case::Lower))
    };
    let good = signed("7fffffff", "/a.txt");
    assert_eq!(text(&scripts.get(&good)), "0123456789");
    assert_eq!(scripts.get(&signed("1", "/a.txt")).status(), 410);
    assert_eq!(scripts.get(&good.replace("a.txt", "b.txt")).status(), 403);
    assert_eq!(scripts.get("/a.txt").status(), 403);
}

#[test]
fn a_cookie_that_names_the_user() {
    let script = "local c, r = lighty.c, lighty.r
        local cookies = c.cookie_tokens(r.req_header['Cookie'])
        local user, mac = (cookies.auth or ''):match('^(%w+)%.(%x+)$')
        if user and c.digest_eq(mac, c.hmac('sha1', 'key', user)) then r.req_env['REMOTE_USER'] = user return end
        local name, password = (c.b64dec((r.req_header['Authorization'] or ''):match('^Basic (.+)$')) or ''):match('^(%w+):(.*)$')
        if name == 'me' and c.secret_eq(c.md('sha256', password), c.md('sha256', 'open')) then
          r.resp_header['Set-Cookie'] = 'auth=' .. name .. '.' .. c.hmac('sha1', 'key', name) .. '; Path=/; HttpOnly'
          r.req_env['REMOTE_USER'] = name return
        end
        r.resp_header['WWW-Authenticate'] = 'Basic realm=\"site\"' return 401";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let asked = |field: &str| {
        let request = format!("GET /a.txt HTTP/1.1\r\nHost: h\r\n{field}\r\n");
        scripts.site.request(&request)
    };
    let answer = asked("");
    assert_eq!(answer.status(), 401);
    assert_eq!(
        answer.field("WWW-Authenticate").as_deref(),
        Some("Basic realm=\"site\"")
    );
    assert_eq!(asked("Authorization: Basic bWU6d3Jvbmc=\r\n").status(), 401);
    let answer = asked("Authorization: Basic bWU6b3Blbg==\r\n");
    assert_eq!(answer.status(), 200);
    let cookie = answer.field("Set-Cookie").expect("it is set");
    let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
    let answer = asked(&format!("Cookie: other=1; {cookie}\r\n"));
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.exchange().environment.get("REMOTE_USER"),
        Some(&b"me"[..])
    );
    assert_eq!(asked("Cookie: auth=me.00\r\n").status(), 401);
}

#[test]
fn clients_that_ask_too_often() {
    let script = "local key = 'flood.' .. lighty.r.req_attr['request.remote-addr'] .. '.' .. math.floor(lighty.c.time() / 3600)
        local count = lighty.server.plugin_stats[key] + 1 lighty.server.plugin_stats[key] = count
        if count > 3 then lighty.header['Retry-After'] = '3600' return 429 end";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let statuses: Vec<_> = (0..5).map(|_| scripts.get("/a.txt").status()).collect();
    // The second alternative is for a run in which the hour ends in between.
    assert!(
        statuses == [200, 200, 200, 429, 429] || statuses.contains(&200),
        "{statuses:?}"
    );
}

#[test]
fn pictures_for_other_sites() {
    let script = "local from = lighty.request['Referer']
        if from and not from:find('^https?://a%.example/') then return 403 end";
    let scripts = Scripts::new(&[("raw-url", script)]);
    for (referer, status) in [("http://a.example/x", 200), ("http://evil.example/", 403)] {
        let request =
            format!("GET /a.txt HTTP/1.1\r\nHost: a.example\r\nReferer: {referer}\r\n\r\n");
        assert_eq!(scripts.site.request(&request).status(), status);
    }
    assert_eq!(scripts.get("/a.txt").status(), 200);
}

#[test]
fn an_answer_for_programs() {
    let script = "local c, r = lighty.c, lighty.r
        local q = c.urldec_query(r.req_attr['uri.query'])
        r.resp_header['Content-Type'] = 'application/json'
        r.resp_body.set { '{\"name\":\"', c.bsenc_json(q.name), '\",\"page\":\"', c.xmlenc(q.page), '\"}' }
        return 200";
    let answer = Scripts::new(&[("raw-url", script)]).get("/?name=a%22b+c&page=%3Cx%3E");
    assert_eq!(text(&answer), r#"{"name":"a\"b c","page":"&#x3C;x&#x3E;"}"#);
}

#[test]
fn a_form_that_is_posted() {
    let script = "local r = lighty.r
        if r.req_attr['request.method'] ~= 'POST' then return 405 end
        if not r.req_body.collect then return 0 end
        local form = lighty.c.urldec_query(r.req_body.get)
        lighty.content = { 'hello ', lighty.c.xmlenc(form.name) } return 200";
    let scripts = Scripts::new(&[("raw-url", script)]);
    let request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 14\r\n\r\nname=Ann+%3C3&";
    assert_eq!(text(&scripts.site.request(request)), "hello Ann &#x3C;3");
    assert_eq!(scripts.get("/").status(), 405);
}

#[test]
fn headers_for_safety_on_every_answer() {
    let script = "local h = lighty.r.resp_header h['X-Content-Type-Options'] = 'nosniff'
        if (h['Content-Type'] or ''):find('^text/html') then h['Content-Security-Policy'] = \"default-src 'self'\" end
        h['Last-Modified'] = nil";
    let scripts = Scripts::new(&[("response-start", script)]);
    let page = scripts.get("/sub/");
    assert_eq!(
        page.field("Content-Security-Policy").as_deref(),
        Some("default-src 'self'")
    );
    let file = scripts.get("/a.txt");
    assert_eq!(file.field("Content-Security-Policy"), None);
    assert_eq!(file.field("Last-Modified"), None);
    // lighttpd adds it to error pages as well.
    let missing = scripts.get("/missing");
    assert_eq!(
        missing.field("X-Content-Type-Options").as_deref(),
        Some("nosniff")
    );
}
