//! Files, includes and commands, on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::testing::{TABLE, options, schema};
use crate::{Config, Diagnostics, LoadOptions, Schema, Shell, Style, Value, load};

/// A directory for one test, which is removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "petrel-config-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        Directory(path.canonicalize().expect("it was just made"))
    }

    fn with(self, name: &str, text: impl AsRef<[u8]>) -> Directory {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("a file has a directory")).expect("writable");
        fs::write(path, text).expect("writable");
        self
    }

    fn load(&self) -> Result<Config, Diagnostics> {
        let options = LoadOptions {
            shell: Shell::Run,
            directory: self.0.clone(),
            ..options()
        };
        load(&self.0.join("main.conf"), &schema(), &options)
    }

    fn value(&self, name: &str) -> Value {
        let config = self
            .load()
            .unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
        config
            .global()
            .entry(name)
            .unwrap_or_else(|| panic!("{name} is set"))
            .value
            .clone()
    }

    /// The messages without the path of the directory.
    fn messages(&self) -> Vec<String> {
        let (list, sources) = match self.load() {
            Ok(config) => (config.warnings, config.sources),
            Err(diagnostics) => (diagnostics.list, diagnostics.sources),
        };
        let here = self.0.display().to_string() + "/";
        list.iter()
            .map(|diagnostic| crate::render(diagnostic, &sources, Style::Line).replace(&here, ""))
            .collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that is left in the temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

#[test]
fn a_main_file_that_is_not_there_says_why() {
    assert_eq!(
        Directory::new().messages(),
        ["error: cannot read main.conf: No such file or directory"]
    );
}

#[test]
fn an_include_is_read_in_place() {
    let directory = Directory::new()
        .with(
            "main.conf",
            "var.a = \"1\"\ninclude \"sub/b.conf\"\nt.b = var.c",
        )
        .with("sub/b.conf", "t.a = a + \"2\"\nvar.c = \"3\"");
    assert_eq!(directory.value("t.a"), text("12"));
    assert_eq!(directory.value("t.b"), text("3"));
}

#[test]
fn an_include_in_a_condition_sets_there() {
    let directory = Directory::new()
        .with(
            "main.conf",
            "$HTTP[\"host\"] == \"a\" { include \"b.conf\" }",
        )
        .with("b.conf", "t.a = 1");
    let config = directory.load().expect("it is right");
    assert!(config.blocks[1].entry("t.a").is_some());
}

#[test]
fn a_relative_include_starts_from_the_main_file_and_then_from_the_including_one() {
    let directory = Directory::new()
        .with("main.conf", "include \"sub/a.conf\"")
        .with("sub/a.conf", "include \"b.conf\"\ninclude \"c.conf\"")
        .with("b.conf", "t.a = \"main\"")
        .with("sub/b.conf", "t.a = \"sub\"")
        .with("sub/c.conf", "t.b = \"sub\"");
    assert_eq!(directory.value("t.a"), text("main"));
    assert_eq!(directory.value("t.b"), text("sub"));
}

#[test]
fn a_pattern_includes_its_matches_in_order() {
    let directory = Directory::new()
        .with(
            "main.conf",
            "t.a = \"\"\ninclude \"d/*.conf\"\ninclude \"d/{z,y}.inc\"",
        )
        .with("d/20.conf", "t.a += \"20 \"")
        .with("d/10.conf", "t.a += \"10 \"")
        .with("d/.hidden.conf", "t.a += \"hidden \"")
        .with("d/10.conf.bak", "t.a += \"bak \"")
        .with("d/y.inc", "t.a += \"y \"")
        .with("d/z.inc", "t.a += \"z \"");
    assert_eq!(directory.value("t.a"), text("10 20 z y "));
}

#[test]
fn a_pattern_that_matches_nothing_is_right() {
    let directory = Directory::new().with(
        "main.conf",
        "include \"d/*.conf\"\ninclude \"nosuch?\"\nt.a = 1",
    );
    assert_eq!(directory.messages(), Vec::<String>::new());
}

#[test]
fn a_file_that_is_not_there_says_where_it_was_looked_for() {
    let directory = Directory::new().with("main.conf", "\n include \"nosuch.conf\"");
    let found = directory.messages();
    assert!(found[0].starts_with("main.conf:2:10: error: cannot read nosuch.conf: No such file or directory (a relative path starts from "), "{found:?}");
}

#[test]
fn an_error_names_the_chain_of_includes() {
    let directory = Directory::new()
        .with("main.conf", "t.a = 1\ninclude \"a.conf\"")
        .with("a.conf", "\n  include \"b.conf\"")
        .with("b.conf", "server.tag = 5");
    assert_eq!(
        directory.messages(),
        [
            "b.conf:1:14: error: server.tag takes a string, not 5 (expected a string), included from a.conf:2:3, included from main.conf:2:1"
        ]
    );
    let report = directory
        .load()
        .expect_err("a wrong type")
        .render(Style::Report);
    assert!(
        report.contains("included from") && report.contains("main.conf:2:1"),
        "{report}"
    );
}

#[test]
fn a_file_that_includes_itself_is_stopped() {
    let directory = Directory::new()
        .with("main.conf", "include \"a.conf\"")
        .with("a.conf", "include \"./main.conf\"");
    assert!(
        directory.messages()[0].starts_with("a.conf:1:9: error: "),
        "{:?}",
        directory.messages()
    );
    assert!(directory.messages()[0].contains("main.conf includes itself"));
}

#[test]
fn a_chain_of_includes_ends_at_the_limit_of_nesting() {
    let mut directory = Directory::new().with("main.conf", "include \"0\"");
    for number in 0..100 {
        directory = directory.with(&number.to_string(), format!("include \"{}\"", number + 1));
    }
    assert!(
        directory.messages()[0].contains("nested more than 64 levels deep"),
        "{:?}",
        directory.messages()
    );
}

/// It takes so long because it includes 20,000 files before it stops.
#[test]
fn includes_that_multiply_are_stopped() {
    let mut directory = Directory::new().with("main.conf", "include \"0\"");
    for number in 0..40 {
        directory = directory.with(
            &number.to_string(),
            format!("include \"{0}\"\ninclude \"{0}\"", number + 1),
        );
    }
    directory = directory.with("40", "");
    assert!(
        directory.messages()[0].contains("more than 20000 files are included"),
        "{:?}",
        directory.messages()
    );
}

#[test]
fn a_directory_cannot_be_included() {
    let directory = Directory::new()
        .with("main.conf", "include \"d\"")
        .with("d/x", "");
    assert!(
        directory.messages()[0].contains("cannot read d: Is a directory"),
        "{:?}",
        directory.messages()
    );
}

#[test]
fn bytes_that_are_no_text_may_stand_in_comments_only() {
    let directory = Directory::new().with("main.conf", b"# caf\xe9\nt.a = 1\n");
    assert_eq!(directory.messages(), Vec::<String>::new());
    let directory = Directory::new().with("main.conf", b"# caf\xe9\nt.a = \"caf\xe9\"\n");
    assert_eq!(
        directory.messages(),
        ["main.conf:2:7: error: this string is not UTF-8 (convert the file to UTF-8)"]
    );
}

#[test]
fn a_command_s_output_is_read_in_place() {
    let directory = Directory::new().with(
        "main.conf",
        "server.port = 81\ninclude_shell \"echo t.a = \" + server.port\nt.b = t.a",
    );
    assert_eq!(directory.value("t.b"), Value::Integer(81));
}

#[test]
fn a_command_runs_in_the_directory_of_the_main_file() {
    let directory =
        Directory::new().with("main.conf", r#"include_shell "echo \"t.a = '$(pwd)'\"""#);
    assert_eq!(
        directory.value("t.a"),
        text(&directory.0.display().to_string())
    );
}

#[test]
fn a_command_that_fails_says_what_it_said() {
    let directory = Directory::new().with("main.conf", "include_shell \"echo oops >&2; exit 3\"");
    assert_eq!(
        directory.messages(),
        ["main.conf:1:15: error: the command ended with exit code 3 (it says: oops)"]
    );
    let directory = Directory::new().with("main.conf", "include_shell \"kill -9 $$\"");
    assert!(
        directory.messages()[0].contains("the command was ended by a signal: 9"),
        "{:?}",
        directory.messages()
    );
}

#[test]
fn a_command_that_complains_and_succeeds_is_a_warning() {
    let directory = Directory::new().with(
        "main.conf",
        "include_shell \"echo careful >&2; echo t.a = 1\"",
    );
    assert_eq!(
        directory.messages(),
        ["main.conf:1:15: warning: the command wrote to its standard error (it says: careful)"]
    );
}

#[test]
fn a_command_that_prints_without_end_is_stopped() {
    let directory = Directory::new().with("main.conf", "include_shell \"yes\"");
    assert_eq!(
        directory.messages(),
        ["main.conf:1:15: error: the command printed more than 4 MiB"]
    );
}

#[test]
fn an_error_in_a_command_s_output_names_the_command() {
    let directory = Directory::new().with("main.conf", "\ninclude_shell \"echo server.tag = 5\"");
    assert_eq!(
        directory.messages(),
        [
            "include_shell \"echo server.tag = 5\":1:14: error: server.tag takes a string, not 5 (expected a string), included from main.conf:2:1"
        ]
    );
}

#[test]
fn commands_do_not_run_when_they_are_refused() {
    let directory = Directory::new().with("main.conf", "include_shell \"touch ran\"");
    let options = LoadOptions {
        directory: directory.0.clone(),
        ..options()
    };
    let error = load(&directory.0.join("main.conf"), &schema(), &options).expect_err("refused");
    assert!(
        error
            .to_string()
            .contains("include_shell is not allowed here")
    );
    assert!(!directory.0.join("ran").exists());
}

#[test]
fn a_distribution_s_layout_loads() {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/distribution/lighttpd.conf");
    let config = load(
        &fixture,
        &Schema::new(&[TABLE]),
        &LoadOptions::from_process(),
    )
    .unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
    let modules = config
        .global()
        .entry("server.modules")
        .and_then(|entry| entry.value.as_strings());
    assert_eq!(
        modules,
        Some(vec![
            "mod_access",
            "mod_alias",
            "mod_redirect",
            "mod_accesslog",
            "mod_fastcgi",
            "mod_dirlisting"
        ])
    );
    let mime = config
        .global()
        .entry("mimetype.assign")
        .and_then(|entry| entry.value.as_array())
        .expect("printed by the command");
    assert_eq!(
        mime.get(".html").and_then(|element| element.value.as_str()),
        Some("text/html")
    );
    let local = config
        .blocks
        .iter()
        .find(|block| block.entry("alias.url").is_some())
        .expect("the local documentation");
    assert!(
        local
            .condition
            .as_ref()
            .is_some_and(|condition| condition.matcher.matches(b"127.0.0.1")
                && !condition.matcher.matches(b"127.0.0.10"))
    );
}
