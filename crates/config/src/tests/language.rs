//! Every feature of the language, checked by the resulting value or tree.

use crate::testing::{read, same_tree, try_read};
use crate::{BlockId, Op, Subject, Value};

/// The value of `t.a` in the global block.
fn value(text: &str) -> Value {
    let config = read(text);
    config
        .global()
        .entry("t.a")
        .unwrap_or_else(|| panic!("{text} sets t.a"))
        .value
        .clone()
}

fn string(text: &str) -> String {
    value(text)
        .as_str()
        .unwrap_or_else(|| panic!("{text} is a string"))
        .to_owned()
}

fn refused(text: &str) -> String {
    try_read(text).expect_err("it is wrong").to_string()
}

#[test]
fn strings_have_double_or_single_quotes() {
    assert_eq!(string("t.a = \"x'y\""), "x'y");
    assert_eq!(string("t.a = 'x\"y'"), "x\"y");
}

#[test]
fn integers_may_have_a_sign_and_leading_zeros() {
    assert_eq!(value("t.a = 0080"), Value::Integer(80));
    assert_eq!(value("t.a = -1"), Value::Integer(-1));
}

#[test]
fn arrays_have_optional_keys_nest_and_end_with_commas() {
    let config = read("t.a = ( \"x\", \"k\" => 1, ( \"n\" => ( ), ), , 3, )");
    let array = config
        .global()
        .entry("t.a")
        .and_then(|entry| entry.value.as_array())
        .expect("an array");
    let keys: Vec<_> = array.iter().map(|element| element.key()).collect();
    assert_eq!(keys, [None, Some("k"), None, None]);
    assert_eq!(
        array.get("k").map(|element| &element.value),
        Some(&Value::Integer(1))
    );
    let inner = array
        .at(2)
        .and_then(|element| element.value.as_array())
        .expect("nested");
    assert!(
        inner
            .get("n")
            .and_then(|element| element.value.as_array())
            .is_some_and(|array| array.is_empty())
    );
}

#[test]
fn keys_of_arrays_are_expressions_and_numbers_become_text() {
    let config = read("var.x = \"k\"\nt.a = ( x + \"1\" => 5, 7 => 8 )");
    let array = config
        .global()
        .entry("t.a")
        .and_then(|entry| entry.value.as_array())
        .expect("an array");
    assert_eq!(
        array
            .iter()
            .filter_map(|element| element.key())
            .collect::<Vec<_>>(),
        ["k1", "7"]
    );
}

#[test]
fn plus_joins_strings_and_numbers_in_either_order() {
    assert_eq!(string("t.a = \"a\" + \"b\" + 'c'"), "abc");
    assert_eq!(string("t.a = \"a\" + 1"), "a1");
    assert_eq!(string("t.a = 4 + \"5\""), "45");
    assert_eq!(value("t.a = 3 + 4"), Value::Integer(7));
    assert_eq!(string("t.a = 1 + 2 + \"x\" + 1 + 2"), "3x12");
}

#[test]
fn plus_joins_arrays_and_lists_may_repeat() {
    let joined = value("t.a = (\"a\", \"b\") + (\"a\") + (\"k\" => 1)");
    assert_eq!(joined.as_array().map(|array| array.len()), Some(4));
    assert!(refused("t.a = \"x\" + (\"a\")").contains("an array cannot be added to a string"));
    assert!(refused("t.a = (\"a\") + 1").contains("an integer cannot be added to an array"));
}

#[test]
fn variables_may_be_written_bare() {
    assert_eq!(string("var.a = \"x\"\nt.a = a + var.a"), "xx");
    assert_eq!(string("a = \"x\"\nt.a = var.a"), "x");
    assert_eq!(string("A-B_1 = \"x\"\nt.a = A-B_1"), "x");
}

#[test]
fn variables_of_the_server_are_there_from_the_start() {
    assert_eq!(string("t.a = var.CWD + \"/x\""), "/srv/x");
}

#[test]
fn the_environment_is_read_by_env() {
    assert_eq!(string("t.a = env.HOME + \"/www\""), "/home/x/www");
}

#[test]
fn a_directive_s_value_can_be_used_behind_it() {
    assert_eq!(
        string("server.name = \"n\"\nt.a = server.name + \".log\""),
        "n.log"
    );
    assert!(
        refused("t.a = server.name\nserver.name = \"n\"")
            .contains("server.name is not defined above")
    );
}

#[test]
fn append_adds_to_strings_numbers_and_arrays() {
    assert_eq!(string("t.a = \"x\"\nt.a += \"y\"\nt.a += 5"), "xy5");
    assert_eq!(value("t.a = 1\nt.a += 2"), Value::Integer(3));
    assert_eq!(
        value("t.a = (\"x\")\nt.a += (\"y\",)")
            .as_array()
            .map(|array| array.len()),
        Some(2)
    );
}

