//! Manual pages: what clap_mangen makes of the command line, with a synopsis that names the values of options, and
//! with the sections that say how a command ends and which files it uses.

use clap::{Arg, ArgAction, Command};
use engine::settings::directives::{DIRECTIVES, DirectiveSpec, Effect};

/// The page of `command`, in roff.
pub(super) fn page(command: Command) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let synopsis = synopsis(&command);
    let has_commands = command.has_subcommands();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command)
        .source(format!("petrel {}", env!("CARGO_PKG_VERSION")))
        .manual("Petrel");
    man.render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| {
            page.extend(format!(".SH SYNOPSIS\n{synopsis}\n").into_bytes());
            man.render_description_section(&mut page)
        })
        .and_then(|()| man.render_options_section(&mut page))
        .and_then(|()| match has_commands {
            true => man.render_subcommands_section(&mut page),
            false => Ok(()),
        })
        .and_then(|()| man.render_extra_section(&mut page))
        .expect("writing to memory does not fail");
    page.extend(section("EXIT STATUS", exit_status(&name)).into_bytes());
    page.extend(section("FILES", files(&name)).into_bytes());
    without_references(page)
}

/// Names the commands that have no page without a reference to one.
fn without_references(page: Vec<u8>) -> Vec<u8> {
    let mut page = String::from_utf8(page).expect("clap's texts are UTF-8");
    for name in WITHOUT_PAGE {
        page = page.replace(&format!("petrel\\-{name}(1)"), &format!("petrel {name}"));
    }
    page.into_bytes()
}

/// The commands whose pages the package does not have.
const WITHOUT_PAGE: [&str; 3] = ["man", "completions", "help"];

/// petrel.conf(5): the language, and each directive with the first sentence that its table has about it.
pub(super) fn page_of_configuration() -> Vec<u8> {
    let mut page = format!(
        ".TH petrel.conf 5 \"\" \"petrel {}\" Petrel\n{}",
        env!("CARGO_PKG_VERSION"),
        include_str!("petrel.conf.roff")
    );
    page += DIRECTIVES_BEGIN;
    page += &subsection("The core", DIRECTIVES);
    for module in modules::MODULES {
        page += &subsection(module.name, module.directives);
    }
    page += &section("FILES", files("petrel.conf"));
    page += ".SH \"SEE ALSO\"\n\\fBpetrel\\fR(1), \\fBpetrel\\-explain\\fR(1)\n";
    page.into_bytes()
}

const DIRECTIVES_BEGIN: &str = ".SH DIRECTIVES\nEach with the type of its value and where it may stand: server, \
    outside of all conditions; listener, also in $SERVER[\"socket\"]; any, in every condition. docs/directives.md says \
    more of each: its default, and those of lighttpd that have no effect here.\n";

/// The directives of a table that do something; nothing if there is none.
fn subsection(heading: &str, directives: &[DirectiveSpec]) -> String {
    let mut text = String::new();
    for spec in directives {
        let meaning = match spec.effect {
            Effect::Works => first_sentence(spec.doc).to_owned(),
            Effect::Renamed(name) => format!("Another name of {name}."),
            _ => continue,
        };
        let (name, kind, scope) = (escaped(spec.name), spec.kind.name(), spec.scope.name());
        let meaning = escaped(&meaning);
        text += &format!(".TP\n\\fB{name}\\fR ({kind}; {scope})\n\\&{meaning}\n");
    }
    match text.is_empty() {
        true => text,
        false => format!(".SS \"{heading}\"\n{text}"),
    }
}

/// The first sentence, with those behind it until there is a line of text.
fn first_sentence(text: &str) -> &str {
    let is_end = |(at, _): &(usize, &str)| {
        *at >= LINE_BYTES_MIN && text[at + 2..].starts_with(|c: char| c.is_ascii_uppercase())
    };
    let end = text.match_indices(". ").find(is_end);
    end.map_or(text, |(at, _)| &text[..=at])
}

const LINE_BYTES_MIN: usize = 30;

/// A section of paragraphs, each with a tag in bold; nothing without paragraphs.
fn section(heading: &str, paragraphs: &[(&str, &str)]) -> String {
    if paragraphs.is_empty() {
        return String::new();
    }
    let mut text = format!(".SH \"{heading}\"\n");
    for (tag, words) in paragraphs {
        text += &format!(".TP\n\\fB{}\\fR\n{}\n", escaped(tag), escaped(words));
    }
    text
}

/// A line of text in roff. None of ours begins with a dot or an apostrophe.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-")
}

