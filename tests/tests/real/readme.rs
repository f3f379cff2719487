//! What README.md and the pages of docs/SUMMARY.md promise: their examples work, and their links lead somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use petrel_tests::{
    Authority, Finished, Identity, PATIENCE, Server, Tree, is_installed, petrel, run, skip,
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A page of the site.
struct Page {
    /// Its path from the root.
    path: String,
    text: String,
}

/// A block between two lines of "```".
struct Block<'a> {
    language: &'a str,
    text: String,
}

/// The pages that docs/SUMMARY.md lists, README.md among them.
fn pages() -> Vec<Page> {
    let summary = fs::read_to_string(Path::new(ROOT).join("docs/SUMMARY.md")).expect("a summary");
    let page = |target: &str| {
        let path = from_root(Path::new("docs"), target);
        let text = fs::read_to_string(Path::new(ROOT).join(&path));
        let text = text.unwrap_or_else(|error| panic!("{path}: {error}"));
        Page { path, text }
    };
    links(&summary).into_iter().map(page).collect()
}

impl Page {
    fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines();
        while let Some(line) = lines.next() {
            if let Some(language) = line.strip_prefix("```") {
                let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
                let text = inside.join("\n") + "\n";
                blocks.push(Block { language, text });
            }
        }
        blocks
    }

    /// What is not in a block.
    fn prose(&self) -> String {
        let mut is_inside = false;
        let lines = self.text.lines().filter(|line| {
            let is_fence = line.starts_with("```");
            is_inside ^= is_fence;
            !is_inside && !is_fence
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The names of its headings as both GitHub and mdBook make them for links.
    fn anchors(&self) -> BTreeSet<String> {
        let prose = self.prose();
        let headings = prose.lines().filter(|line| line.starts_with('#'));
        headings.map(anchor).collect()
    }
}

fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim();
    let kept = words.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

/// The targets of links.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    targets.filter_map(|rest| rest.split(')').next()).collect()
}

/// `target`, of a page in `directory`, as a path from the root.
fn from_root(directory: &Path, target: &str) -> String {
    let mut path = PathBuf::new();
    for component in directory.join(target).components() {
        match component {
            Component::ParentDir => {
                assert!(path.pop(), "{target} leads out of the repository");
            }
            component => path.push(component),
        }
    }
    path.to_str().expect("UTF-8").to_owned()
}

/// Calls `check` with all blocks of `language`, which have to be at least so many.
fn for_each(language: &str, least: usize, check: impl Fn(&str, &str)) {
    let mut count = 0;
    for page in pages() {
        for block in page.blocks() {
            if block.language == language {
                check(&page.path, &block.text);
                count += 1;
            }
        }
    }
    assert!(count >= least, "only {count} blocks of {language}");
}

/// The configuration with a certificate of `identity` in place of those it names, which this machine does not have.
fn with_certificate(configuration: &str, identity: &Identity) -> String {
    let file = |line: &str| match line.trim_start() {
        line if line.starts_with("ssl.pemfile") => Some(identity.certificate.display().to_string()),
        line if line.starts_with("ssl.privkey") => Some(identity.key.display().to_string()),
        _ => None,
    };
    let replaced = configuration.lines().map(|line| {
        let (before, _) = line.split_once('"').unwrap_or((line, ""));
        match file(line) {
            Some(file) => format!("{before}\"{file}\"\n"),
            None => format!("{line}\n"),
        }
    });
    replaced.collect()
}

#[test]
fn configurations_are_accepted_without_a_warning() {
    let authority = Authority::new();
    let identity = authority.identity("example.com");
    for_each("lighttpd", 60, |page, configuration| {
        let configuration = with_certificate(configuration, &identity);
        let finished = Server::build().config(&configuration).check(&["-t"]);
        let errors = &finished.errors;
        assert_eq!(finished.code(), 0, "{page}: {configuration}{errors}");
        assert_eq!(errors, "", "{page}: {configuration}");
    });
}

/// What a how-to page begins with is a file beside the package's configuration.
#[test]
fn files_of_conf_d_fit_the_package_s_configuration() {
    let authority = Authority::new();
    let identity = authority.identity("example.com");
    let packaging = Path::new(ROOT).join("packaging");
    let package = fs::read_to_string(packaging.join("petrel.conf")).expect("it is there");
    let mut pages = BTreeSet::new();
    for page in self::pages() {
        for block in page.blocks() {
            if block.language != "lighttpd" || !block.text.starts_with("# /etc/petrel/conf.d/") {
                continue;
            }
            let tree = Tree::new();
            tree.write("conf.d/page.conf", with_certificate(&block.text, &identity));
            let mime_types = packaging.join("mime-types");
            let whole = package
                .replace("/etc/petrel/conf.d", &tree.path("conf.d").to_string_lossy())
                .replace(
                    "/usr/share/petrel/mime-types",
                    &mime_types.to_string_lossy(),
                );
            tree.write("petrel.conf", whole);
            let mut check = Command::new(petrel());
            check.arg("-t").arg("-f").arg(tree.path("petrel.conf"));
            let finished = run(&mut check, PATIENCE);
            let (name, errors) = (&page.path, &finished.errors);
            assert_eq!(finished.code(), 0, "{name}: {}{errors}", block.text);
            assert_eq!(errors, "", "{name}: {}", block.text);
            pages.insert(page.path.clone());
        }
    }
    for name in [
        "wordpress",
        "static-site",
        "php",
        "https",
        "node",
        "django",
        "page-cache",
        "auth",
    ] {
        assert!(
            pages.contains(&format!("docs/{name}.md")),
            "{name} says no file: {pages:?}"
        );
    }
}

/// A block that no test looks at would not be noticed when it becomes wrong.
#[test]
fn blocks_say_what_language_they_are() {
    let known = [
        "apache", "ini", "json", "lighttpd", "lua", "nginx", "php", "python", "rust", "sh", "text",
        "yaml",
    ];
    for page in pages() {
        for block in page.blocks() {
            assert!(
                known.contains(&block.language),
                "{}: a block of language {:?}: {}",
                page.path,
                block.language,
                block.text
            );
        }
    }
}

#[test]
fn shell_examples_are_shell_and_their_petrel_commands_are_understood() {
    for_each("sh", 20, |page, text| {
        let tree = Tree::new();
        tree.write("example.sh", text);
        let mut shell = Command::new("sh");
        shell.arg("-n").arg(tree.path("example.sh"));
        expect_success(&run(&mut shell, PATIENCE), page, text);
        let joined = text.replace("\\\n", " ");
        for line in joined.lines() {
            if line.starts_with("petrel ") {
                expect_success(&help_of(line), page, line);
            }
        }
    });
}

/// Commands that are shown with what they print ("$ petrel" in a block of "text"), and those in indented blocks.
#[test]
fn commands_elsewhere_are_understood() {
    for_each("text", 3, |page, text| {
        let commands = text.lines().filter_map(|line| line.strip_prefix("$ "));
        for line in commands.filter(|line| line.starts_with("petrel ")) {
            expect_success(&help_of(line), page, line);
        }
    });
    for page in pages() {
        let prose = page.prose();
        let indented = prose.lines().filter_map(|line| line.strip_prefix("    "));
        for line in indented.filter(|line| line.starts_with("petrel ")) {
            expect_success(&help_of(line), &page.path, line);
        }
    }
}

/// Runs a command line of petrel's with --help behind its own options: the parser reads and checks those first.
fn help_of(line: &str) -> Finished {
    let line = line.split(" #").next().unwrap_or_default();
    let (options, application) = match line.split_once(" -- ") {
        Some((options, application)) => (options, format!(" -- {application}")),
        None => (line, String::new()),
    };
    let arguments = options.strip_prefix("petrel").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("\"$PETREL\" {arguments} --help{application}"))
        .env("PETREL", petrel());
    run(&mut shell, PATIENCE)
}