#[test]
fn append_to_nothing_sets() {
    assert_eq!(value("t.a += 5"), Value::Integer(5));
}

#[test]
fn append_in_a_condition_starts_from_the_enclosing_scope() {
    let config = read(
        "var.v = 1\nalias.url = ( \"/a\" => \"/1\" )
         $HTTP[\"host\"] == \"x\" { $HTTP[\"url\"] == \"y\" { alias.url += ( \"/b\" => \"/2\" )\nvar.v += 5\nt.b = v } }
         t.a = v",
    );
    let inner = &config.blocks[2];
    let map = inner
        .entry("alias.url")
        .and_then(|entry| entry.value.as_array())
        .expect("a map");
    assert_eq!(
        map.iter()
            .filter_map(|element| element.key())
            .collect::<Vec<_>>(),
        ["/a", "/b"]
    );
    assert_eq!(
        inner.entry("t.b").map(|entry| &entry.value),
        Some(&Value::Integer(6))
    );
    assert_eq!(
        config.global().entry("t.a").map(|entry| &entry.value),
        Some(&Value::Integer(1))
    );
    let outer = config
        .global()
        .entry("alias.url")
        .and_then(|entry| entry.value.as_array());
    assert_eq!(outer.map(|array| array.len()), Some(1));
}

#[test]
fn replace_puts_a_new_value_in_the_old_one_s_place() {
    let config = read("t.a = 1\nt.b = 2\nt.a := \"x\"");
    let names: Vec<_> = config
        .global()
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(names, ["t.a", "t.b"]);
    assert_eq!(
        config.global().entry("t.a").map(|entry| &entry.value),
        Some(&Value::String("x".into()))
    );
}

#[test]
fn an_equal_key_and_value_may_come_again() {
    let config = read("t.a = ( \"x\" => \"1\" )\nt.a += ( \"x\" => \"1\", \"y\" => \"2\" )");
    assert_eq!(
        config
            .global()
            .entry("t.a")
            .and_then(|entry| entry.value.as_array())
            .map(|array| array.len()),
        Some(2)
    );
    assert!(
        config.warnings[0]
            .message
            .contains("the key \"x\" is in the array already, with the same value")
    );
}

#[test]
fn line_ends_mean_nothing_between_tokens() {
    assert_eq!(string("t.a\n=\n\"x\"\n+\n\"y\"\nt.b = 1 t.c = 2"), "xy");
    let config = read("$HTTP[\"host\"]\n==\n\"b\" # c\n{\n}\n");
    assert_eq!(config.blocks.len(), 2);
}

#[test]
fn carriage_returns_and_a_byte_order_mark_are_space() {
    assert_eq!(string("\u{feff}t.a = \"x\"\r\nt.b = 1\r\n"), "x");
}

#[test]
fn comments_may_stand_between_branches() {
    let config =
        read("$HTTP[\"host\"] == \"a\" { t.a = 1 } # one\n\n# two\nelse # three\n{ t.a = 2 }");
    assert_eq!(config.blocks[2].previous_branch, Some(BlockId(1)));
    assert!(config.blocks[2].condition.is_none());
}

#[test]
fn comments_may_stand_in_arrays() {
    assert_eq!(
        value("t.a = (\n# c\n\"a\", # d \" )\n\"b\" # e\n)")
            .as_array()
            .map(|array| array.len()),
        Some(2)
    );
}

#[test]
fn all_spellings_of_a_further_branch_are_one_chain() {
    let config = read(
        "if $HTTP[\"host\"] == \"a\" { }
         else if $HTTP[\"host\"] == \"b\" { }
         else $HTTP[\"host\"] == \"c\" { }
         elseif $HTTP[\"host\"] == \"d\" { }
         elif $HTTP[\"host\"] == \"e\" { }
         elsif $HTTP[\"host\"] == \"f\" { }
         else { }",
    );
    let previous: Vec<_> = config
        .blocks
        .iter()
        .map(|block| block.previous_branch.map(|id| id.0))
        .collect();
    assert_eq!(
        previous,
        [
            None,
            None,
            Some(1),
            Some(2),
            Some(3),
            Some(4),
            Some(5),
            Some(6)
        ]
    );
    assert!(
        config
            .blocks
            .iter()
            .skip(1)
            .all(|block| block.parent == Some(BlockId::GLOBAL) && block.entries.is_empty())
    );
}

#[test]
fn conditions_nest() {
    let config = read(
        "$HTTP[\"host\"] == \"a\" { $HTTP[\"url\"] =~ \"^/b\" { $HTTP[\"scheme\"] == \"http\" { t.a = 1 } } }\nt.a = 2",
    );
    let parents: Vec<_> = config
        .blocks
        .iter()
        .map(|block| block.parent.map(|id| id.0))
        .collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2)]);
}

#[test]
fn a_condition_written_again_is_the_same_block() {
    let config = read(
        "$HTTP[\"host\"] == \"a\" { t.a = 1 }\n$HTTP[\"host\"] == \"b\" { }\n$HTTP[\"host\"] == \"a\" { t.b = 2 }",
    );
    assert_eq!(config.blocks.len(), 3);
    assert_eq!(config.blocks[1].entries.len(), 2);
    assert!(
        refused("$HTTP[\"host\"] == \"a\" { t.a = 1 }\n$HTTP[\"host\"] == \"a\" { t.a = 2 }")
            .contains("set twice")
    );
}

#[test]
fn a_condition_in_an_else_is_a_block_of_its_own() {
    let config = read(
        "$HTTP[\"host\"] == \"a\" { t.a = 1 }\n$HTTP[\"host\"] == \"b\" { } else $HTTP[\"host\"] == \"a\" { t.a = 2 }\n$HTTP[\"host\"] == \"a\" { t.b = 1 }",
    );
    assert_eq!(config.blocks.len(), 4);
    assert!(config.blocks[1].entry("t.b").is_some());
}

#[test]
fn variables_of_a_condition_end_with_it() {
    assert!(
        refused("$HTTP[\"host\"] == \"a\" { var.x = 1 }\nt.a = x")
            .contains("var.x is not defined above")
    );
    read("var.x = 1\n$HTTP[\"host\"] == \"a\" { var.x = 2\nt.a = x }");
}

#[test]
fn a_global_block_sets_for_the_whole_server() {
    let config =
        read("global { t.a = 1 }\n$HTTP[\"host\"] == \"a\" { t.b = 1\nglobal { t.b = 2 } }");
    assert_eq!(config.global().entries.len(), 2);
    assert_eq!(
        config.blocks[1].entry("t.b").map(|entry| &entry.value),
        Some(&Value::Integer(1))
    );
}

#[test]
fn every_subject_has_its_name() {
    for (written, subject) in [
        ("$SERVER[\"socket\"]", Subject::SocketAddress),
        ("$HTTP[\"host\"]", Subject::Host),
        ("$HTTP[\"url\"]", Subject::Url),
        ("$HTTP[\"querystring\"]", Subject::Query),
        ("$HTTP[\"query-string\"]", Subject::Query),
        ("$HTTP[\"scheme\"]", Subject::Scheme),
        ("$HTTP[\"referer\"]", Subject::Referer),
        ("$HTTP[\"cookie\"]", Subject::Cookie),
        ("$HTTP[\"useragent\"]", Subject::UserAgent),
        ("$HTTP[\"user-agent\"]", Subject::UserAgent),
        ("$HTTP[\"request-method\"]", Subject::RequestMethod),
        ("$HTTP[\"language\"]", Subject::Language),
        (
            "$REQUEST_HEADER[\"X-Foo\"]",
            Subject::RequestHeader("x-foo".into()),
        ),
        ("$REQUEST_HEADER[\"User-Agent\"]", Subject::UserAgent),
        ("$PHYSICAL[\"path\"]", Subject::PhysicalPath),
        (
            "$PHYSICAL[\"existing-path\"]",
            Subject::PhysicalExistingPath,
        ),
    ] {
        let config = read(&format!("{written} == \":80\" {{ }}"));
        let condition = config.blocks[1].condition.as_ref().expect("a condition");
        assert_eq!(condition.subject, subject, "{written}");
    }
    for written in ["$HTTP[\"remoteip\"]", "$HTTP[\"remote-ip\"]"] {
        let config = read(&format!("{written} == \"::1\" {{ }}"));
        assert_eq!(
            config.blocks[1]
                .condition
                .as_ref()
                .map(|condition| condition.subject.clone()),
            Some(Subject::RemoteIp)
        );
    }
}

#[test]
fn every_operator_has_its_sign() {
    for (sign, op) in [
        ("==", Op::Eq),
        ("!=", Op::Ne),
        ("=~", Op::Match),
        ("!~", Op::NotMatch),
        ("=^", Op::Prefix),
        ("=$", Op::Suffix),
    ] {
        let config = read(&format!("$HTTP[\"url\"] {sign} \"/x\" {{ }}"));
        let condition = config.blocks[1].condition.as_ref().expect("a condition");
        assert_eq!((condition.op, condition.pattern.as_str()), (op, "/x"));
    }
}

#[test]
fn the_pattern_of_a_condition_is_an_expression() {
    let config = read("var.d = \"example\"\n$HTTP[\"host\"] =~ \"^\" + d + \"\\.com$\" { }");
    let condition = config.blocks[1].condition.as_ref().expect("a condition");
    assert_eq!(condition.pattern, "^example\\.com$");
    assert!(
        condition.matcher.matches(b"example.com") && !condition.matcher.matches(b"example-com")
    );
}

#[test]
fn a_socket_s_pattern_takes_the_port_and_family_of_the_server() {
    let config = read(
        "$SERVER[\"socket\"] == \"127.0.0.1\" { }\n$SERVER[\"socket\"] == \":81\" { server.use-ipv6 = \"enable\" }\nserver.port = 8080",
    );
    let matches = |block: usize, value: &[u8]| {
        config.blocks[block]
            .condition
            .as_ref()
            .is_some_and(|condition| condition.matcher.matches(value))
    };
    assert!(matches(1, b"127.0.0.1:8080"));
    assert!(matches(2, b"[::]:81"));
}

#[test]
fn switches_have_all_of_lighttpd_s_spellings() {
    for (written, on) in [
        ("\"enable\"", true),
        ("\"TRUE\"", true),
        ("1", true),
        ("\"1\"", true),
        ("\"disable\"", false),
        ("\"false\"", false),
        ("0", false),
    ] {
        let config = read(&format!("server.follow-symlink = {written}"));
        let entry = config.global().entry("server.follow-symlink").expect("set");
        assert_eq!(entry.value.as_bool(), Some(on), "{written}");
    }
}

#[test]
fn numbers_may_be_strings_of_digits() {
    let config = read("server.port = \"81\"");
    assert_eq!(
        config
            .global()
            .entry("server.port")
            .and_then(|entry| entry.value.as_integer()),
        Some(81)
    );
}

#[test]
fn spans_cover_statement_name_and_value() {
    let text = "t.a  =  \"x\" + \"y\" # c";
    let config = read(text);
    let entry = config.global().entry("t.a").expect("set");
    assert_eq!(config.sources.text(entry.span), "t.a  =  \"x\" + \"y\"");
    assert_eq!(config.sources.text(entry.name_span), "t.a");
    assert_eq!(config.sources.text(entry.value_span), "\"x\" + \"y\"");
    let config = read("\n  $HTTP[\"host\"] == \"a\" { t.a = ( \"k\" => \"v\" ) }");
    let condition = config.blocks[1].condition.as_ref().expect("a condition");
    assert_eq!(
        config.sources.text(condition.span),
        "$HTTP[\"host\"] == \"a\""
    );
    assert_eq!(config.sources.text(condition.pattern_span), "\"a\"");
    let array = config.blocks[1].entries[0]
        .value
        .as_array()
        .expect("an array");
    let element = array.at(0).expect("one element");
    assert_eq!(config.sources.text(element.span), "\"v\"");
    assert_eq!(
        element
            .key
            .as_ref()
            .map(|key| config.sources.text(key.span)),
        Some("\"k\"")
    );
}

#[test]
fn names_have_no_letter_case() {
    let config = read(
        "Server.Port = 81\nvar.Some = \"x\"\nVAR.other = some\nserver.TAG = var.SOME + Other\nserver.tag += \"y\"",
    );
    let global = config.global();
    assert_eq!(global.entries.len(), 2, "variables are no directives");
    let port = global.entry("server.port");
    assert_eq!(port.and_then(|entry| entry.value.as_integer()), Some(81));
    let tag = global.entry("server.tag");
    assert_eq!(tag.and_then(|entry| entry.value.as_str()), Some("xxy"));
    assert!(
        try_read("server.tag = \"x\"\nSERVER.TAG = \"y\"").is_err(),
        "set twice"
    );
}

#[test]
fn commas_too_many_are_left_out() {
    let text = "server.port = 81,\n,$HTTP[\"host\"] == \"a\", { server.tag = \"x\",, }\nserver.name = \"n\", t.a = ( \"z\" ),";
    let config = read(text);
    let plain = read(&text.replace(",", " "));
    assert!(same_tree(&config, &plain));
    assert_eq!(config.warnings.len(), 7, "{:?}", config.warnings);
}

#[test]
fn elements_behind_a_missing_comma_are_left_out() {
    let text = "t.a = (\n\"a\"\n\"b\"\n\"c\",\n\"d\" => \"e\"\n\"f\" => \"g\"\n)";
    let plain = read("t.a = ( \"a\", \"d\" => \"e\" )");
    let config = read(text);
    assert!(same_tree(&config, &plain));
    assert_eq!(config.warnings.len(), 3, "{:?}", config.warnings);
}
