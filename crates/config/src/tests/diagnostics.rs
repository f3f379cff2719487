//! Every message: its place, its text, its hint.

use crate::testing::{options, schema, try_read};
use crate::{Severity, Style, parse_str, render};

/// All messages about a text, one a line.
fn messages(text: &str) -> Vec<String> {
    let (list, sources) = match try_read(text) {
        Ok(config) => (config.warnings, config.sources),
        Err(diagnostics) => (diagnostics.list, diagnostics.sources),
    };
    list.iter()
        .map(|diagnostic| render(diagnostic, &sources, Style::Line))
        .collect()
}

/// Asserts that the text causes exactly this message.
fn says(text: &str, expected: &str) {
    assert_eq!(messages(text), [expected], "{text}");
}

#[test]
fn an_unknown_directive_is_a_warning_with_the_nearest_names() {
    says(
        "t.a = 1\n  server.docment-root = \"/\"",
        "t.conf:2:3: warning: there is no directive server.docment-root: it has no effect (did you mean server.document-root?)",
    );
    says(
        "completely.different = 1",
        "t.conf:1:1: warning: there is no directive completely.different: it has no effect",
    );
}

#[test]
fn a_wrong_type_is_an_error_that_names_the_right_one() {
    says(
        "server.tag = 5",
        "t.conf:1:14: error: server.tag takes a string, not 5 (expected a string)",
    );
    says(
        "server.follow-symlink = \"maybe\"",
        "t.conf:1:25: error: server.follow-symlink takes \"enable\" or \"disable\", not \"maybe\" (expected \"enable\" or \"disable\")",
    );
    says(
        "server.port = 70000",
        "t.conf:1:15: error: server.port takes an integer from 0 to 65535, not 70000 (expected an integer from 0 to 65535)",
    );
    says(
        "server.max-fds = \"x\"",
        "t.conf:1:18: error: server.max-fds takes an integer, not \"x\" (expected an integer from 0 to 4294967295)",
    );
    says(
        "server.modules = \"mod_access\"",
        "t.conf:1:18: error: server.modules takes a list of strings, not \"mod_access\" (expected a list of strings: ( \"a\", \"b\" ))",
    );
    says(
        "index-file.names = ( \"a\",\n \"k\" => \"b\" )",
        "t.conf:2:2: error: index-file.names takes a list of strings, not the key \"k\" (expected a list of strings: ( \"a\", \"b\" ))",
    );
    says(
        "mimetype.assign = ( \"a\" => 1 )",
        "t.conf:1:28: error: mimetype.assign takes a map of strings, not an integer in it (expected a map of strings: ( \"key\" => \"value\" ))",
    );
    says(
        "mimetype.assign = ( \"a\" )",
        "t.conf:1:21: error: mimetype.assign takes a map of strings, not an element without a key (expected a map of strings: ( \"key\" => \"value\" ))",
    );
    says(
        "magnet.attract = 1",
        "t.conf:1:18: error: magnet.attract takes a string or a list of strings, not 1 (expected a string or a list of strings)",
    );
    says(
        "dir-listing.show-readme = ()",
        "t.conf:1:27: error: dir-listing.show-readme takes a string or a switch, not an array (expected a string, or \"enable\" or \"disable\")",
    );
}

#[test]
fn a_removed_name_is_an_error_that_names_its_successor() {
    says(
        "server.docroot = \"/\"",
        "t.conf:1:1: error: server.docroot is no longer a directive (use server.document-root)",
    );
}

#[test]
fn effects_are_told_only_when_they_matter() {
    says(
        "webdav.log-xml = 1",
        "t.conf:1:1: warning: webdav.log-xml has no effect yet (WebDAV comes later)",
    );
    assert_eq!(
        messages(
            "server.reject-expect-100-with-417 = \"enable\"\nserver.indexfiles = ( \"a\" )\nssl.engine = \"disable\"\nfastcgi.server = ()"
        ),
        Vec::<String>::new()
    );
    says(
        "fastcgi.server = ( \".php\" => (( \"host\" => \"::1\" )) )",
        "t.conf:1:1: warning: fastcgi.server is not built yet: requests in its scope are answered 503 (FastCGI comes later)",
    );
    says(
        "ssl.engine = \"enable\"",
        "t.conf:1:1: error: ssl.engine is not built yet, and starting without it would not be safe (TLS comes later)",
    );
}

#[test]
fn a_directive_in_the_wrong_scope_is_a_warning() {
    says(
        "$HTTP[\"host\"] == \"a\" { server.pid-file = \"/x\" }",
        "t.conf:1:24: warning: server.pid-file is for the whole server: in a condition it has no effect (set it outside all conditions)",
    );
    says(
        "$HTTP[\"host\"] == \"a\" {\nserver.listen-backlog = 5 }",
        "t.conf:2:1: warning: server.listen-backlog belongs to a listener: in this condition it has no effect (set it outside all conditions or in $SERVER[\"socket\"] == \"…\")",
    );
    assert_eq!(
        messages(
            "$HTTP[\"host\"] == \"a\" { $SERVER[\"socket\"] == \":81\" { server.listen-backlog = 5 } }"
        ),
        Vec::<String>::new()
    );
}

