//! What a script returns and leaves in `lighty`.

use super::*;

#[test]
fn content_and_status_are_the_answer() {
    let answer = run("lighty.content = { '123' } return 200");
    assert_eq!((answer.status(), answer.body()), (200, &b"123"[..]));
    // As in lighttpd there is no Content-Type that nobody has set.
    assert_eq!(answer.fields(), "");
    assert!(answer.exchange().response.is_final);
}

#[test]
fn numbers_say_what_happens() {
    for (value, status) in [
        ("", 404),
        ("nil", 404),
        ("0", 404),
        ("5", 404),
        ("-1", 404),
        ("98", 404),
        ("200", 200),
        ("'200'", 200),
        ("204", 204),
        ("304", 304),
        ("404", 404),
        ("600", 600),
        // Not whole numbers: told in the log, and nothing else.
        ("'x'", 404),
        ("200.5", 404),
        ("true", 404),
        ("{}", 404),
        // Nothing that HTTP can say.
        ("1000", 500),
        ("65736", 500),
        ("1e300", 404),
        ("101", 500),
    ] {
        let answer = run(&format!("do return {value} end"));
        assert_eq!(answer.status(), status, "{value}");
    }
}
