//! `lighty.c`, `lighty.stat` and `lighty.server`.

use super::*;

/// The expected HMAC with MD5 is that of RFC 2104; lighttpd 1.4.69 computes another value.
#[test]
fn digests_are_upper_case_hex() {
    let script = "local c = lighty.c o[1] = c.md('md5', 'abc') o[2] = c.md('sha1', 'abc') o[3] = c.hmac('md5', 'key', 'abc')
        o[4] = c.hmac('sha256', 'key', 'abc') o[5] = tostring(c.md('sha999', 'abc')) o[6] = c.md('md5', nil)
        o[7] = #c.md('sha512', '')  o[8] = tostring(pcall(c.md, 'md5')) o[9] = tostring(pcall(c.hmac, 'md5', 'k'))";
    assert_eq!(
        shown(script),
        "900150983CD24FB0D6963F7D28E17F72|A9993E364706816ABA3E25717850C26C9CD0D89D|D2FE98063F876B03193AFB49B4979591|\
         9C196E32DC0175F86F4B1CB89289D6619DE6BEE699E4C378E68309ED97A1A6AB|nil|D41D8CD98F00B204E9800998ECF8427E|128|\
         false|false"
    );
    let script = "local c = lighty.c local function t(...) o[#o + 1] = tostring(c.digest_eq(...)) end
        t('ABCD', 'abcd') t('ABCD', 'abce') t('ABCDEF', 'abcd') t('xyz!', 'xyz!') t('', '') t(nil, '')
        o[#o + 1] = tostring(c.secret_eq('A', 'A')) .. tostring(c.secret_eq('A', 'a')) .. tostring(c.secret_eq(nil, nil))";
    assert_eq!(
        shown(script),
        "true|false|false|false|true|true|truefalsetrue"
    );
}

#[test]
fn codecs_are_there_under_their_names() {
    let script = "local c = lighty.c o[1] = c.b64enc('ab') o[2] = c.b64dec('YWI=') o[3] = c.b64urlenc('\\251\\255')
        o[4] = c.hexenc('a\\255') o[5] = c.hexdec('6A6b') o[6] = tostring(c.hexdec('6')) o[7] = c.xmlenc('<&>')
        o[8] = c.urlenc('a b/c') o[9] = c.urldec('a%20b') o[10] = c.urlenc_normalize('/a/../b c') o[11] = c.fspath_simplify('/a/../b')
        o[12] = c.quotedenc('a\"') o[13] = c.quoteddec('\"a\"') o[14] = c.bsenc('\\n') o[15] = c.bsdec('\\\\n') == '\\n' and 'nl' or '?'
        o[16] = c.bsenc_json('\\1') o[17] = c.urlenc_query({ a = '1 2' }) o[18] = c.xmlenc(nil) o[19] = c.hexenc(12)";
    assert_eq!(
        shown(script),
        "YWI|ab|-_8|61FF|jk|nil|&#x3C;&#x26;&#x3E;|a%20b/c|a b|/b%20c|/b|\"a\\\"\"|a|\\n|nl|\\u0001|a=1+2||3132"
    );
}

#[test]
fn fields_and_queries_are_taken_apart() {
    let script = "local c = lighty.c local cookies = c.cookie_tokens('a=1; b=\"x y\"; a=2')
        o[1] = cookies.a o[2] = cookies.b o[3] = tostring(next(c.cookie_tokens(nil)))
        o[4] = table.concat(c.header_tokens('gzip, br;q=0.5'), ' ') o[5] = #c.header_tokens('')
        local q = c.urldec_query('a=1&b=%41+b&a=3&c') o[6] = q.a .. q.b .. '[' .. q.c .. ']' .. tostring(q.d)";
    assert_eq!(
        shown(script),
        "2|\"x y\"|nil|gzip , br ; q = 0.5|0|3A b[]nil"
    );
}

#[test]
fn times_and_random_numbers_are_numbers() {
    let script = "local c = lighty.c local s, ns = c.hrtime() o[1] = tostring(math.abs(c.time() - os.time()) <= 1)
        o[2] = tostring(math.abs(s - c.time()) <= 1 and ns >= 0 and ns < 1e9)
        local r = c.rand() o[3] = tostring(r >= 0 and r == math.floor(r) and r ~= c.rand())";
    assert_eq!(shown(script), "true|true|true");
}

#[tokio::test(flavor = "local")]
async fn directories_are_read_and_links_followed_off_the_loop() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local o = {} for name in lighty.c.readdir('ROOT/www') do o[#o + 1] = name end table.sort(o)
         o[#o + 1] = tostring(lighty.c.readdir('/nonexistent')) o[#o + 1] = tostring(lighty.c.readlink('ROOT/www/link'))
         o[#o + 1] = tostring(lighty.c.readlink('/nonexistent'))
         lighty.content = { table.concat(o, '|') } return 200",
    )]);
    std::os::unix::fs::symlink("a.txt", scripts.tree.path("www/link")).expect("a link");
    let answer = scripts.site.get_async("/").await;
    assert_eq!(text(&answer), "a.txt|link|sub|nil|a.txt|nil");
}