#[test]
fn setting_twice_says_where_it_was_set_before() {
    says(
        "t.a = 1\nt.b = 2\nt.a = 3",
        "t.conf:3:1: error: t.a is set twice in one block (it was set at t.conf:1:1; \":=\" replaces that value, \"+=\" adds to it)",
    );
    says(
        "var.CWD = 3",
        "t.conf:1:1: error: var.cwd is set twice in one block (it was set by the server; \":=\" replaces that value, \"+=\" adds to it)",
    );
}

#[test]
fn an_unset_variable_gets_the_nearest_name_or_the_advice_to_quote() {
    says(
        "var.docroot = \"/\"\nt.a = docrot + \"/x\"",
        "t.conf:2:7: error: var.docrot is not defined above (did you mean var.docroot?)",
    );
    says(
        "server.follow-symlink = enable",
        "t.conf:1:25: error: var.enable is not defined above (text needs quotes: \"enable\")",
    );
    says(
        "t.a = server.nme",
        "t.conf:1:7: error: server.nme is not defined above (a directive can be used only after the line that sets it)",
    );
    says(
        "t.a = env.NOSUCH",
        "t.conf:1:7: error: the environment has no variable NOSUCH (start the server with NOSUCH set)",
    );
    says(
        "env.HOME = \"x\"",
        "t.conf:1:1: error: env.HOME cannot be set from here (env.NAME reads the server's environment; use var.NAME for a variable)",
    );
}

#[test]
fn a_name_that_could_not_be_read_is_one_error_however_often_it_is_used() {
    says(
        "var.a = nosuch\nt.a = a\nt.b = a + 1\nvar.a += 5",
        "t.conf:1:9: error: var.nosuch is not defined above (text needs quotes: \"nosuch\")",
    );
}

#[test]
fn values_that_do_not_join_are_pointed_at() {
    says(
        "t.a = \"x\" +\n ( 1 )",
        "t.conf:2:2: error: an array cannot be added to a string (an array can only be joined with another array)",
    );
    says(
        "t.a = ( 1 )\nt.a += 2",
        "t.conf:2:8: error: an integer cannot be added to an array (an array is joined with another array: ( \"value\" ))",
    );
    says(
        "t.a = 9223372036854775807 + 1",
        "t.conf:1:29: error: the sum does not fit 64 bits",
    );
    says(
        "t.a = 9223372036854775808",
        "t.conf:1:7: error: this number does not fit 64 bits",
    );
}

#[test]
fn a_key_that_comes_twice_is_an_error() {
    says(
        "t.a = ( \"x\" => 1, \"x\" => 2 )",
        "t.conf:1:19: error: the key \"x\" is twice in this array (remove one of the two)",
    );
    says(
        "t.a = ( \"x\" => 1 )\nt.a += ( \"x\" => 2 )",
        "t.conf:2:10: error: the key \"x\" is in the array already, with another value (it was set at t.conf:1:9; \":=\" replaces a whole array)",
    );
}

#[test]
fn syntax_errors_say_what_was_expected() {
    says(
        "t.a 5",
        "t.conf:1:5: error: expected \"=\" behind t.a, found an integer (a directive is set by \"=\", \":=\" or \"+=\")",
    );
    says(
        "t.a => 5",
        "t.conf:1:5: error: expected \"=\" behind t.a, found \"=>\" (\"=>\" belongs between key and value in an array)",
    );
    says(
        "t.a == 5",
        "t.conf:1:5: error: expected \"=\" behind t.a, found \"==\" (a condition is written $HTTP[\"…\"] == \"…\" { })",
    );
    says(
        "inlcude \"x\"",
        "t.conf:1:9: error: expected \"=\" behind inlcude, found a string (did you mean include?)",
    );
    says(
        "t.a =",
        "t.conf:1:6: error: expected a value, found the end of the file (a value is a \"string\", a number, ( an array ) or a variable)",
    );
    says(
        "t.a = \"x\" \"y\"",
        "t.conf:1:11: error: expected a directive, a condition or an include, found a string (values are joined with \"+\", and names of directives have no quotes)",
    );
    says(
        "t.a = 1 )",
        "t.conf:1:9: error: expected a directive, a condition or an include, found \")\" (this \")\" closes nothing)",
    );
    says(
        "}",
        "t.conf:1:1: error: this \"}\" closes nothing (no block is open here)",
    );
    says(
        "t.a = 1;",
        "t.conf:1:8: error: unexpected ; (statements end with their line, not with \";\")",
    );
}

