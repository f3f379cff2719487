//! The substitution language of redirect, rewrite and setenv: every text is a template, and values of a
//! request are inserted unchanged.
//!
//! The input is a template.

use petrel_config::{Lookup, Template, UrlPart};

pub fn template(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let template = Template::compile(text);
    let mut out = b"/before".to_vec();
    template.expand(&Everything, &mut out);
    assert!(out.starts_with(b"/before"));
    // Doubled signs stand for one.
    let literal = text.replace("$$", "\0").replace("%%", "\x01");
    if !literal.contains(['$', '%']) && !text.contains(['\0', '\x01']) {
        let literal = literal.replace('\0', "$").replace('\x01', "%");
        assert_eq!(&out[7..], literal.as_bytes());
    }
    // Two bytes of template can insert the longest value, whose bytes take up to three bytes each in the
    // widest encoding.
    assert!(out.len() <= 7 + text.len() * 3 * VALUE.len());
    let _ = template.uses_condition_groups();
    template.expand(&Nothing, &mut out);
}

const VALUE: &[u8] = b"a/../%2e&c=\xff \"<\0?d";

struct Everything;

impl Lookup for Everything {
    fn rule_group(&self, _number: u8) -> &[u8] {
        VALUE
    }

    fn condition_group(&self, _number: u8) -> &[u8] {
        VALUE
    }

    fn url_part(&self, _part: UrlPart) -> &[u8] {
        VALUE
    }

    fn has_query(&self) -> bool {
        true
    }

    fn url_port(&self) -> u16 {
        65_535
    }
}

struct Nothing;

impl Lookup for Nothing {
    fn rule_group(&self, _number: u8) -> &[u8] {
        b""
    }

    fn condition_group(&self, _number: u8) -> &[u8] {
        b""
    }

    fn url_part(&self, _part: UrlPart) -> &[u8] {
        b""
    }

    fn has_query(&self) -> bool {
        true
    }

    fn url_port(&self) -> u16 {
        0
    }
}