fn exit_status(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "reload" | "stop" | "reopen" | "status" => &[
            ("0", "The server has done it."),
            (
                "255",
                "It has not, and standard error says why; or no server was reached.",
            ),
        ],
        "why" => &[
            (
                "0",
                "The request was found, or there is at least one to list.",
            ),
            ("1", "It is not recorded, or no longer."),
            (
                "255",
                "No server was reached, or it records nothing that can be read.",
            ),
        ],
        "spawn" => &[
            ("0", "The programs were started."),
            (
                "255",
                "They were not. With -n the status is that of the program.",
            ),
        ],
        "lua" => &[
            ("0", "The script ran to its end."),
            ("1", "The script failed or was stopped."),
            (
                "255",
                "The command line is wrong, or a file cannot be read.",
            ),
        ],
        "explain" => &[
            ("0", "The request was explained, whatever its answer is."),
            (
                "255",
                "The command line, the URL or the configuration is wrong; standard error says what.",
            ),
        ],
        "plot" => &[
            ("0", "The log was drawn."),
            (
                "255",
                "It was not: it cannot be read, its format is not known, or no line tells stage times.",
            ),
        ],
        "costs" => &[
            ("0", "The costs were shown."),
            (
                "1",
                "The request could not be made or traced; standard error says why.",
            ),
            (
                "255",
                "The command line is wrong, or a file cannot be written.",
            ),
        ],
        "top" => &[
            ("0", "The views were printed, or q ended the display."),
            (
                "255",
                "No server was reached, the command line or the configuration is wrong, or the terminal failed; standard error says what.",
            ),
        ],
        "serve" => &[
            ("0", "It was told to stop, and did."),
            (
                "255",
                "The command line is wrong, the directory cannot be served, or the port is in use; standard error says what.",
            ),
        ],
        "fcgi-magnet" | "fcgi-stat-accel" => &[
            ("0", "It was told to stop, and did."),
            (
                "255",
                "The command line is wrong, its socket cannot be had, or it failed; standard error says what.",
            ),
        ],
        "man" | "completions" | "help" => &[
            ("0", "The text was printed."),
            ("255", "It was not: there is no such command or shell."),
        ],
        "petrel" => &[
            (
                "0",
                "The server was told to stop and did, or the configuration that was checked is right.",
            ),
            (
                "255",
                "The command line or the configuration is wrong, or something that it needs cannot be had; standard error says what.",
            ),
        ],
        // The page would lack the section, and a test says so.
        _ => &[],
    }
}

fn files(command: &str) -> &'static [(&'static str, &'static str)] {
    match command {
        "serve" => &[(
            "$XDG_DATA_HOME/petrel, else ~/.local/share/petrel",
            "The certificate authority that --tls makes.",
        )],
        "reload" | "stop" | "reopen" | "status" | "why" | "top" => &[
            (
                "/etc/petrel/petrel.conf",
                "The configuration of the server, unless -f names another one.",
            ),
            (
                "/run/petrel.control",
                "The socket on which the service takes commands: server.control-socket.",
            ),
        ],
        "explain" => &[(
            "/etc/petrel/petrel.conf",
            "The configuration that is used without -f.",
        )],
        "petrel.conf" => &[
            (
                "/etc/petrel/petrel.conf",
                "The configuration of the service. Its file conf.d/NAME.conf may hold your sites.",
            ),
            (
                "/usr/share/doc/petrel/docs/",
                "All directives (directives.md), and how to do what.",
            ),
        ],
        "petrel" => &[
            (
                "/etc/petrel/petrel.conf, /etc/petrel/conf.d/*.conf",
                "The configuration of the service, where the Debian package is installed; see petrel.conf(5).",
            ),
            (
                "/run/petrel.pid, /run/petrel.control",
                "Its process id, and the socket for the commands reload, stop, reopen and status: server.pid-file and server.control-socket.",
            ),
            (
                "/var/log/petrel/",
                "Its logs: server.errorlog and accesslog.filename.",
            ),
        ],
        // The other commands use only files that the command line names.
        _ => &[],
    }
}

/// How the command is written, with the values of its options. clap_mangen leaves those out.
fn synopsis(command: &Command) -> String {
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    let shown = || {
        command
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
    };
    for option in shown().filter(|argument| !argument.is_positional()) {
        let repeats = matches!(option.get_action(), ArgAction::Count | ArgAction::Append);
        words.push(format!(
            "[{}]{}",
            with_value(option),
            if repeats { "..." } else { "" }
        ));
    }
    for argument in shown().filter(|argument| argument.is_positional()) {
        let value = value_of(argument);
        let many = argument
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1);
        let value = value + if many { "..." } else { "" };
        words.push(match argument.is_required_set() {
            true => value,
            false => format!("[{value}]"),
        });
    }
    let mut text = words.join(" ");
    if command.has_subcommands() {
        text += &format!("\n.br\n\\fB{}\\fR \\fICOMMAND\\fR ...", escaped(name));
    }
    text
}

/// `-f FILE`, `-v|--version`.
fn with_value(option: &Arg) -> String {
    let short = option
        .get_short()
        .map(|short| format!("\\fB\\-{short}\\fR"));
    let long = option
        .get_long()
        .map(|long| format!("\\fB\\-\\-{}\\fR", escaped(long)));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let names = names.join("|");
    match option.get_action().takes_values() {
        true => format!("{names} {}", value_of(option)),
        false => names,
    }
}

fn value_of(argument: &Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let name = names
        .first()
        .map_or(argument.get_id().as_str(), |name| name.as_str());
    format!("\\fI{}\\fR", escaped(name))
}