#[test]
fn what_is_never_closed_is_shown_where_it_opens() {
    says(
        "t.b = 1\nt.a = \"x\nt.c = 5",
        "t.conf:2:7: error: this string is never closed (a backslash before the closing quote escapes it: \"C:\\\" does not end there)",
    );
    says(
        "t.a = \"x\nt.b = \"y\"\nt.c = ( \"z\" )",
        "t.conf:1:7: error: this string is never closed (a backslash before the closing quote escapes it: \"C:\\\" does not end there)",
    );
    says(
        "t.a = \"x\ny\"\nt.b = \"z",
        "t.conf:3:7: error: this string is never closed (a backslash before the closing quote escapes it: \"C:\\\" does not end there)",
    );
    says(
        "t.a = ( \"x\",\n \"y\"\nt.b = 5",
        "t.conf:1:7: error: this array is never closed (its \")\" is missing)",
    );
    says(
        "$HTTP[\"host\"] == \"a\" {\nt.a = 1\n",
        "t.conf:1:22: error: this block is never closed (its \"}\" is missing)",
    );
}

#[test]
fn a_missing_comma_is_found() {
    says(
        "t.a = (\n  \"x\" => 1\n  \"y\" => 2\n)",
        "t.conf:3:3: warning: \"y\" => 2 has no effect, as in lighttpd (is a comma missing behind 1 in line 2?)",
    );
    says(
        "t.a = ( \"x\" \"y\" )",
        "t.conf:1:13: error: expected \",\" or \")\" in this array, found a string (is a comma missing behind \"x\" in line 1?)",
    );
    says(
        "t.a = (\n  \"x\" => 1\n  \"y\" => ( \"b\", \"c\" )\n)",
        "t.conf:3:3: error: expected \",\" or \")\" in this array, found a string (is a comma missing behind 1 in line 2?)",
    );
    says(
        "t.a = ( \"x\" = 1 )",
        "t.conf:1:13: error: expected \",\" or \")\" in this array, found \"=\" (a key of an array is followed by \"=>\")",
    );
}

#[test]
fn a_missing_comma_in_a_list_that_protects_is_an_error() {
    for (directive, list) in [
        ("url.access-deny", "(\n  \".bak\"\n  \".inc\"\n)"),
        ("URL.access-Deny", "(\n  \".bak\"\n  \".inc\", \"~\"\n)"),
        (
            "ssl.openssl.ssl-conf-cmd",
            "(\n  \"A\" => \"b\"\n  \".inc\"\n)",
        ),
        (
            "auth.require",
            "( \"/\" => ( \n  \"method\" => \"basic\"\n  \".inc\"\n) )",
        ),
    ] {
        for before in ["", "$HTTP[\"host\"] == \"a\" {\n", "var.x = 1\n"] {
            let after = if before.contains('{') { "\n}" } else { "" };
            let text = format!("{before}{directive} = {list}{after}");
            let line = if before.is_empty() { 3 } else { 4 };
            let name = directive.to_ascii_lowercase();
            let begin = format!(
                "t.conf:{line}:3: error: \".inc\" would have no effect in {name}, and what it protects would be open (is a comma missing behind "
            );
            let messages = messages(&text);
            assert!(
                messages.iter().any(|message| message.starts_with(&begin)),
                "{messages:?}"
            );
        }
    }
}

#[test]
fn conditions_that_do_not_exist_get_the_nearest_ones() {
    says(
        "$HTTP[\"hots\"] == \"a\" { }",
        "t.conf:1:7: error: there is no $HTTP[\"hots\"] (did you mean $HTTP[\"host\"]?)",
    );
    says(
        "$HTPP[\"host\"] == \"a\" { }",
        "t.conf:1:2: error: there is no condition $HTPP (did you mean $HTTP?)",
    );
    says(
        "$SERVER[\"name\"] == \"a\" { }",
        "t.conf:1:9: error: there is no $SERVER[\"name\"] (there are: socket)",
    );
    says(
        "$HTTP[\"host\"] = \"a\" { t.a = 1 }",
        "t.conf:1:15: error: expected a comparison, found \"=\" (comparisons are ==, !=, =~, !~, =^ and =$)",
    );
    says(
        "$HTTP[\"host\"] == \"a\"\nt.a = 1",
        "t.conf:2:1: error: expected \"{\", found \"t.a\" (a condition is followed by its block in braces)",
    );
}

#[test]
fn branches_without_a_condition_before_them_are_errors() {
    says(
        "$HTTP[\"host\"] == \"a\" { }\nt.a = 1\nelse { t.b = 2 }",
        "t.conf:3:1: error: this branch belongs to no condition (only comments may come between the \"}\" of a condition and its \"else\")",
    );
    says(
        "$HTTP[\"host\"] == \"a\" { }\nelse { }\nelse $HTTP[\"host\"] == \"b\" { }",
        "t.conf:3:1: error: this branch comes after a plain else and is never reached (the plain else is at t.conf:2:1)",
    );
    says(
        "global { $HTTP[\"host\"] == \"a\" { } }",
        "t.conf:1:10: error: a condition cannot stand in a global block (close the global block before it)",
    );
}

