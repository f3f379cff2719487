//! Random and damaged input, and the time that large input takes.

use std::fmt::Write;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::testing::{options, read, same_tree, schema, try_read};
use crate::{Style, parse_str, print};

/// A text that uses every part of the language.
const EVERYTHING: &str = r#"
# a comment
var.a = "x" + 1 + env.HOME
server.modules = ( "mod_a", "mod_b", )
server.modules += ( "mod_c" )
server.tag = a + "\"quoted\""
alias.url = ( "/a" => "/b" + var.a, "/c" => '/d' )
t.map = ( "k" => ( "l" => ( 1, -2, ( ) ), ), ( "x" => "y" ) )
include "*.nosuch"
global { server.port = 8080 }
$SERVER["socket"] == "[::1]:" + server.port { server.use-ipv6 = "enable" }
if $HTTP["host"] =~ "^(www\.)?example\.(com|org)$" {
    alias.url += ( "/e" => "/f" )
    $HTTP["url"] =^ "/x" { t.a = 1 } else { t.a := 2 }
} # comment
else if $HTTP["remoteip"] == "10.0.0.0/8" { t.a = 3 }
elif $REQUEST_HEADER["X-Y"] != "z" { t.a = 4 }
else { t.a = 5 }
"#;

/// Reads any text; the result can be displayed and printed.
fn survives(text: &str) {
    match try_read(text) {
        Ok(config) => {
            let printed = print(&config);
            assert!(
                same_tree(&config, &read(&printed)),
                "{text}\n---\n{printed}"
            );
        }
        Err(diagnostics) => {
            assert!(!diagnostics.list.is_empty());
            let _ = (
                diagnostics.render(Style::Line),
                diagnostics.render(Style::ColourReport),
            );
        }
    }
}

#[test]
fn the_text_that_uses_everything_is_right() {
    survives(EVERYTHING);
    read(EVERYTHING);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_text_never_panics(text in any::<String>()) {
        survives(&text);
    }

    #[test]
    fn random_tokens_never_panic(tokens in proptest::collection::vec(
        proptest::sample::select(vec![
            "$", "HTTP", "[", "]", "\"host\"", "\"url\"", "==", "=~", "\"a\"", "\"(\"", "{", "}", "(", ")", ",", "=>", "=", "+=", ":=", "+",
            "1", "t.a", "var.x", "x", "else", "if", "elif", "include", "global", "\n", "# c\n", "\"", "'", "server.port", "env.HOME", ";",
        ]), 0..40,
    )) {
        survives(&tokens.join(" "));
    }

    #[test]
    fn damaged_text_never_panics(from in 0..EVERYTHING.len(), len in 0..40_usize, put in "[\"'(){}$=+,\\\\ \na-z0-9]{0,6}") {
        let to = (from + len).min(EVERYTHING.len());
        survives(&format!("{}{put}{}", &EVERYTHING[..from], &EVERYTHING[to..]));
    }

    #[test]
    fn moved_pieces_never_panic(a in 0..EVERYTHING.len(), b in 0..EVERYTHING.len(), c in 0..EVERYTHING.len()) {
        let mut cuts = [a, b, c];
        cuts.sort_unstable();
        let [a, b, c] = cuts;
        survives(&format!("{}{}{}", &EVERYTHING[..a], &EVERYTHING[b..c], &EVERYTHING[a..b]));
    }
}

/// Any text that the language can write as a value: all but texts with a backslash at the end.
fn value_text() -> impl Strategy<Value = String> {
    "[ -~\n]{0,12}".prop_map(|text| text.trim_end_matches('\\').to_owned())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\\\""))
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        value_text().prop_map(|text| quoted(&text)),
        any::<i64>().prop_map(|number| number.to_string())
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let element = (proptest::option::of(value_text()), inner);
        proptest::collection::vec(element, 0..4).prop_map(|elements| {
            let elements = elements
                .iter()
                .enumerate()
                .map(|(position, (key, value))| match key {
                    Some(key) => format!("{} => {value}", quoted(&format!("{position}{key}"))),
                    None => value.clone(),
                });
            format!("( {} )", elements.collect::<Vec<_>>().join(", "))
        })
    })
}