#[test]
fn a_stat_object_has_what_stat_tells_and_more() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local o, s = {}, lighty.c.stat('ROOT/www/a.txt') local d = lighty.stat('ROOT/www')
         o[1] = tostring(s.is_file) .. tostring(s.is_dir) .. tostring(s.is_link) .. tostring(d.is_dir) .. tostring(d.is_file)
         o[2] = s.st_size o[3] = tostring(s.st_mode >= 32768) o[4] = s['content-type'] o[5] = tostring(d['content-type'])
         local seconds, nanoseconds = s.st_mtim() o[6] = tostring(seconds == s.st_mtime and nanoseconds < 1e9)
         o[7] = tostring(s.st_uid >= 0 and s.st_gid >= 0 and s.st_atime > 0 and s.st_ctime >= s.st_mtime)
         o[8] = tostring((s.st_ctim()) == s.st_ctime) o[9] = tostring(s.etag:find('^\".+\"$') ~= nil)
         o[10] = tostring(pcall(function() return s.foo end)) o[11] = tostring(pcall(function() s.x = 1 end))
         o[12] = tostring(lighty.stat('ROOT/none')) .. tostring(lighty.stat()) .. tostring(lighty.stat('a\\0b'))
         o[13] = tostring(lighty.stat('/dev/null').is_char) .. tostring(pcall(lighty.stat, {}))
         local n = 0 for name in pairs(s) do n = n + 1 end o[14] = n
         lighty.content = { table.concat(o, '|') } return 200",
    )]);
    assert_eq!(
        text(&scripts.get("/")),
        "truefalsefalsetruefalse|10|true|text/plain|nil|true|true|true|true|false|false|nilnilnil|truefalse|20"
    );
}

#[test]
fn a_file_is_sent_as_static_files_are() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local s = lighty.c.stat('ROOT/www/a.txt') return s['http-response-send-file']",
    )]);
    let answer = scripts.get("/");
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (200, "0123456789")
    );
    let etag = answer.field("ETag").expect("one is made");
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nIf-None-Match: {etag}\r\n\r\n");
    assert_eq!(scripts.site.request(&request).status(), 304);
    let answer = scripts
        .site
        .request("GET / HTTP/1.1\r\nHost: h\r\nRange: bytes=2-3\r\n\r\n");
    assert_eq!((answer.status(), text(&answer).as_str()), (206, "23"));
}

#[test]
fn counters_are_shared_by_all_scripts() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local p, o = lighty.server.plugin_stats, {} p['site.hits'] = p['site.hits'] + 1 lighty.status['other'] = 7.9
         o[1] = p['site.hits'] o[2] = lighty.status['other'] o[3] = tostring(pcall(function() p.x = 'y' end))
         for name, value in pairs(lighty.status) do
           if not name:find('^server%.io%.') then o[#o + 1] = name .. '=' .. value end
         end
         lighty.content = { table.concat(o, '|') } return 200",
    )]);
    assert_eq!(text(&scripts.get("/")), "1|7|false|other=7|site.hits=1");
    assert_eq!(text(&scripts.get("/")), "2|7|false|other=7|site.hits=2");
    let mut counters = std::collections::BTreeMap::new();
    super::super::read_counters(scripts.site.worker().shared(), &mut counters);
    assert_eq!(counters.get("site.hits"), Some(&2));
}

#[test]
fn counters_of_the_server_are_read_and_not_written() {
    let script = "local p, name, seen = lighty.status, 'server.io.write.jobs', 0
        for known in pairs(p) do if known == name then seen = seen + 1 end end
        o[1] = seen o[2] = tostring(p[name] >= 0) o[3] = p['server.io.device.1:2.in-flight']
        o[4] = tostring(select(2, pcall(function() p[name] = 1 end))):match('server.io.write[%w. ]*')";
    assert_eq!(
        shown(script),
        "1|true|0|server.io.write.jobs is counted by the server"
    );
}

#[test]
fn the_server_tells_about_itself() {
    let script = "local s = lighty.server.stats o[1] = tostring(s.uptime >= 0) o[2] = s.version:match('^[^/]+') o[3] = s.clients_open
        o[4] = tostring(pcall(function() return s.foo end)) o[5] = tostring(pcall(function() s.uptime = 1 end))";
    assert_eq!(shown(script), "true|petrel|0|false|false");
}

#[tokio::test(flavor = "local")]
async fn requests_of_the_worker_are_gone_through() {
    let scripts = Scripts::new(&[(
        "raw-url",
        "local o = {} for r in lighty.server.irequests() do o[#o + 1] = r.req_attr['uri.path'] .. '@' .. r.req_header['Host'] end
         if lighty.env['uri.path'] == '/slow' then petrel.sleep(0.2) end
         lighty.content = { table.concat(o, ' ') } return 200",
    )]);
    assert_eq!(text(&scripts.get("/one")), "/one@a.example");
    let (slow, quick) = tokio::join!(
        scripts.site.get_async("/slow"),
        scripts.site.get_async("/quick")
    );
    assert_eq!(text(&slow), "/slow@a.example");
    assert_eq!(text(&quick), "/quick@a.example /slow@a.example");
    // An exchange is not finished while its answer exists.
    drop((slow, quick));
    assert_eq!(text(&scripts.get("/three")), "/three@a.example");
}