#[test]
fn help_behind_options_does_not_hide_mistakes() {
    for line in [
        "petrel -D --file x",
        "petrel serve . --port eighty",
        "petrel reload --then -f x",
        "petrel spawn -F many -- /bin/true",
    ] {
        assert_ne!(help_of(line).code(), 0, "{line}");
    }
}

#[test]
fn examples_in_lua_php_and_python_can_be_parsed() {
    let tree = Tree::new();
    let check = |page: &str, text: &str, program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).arg(tree.path("example"));
        expect_success(&run(&mut command, PATIENCE), page, text);
    };
    for_each("lua", 8, |page, text| {
        // Compiled as a whole, and left at its first line.
        tree.write("example", format!("do return 200 end {text}"));
        let petrel = petrel();
        let program = petrel.to_str().expect("UTF-8");
        check(page, text, program, &["lua"]);
    });
    if is_installed("php") {
        for_each("php", 2, |page, text| {
            let begin = if text.starts_with("<?php") {
                ""
            } else {
                "<?php "
            };
            tree.write("example", format!("{begin}{text}"));
            check(page, text, "php", &["-l"]);
        });
    }
    if is_installed("python3") {
        for_each("python", 2, |page, text| {
            tree.write("example", text);
            let parse = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
            check(page, text, "python3", &["-c", parse]);
        });
    }
}