fn block() -> impl Strategy<Value = String> {
    let names = proptest::sample::subsequence(vec!["t.a", "t.b", "t.c"], 0..=3);
    let entries = (names, proptest::collection::vec(value(), 3)).prop_map(|(names, values)| {
        names
            .iter()
            .zip(values)
            .map(|(name, value)| format!("{name} := {value}\n"))
            .collect::<String>()
    });
    entries.prop_recursive(3, 12, 3, |inner| {
        let head = prop_oneof![
            (
                proptest::sample::select(vec!["host", "url", "cookie"]),
                proptest::sample::select(vec!["==", "!=", "=^", "=$"]),
                "[ab\"]{1,2}"
            )
                .prop_map(|(field, op, pattern)| format!(
                    "$HTTP[\"{field}\"] {op} {}",
                    quoted(&pattern)
                )),
        ];
        proptest::collection::vec((head, inner.clone(), proptest::option::of(inner)), 0..3)
            .prop_map(|branches| {
                let mut text = String::new();
                for (head, body, otherwise) in branches {
                    let _ = writeln!(text, "{head} {{\n{body}}}");
                    if let Some(otherwise) = otherwise {
                        let _ = writeln!(text, "else {{\n{otherwise}}}");
                    }
                }
                text
            })
    })
}

proptest! {
    #[test]
    fn what_is_printed_reads_back_the_same(blocks in proptest::collection::vec(block(), 1..4)) {
        let config = read(&blocks.concat());
        let printed = print(&config);
        let again = read(&printed);
        prop_assert!(same_tree(&config, &again), "{}", printed);
        prop_assert_eq!(print(&again), printed);
    }
}

fn time(text: &str) -> Duration {
    let start = Instant::now();
    // Valid or not, reading has to end.
    let _ = parse_str("t", text, &schema(), &options());
    start.elapsed()
}

/// Large inputs, each of one kind. With quadratic time they would take minutes; thirty seconds are enough for
/// unoptimised builds on a slow machine.
#[test]
fn a_megabyte_of_anything_is_read_in_linear_time() {
    let lines =
        |line: &dyn Fn(usize) -> String, count: usize| (0..count).map(line).collect::<String>();
    let large = [
        lines(&|n| format!("var.v{n} = \"value\"\n"), 50_000),
        format!(
            "t.a = (\n{})",
            lines(&|n| format!("\"k{n}\" => \"v\",\n"), 60_000)
        ),
        lines(&|n| format!("t.map += ( \"k{n}\" => \"v\" )\n"), 40_000),
        lines(
            &|n| format!("$HTTP[\"host\"] == \"h{n}\" {{ server.tag = \"{n}\" }}\n"),
            20_000,
        ),
        format!(
            "$HTTP[\"host\"] == \"h\" {{ }}\n{}",
            lines(
                &|n| format!("else $HTTP[\"host\"] == \"h{n}\" {{ }}\n"),
                20_000
            )
        ),
        format!("t.a = \"{}\"", "\\\"x".repeat(350_000)),
        format!("t.a = \"a\"{}", " + \"a\"".repeat(150_000)),
        "(".repeat(1 << 20),
        "}".repeat(1 << 20),
        "\"".repeat((1 << 20) + 1),
        ";".repeat(1 << 20),
        "; ".repeat(1 << 19),
        "# comment\n".repeat(100_000),
        "\n".repeat(1 << 20),
    ];
    for text in large {
        let took = time(&text);
        assert!(
            took < Duration::from_secs(30),
            "{took:?} for {}…",
            text.chars().take(60).collect::<String>()
        );
    }
}