#[test]
fn a_regular_expression_is_pointed_into() {
    says(
        "$HTTP[\"url\"] =~ \"^/(a\" { }",
        "t.conf:1:22: error: the regular expression does not compile: missing closing parenthesis",
    );
}

#[test]
fn addresses_that_are_none_are_errors() {
    says(
        "$HTTP[\"remoteip\"] == \"10.0.0.0/33\" { }",
        "t.conf:1:22: error: the prefix \"/33\" is no number from 0 to 32 (write \"10.0.0.1\", \"10.0.0.0/8\", \"2001:db8::1\" or \"2001:db8::/32\")",
    );
    says(
        "$SERVER[\"socket\"] == \":http\" { }",
        "t.conf:1:22: error: the port in \":http\" is no number from 0 to 65535 (write \":81\", \"127.0.0.1:81\", \"[::1]:81\", \"name:81\" or \"/path/of/socket\")",
    );
}

#[test]
fn several_errors_come_in_one_run() {
    let found = messages(
        "t.a = nosuch\n$HTTP[\"host\"] == \"a\" {\n  t.b 5\n  server.port = ( 1\n  t.c = 1\n}\nserver.tag = 5\nt.d = \"x",
    );
    let places: Vec<_> = found
        .iter()
        .map(|message| message.split(": ").next().unwrap_or(""))
        .collect();
    assert_eq!(
        places,
        [
            "t.conf:1:7",
            "t.conf:3:7",
            "t.conf:4:17",
            "t.conf:7:14",
            "t.conf:8:7"
        ]
    );
}

#[test]
fn errors_stop_being_collected_at_their_limit() {
    let found = messages(
        &(0..1_000)
            .map(|n| format!("t.a = nosuch{n}\n"))
            .collect::<String>(),
    );
    assert_eq!(found.len(), crate::limits::ERRORS_MAX);
}

#[test]
fn nesting_ends_at_its_limit() {
    let arrays = format!("t.a = {}{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(messages(&arrays)[0].contains("nested more than 64 levels deep"));
    let blocks = "$HTTP[\"host\"] == \"a\" { ".repeat(10_000);
    let deep = |message: &String| message.contains("nested more than 64 levels deep");
    assert!(messages(&blocks).iter().any(deep));
}

#[test]
fn variables_cannot_nest_deeper_than_text() {
    let text = format!("var.a = ()\n{}", "var.a := ( a )\n".repeat(100_000));
    assert!(messages(&text)[0].contains("this value is nested more than 64 levels deep"));
}

#[test]
fn a_variable_that_doubles_itself_is_stopped() {
    let text = format!(
        "var.a = \"{}\"\n{}",
        "x".repeat(1_000),
        "var.a += a\n".repeat(60)
    );
    assert!(
        messages(&text)[0].contains("expressions have copied more than 256 MiB"),
        "{:?}",
        messages(&text)
    );
}

#[test]
fn a_report_shows_the_line_and_marks_the_place() {
    let diagnostics = try_read("t.a = 1\nserver.tag = 5\n").expect_err("a wrong type");
    let report = diagnostics.render(Style::Report);
    for part in [
        "Error: server.tag takes a string, not 5",
        "t.conf:2:14",
        "server.tag = 5",
        "wrong type",
        "Help: expected a string",
    ] {
        assert!(report.contains(part), "{part} is missing in\n{report}");
    }
    assert!(!report.contains('\u{1b}'));
    assert!(diagnostics.render(Style::ColourReport).contains("\u{1b}["));
}

#[test]
fn a_report_of_an_endless_line_is_one_line() {
    let text = format!("t.b = \"{}\" server.tag = 5", "x".repeat(100_000));
    let report = try_read(&text)
        .expect_err("a wrong type")
        .render(Style::Report);
    assert!(
        report.starts_with("t.conf:1:100023: error: server.tag takes"),
        "{}",
        &report[..80]
    );
    assert!(report.len() < 300);
}

#[test]
fn control_characters_do_not_reach_a_log_line() {
    let found = messages("server.follow-symlink = \"x\ny\u{1b}[31m\"");
    assert!(found[0].chars().all(|c| !c.is_control()), "{found:?}");
}

#[test]
fn severities_order_from_warning_to_error() {
    assert!(Severity::Warning < Severity::Error);
    let error = parse_str("x", "t.a", &schema(), &options()).expect_err("half a statement");
    assert_eq!(error.list[0].severity, Severity::Error);
}