fn expect_success(finished: &Finished, page: &str, example: &str) {
    let (output, errors) = (finished.text(), &finished.errors);
    assert_eq!(finished.code(), 0, "{page}: {example}\n{output}{errors}");
}

#[test]
fn systemd_accepts_the_units() {
    if !is_installed("systemd-analyze") {
        return skip("systemd_accepts_the_units", "systemd is not installed");
    }
    let tree = Tree::new();
    let binary = petrel();
    for_each("ini", 2, |_, unit| {
        let name = match unit.starts_with("[Socket]") {
            true => "petrel.socket",
            false => "petrel.service",
        };
        let unit = unit.replace("/usr/local/bin/petrel", &binary.to_string_lossy());
        tree.write(name, unit);
    });
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no"])
        .arg(tree.path("petrel.service"))
        .arg(tree.path("petrel.socket"));
    let finished = run(&mut verify, PATIENCE);
    // It complains of other units of the machine as well, and then fails.
    let complaints = finished.errors.lines();
    let complaints: Vec<&str> = complaints.filter(|line| line.contains("petrel")).collect();
    assert_eq!(complaints, Vec::<&str>::new());
}

#[test]
fn links_lead_somewhere() {
    let pages: BTreeMap<String, Page> = pages()
        .into_iter()
        .map(|page| (page.path.clone(), page))
        .collect();
    let mut count = 0;
    for (path, page) in &pages {
        let directory = Path::new(path).parent().expect("a page is in a directory");
        for link in links(&page.prose()) {
            if link.starts_with("https://") || link.starts_with("http://") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => from_root(directory, file),
            };
            assert!(Path::new(ROOT).join(&target).exists(), "{path}: {link}");
            // What the site has not would be a dead link there.
            let is_copied = ["docs/", "LICENSE-", "packaging/Containerfile"]
                .iter()
                .any(|copied| target.starts_with(copied));
            match pages.get(&target) {
                Some(page) => assert!(
                    anchor.is_empty() || page.anchors().contains(anchor),
                    "{path}: {link}: no such heading"
                ),
                None => assert!(
                    is_copied && !target.ends_with(".md"),
                    "{path}: {link} is not in docs/SUMMARY.md"
                ),
            }
        }
    }
    assert!(count >= 80, "only {count} links");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let listed: Vec<String> = pages().into_iter().map(|page| page.path).collect();
    let unique: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "{listed:?}");
    for entry in fs::read_dir(Path::new(ROOT).join("docs")).expect("docs/") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("UTF-8");
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(unique.contains(&format!("docs/{name}")), "{name}");
        }
    }
}
