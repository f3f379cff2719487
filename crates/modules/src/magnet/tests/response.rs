//! Scripts that run when there is an answer.

use super::*;

fn start(script: &str) -> Answer {
    Scripts::new(&[("response-start", script)]).get("/a.txt")
}

#[test]
fn fields_of_an_answer_are_changed() {
    let answer = start(
        "local h = lighty.r.resp_header lighty.header['X-Type'] = h['content-type']
         h['ETag'] = nil h['X-Status'] = lighty.r.req_item.http_status lighty.content = { 'not taken' }",
    );
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (200, "0123456789")
    );
    assert_eq!(answer.field("X-Type").as_deref(), Some("text/plain"));
    assert_eq!(answer.field("X-Status").as_deref(), Some("200"));
    assert_eq!(answer.field("ETag"), None);
}

/// Also when the script is compiled, and when a value is too long for the functions that compiled code calls.
#[test]
fn a_script_reads_what_it_has_written() {
    let answer = start(
        "local r, sum = lighty.r, 0
         for i = 1, 300 do
           r.resp_header['X-Sum'] = tostring(i) r.req_env.SUM = i r.resp_body.set(tostring(i))
           r.req_attr['uri.path'] = '/' .. i
           sum = sum + r.resp_header['x-sum'] + r.req_env.Sum + r.resp_body.len + #r.req_attr['uri.path']
             + r.resp_body.get
         end
         for _, length in ipairs({ 4096, 4097, 9000 }) do
           r.resp_header['X-Long'] = ('x'):rep(length) sum = sum + #r.resp_header['X-Long']
         end
         r.resp_header['X-Long'] = nil r.resp_header['X-Sum'] = sum + (r.resp_header['X-Long'] or 0)",
    );
    let lengths = 9 + 90 * 2 + 201 * 3;
    let sum = 3 * (300 * 301 / 2) + lengths + (lengths + 300) + 4096 + 4097 + 9000;
    assert_eq!(answer.field("X-Sum"), Some(sum.to_string()));
    assert_eq!(text(&answer), "300");
}

#[test]
fn status_and_body_of_an_answer_are_changed() {
    let answer = start("lighty.content = { 'new' } return 203");
    assert_eq!((answer.status(), text(&answer).as_str()), (203, "new"));
    assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
    let answer = start("return 403");
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (403, "0123456789")
    );
}

#[test]
fn the_body_of_an_answer_is_read_and_added_to() {
    let answer = start(
        "local b = lighty.r.resp_body lighty.header['X-Body'] = b.get .. b.len b.add('+') b.add({ 'tail' })",
    );
    assert_eq!(answer.field("X-Body").as_deref(), Some("012345678910"));
    assert_eq!(text(&answer), "0123456789+tail");
}

#[test]
fn what_scripts_do_comes_before_compression() {
    let config = "deflate.mimetypes = (\"text/\") deflate.allowed-encodings = (\"gzip\")";
    let script = "lighty.r.resp_body.set(string.rep('text ', 1000)) lighty.header['X-Coding'] = \
                  tostring(lighty.r.resp_header['Content-Encoding'])";
    let scripts = Scripts::with(config, &[("response-start", script)]);
    let answer = scripts
        .site
        .request("GET /a.txt HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(answer.field("X-Coding").as_deref(), Some("nil"));
    assert_eq!(answer.field("Content-Encoding").as_deref(), Some("gzip"));
    assert!(answer.body().len() < 1000);
}

#[test]
fn errors_replace_the_answer() {
    for script in ["error('x')", "return 99", "return 1000", "x = = 1"] {
        let answer = start(script);
        assert_eq!(answer.status(), 500, "{script}");
        assert!(
            text(&answer).contains("500 Internal Server Error"),
            "{script}"
        );
        assert_eq!(answer.field("ETag"), None);
    }
    assert_eq!(start("return 103").status(), 200);
}

#[test]
fn error_pages_can_be_made_by_scripts() {
    let script = "if lighty.r.req_item.http_status == 404 then
        lighty.header['Content-Type'] = 'text/plain' lighty.content = { 'not here: ', lighty.env['uri.path'] } return 404 end";
    let answer = Scripts::new(&[("response-start", script)]).get("/missing");
    assert_eq!(
        (answer.status(), text(&answer).as_str()),
        (404, "not here: /missing")
    );
}

#[test]
fn the_name_of_lighttpd_1_5_works_and_goes_first() {
    let scripts = Scripts::new(&[
        (
            "response-start",
            "lighty.header['X-Order'] = lighty.r.resp_header['X-Order'] .. '2'",
        ),
        ("response-header", "lighty.header['X-Order'] = '1'"),
    ]);
    assert_eq!(
        scripts.get("/a.txt").field("X-Order").as_deref(),
        Some("12")
    );
}

#[tokio::test(flavor = "local")]
async fn an_answer_that_is_still_made_is_collected_first() {
    let scripts = Scripts::new(&[
        (
            "raw-url",
            "petrel.stream(function(write) write('ab') petrel.sleep(0.01) write('c') end) return 200",
        ),
        (
            "response-start",
            "local b = lighty.r.resp_body lighty.header['X-Before'] = tostring(b.len)
             lighty.header['X-Body'] = b.get b.add('!') lighty.header['X-After'] = b.len",
        ),
    ]);
    let answer = scripts.site.get_async("/").await;
    assert_eq!(text(&answer), "abc!");
    let field = |name| answer.field(name).unwrap_or_default();
    assert_eq!(
        (field("X-Before"), field("X-Body"), field("X-After")),
        ("nil".into(), "abc".into(), "4".into())
    );
}
