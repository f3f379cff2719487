//! The names under which the program may be started through a link, and what each of them means.

use std::ffi::OsStr;
use std::path::Path;

/// Under this name the program acts as `petrel spawn`.
pub(crate) const SPAWN_FCGI: &str = "spawn-fcgi";

/// Commands that also work under their own names, as the programs that they replace.
const PROGRAMS: [&str; 2] = ["fcgi-magnet", "fcgi-stat-accel"];

/// What the program acts as, according to the name it was started under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Called {
    /// petrel, also with a suffix: petrel-0.1, petrel.new.
    Petrel,
    /// lighttpd: the same options, but without any it does not serve.
    Lighttpd,
    /// spawn-fcgi.
    SpawnFcgi,
    /// A command whose name the link has.
    Command(&'static str),
    /// Another program's name.
    Unknown,
}

impl Called {
    /// Decides by the first word of the command line.
    pub(crate) fn by(word: Option<&OsStr>) -> Called {
        // If the caller passed no name at all, it meant the program file.
        let Some(name) = word.map(file_name).filter(|name| !name.is_empty()) else {
            return Called::Petrel;
        };
        if let Some(program) = PROGRAMS.into_iter().find(|program| *program == name) {
            return Called::Command(program);
        }
        match name.as_str() {
            SPAWN_FCGI => Called::SpawnFcgi,
            "lighttpd" => Called::Lighttpd,
            _ if name.starts_with("petrel") => Called::Petrel,
            _ => Called::Unknown,
        }
    }
}

/// The error message for an unknown name. Serving a site instead would make the caller wait for something
/// that never happens.
pub(crate) fn refusal(word: Option<&OsStr>) -> String {
    let name = word.map(file_name).unwrap_or_default();
    let programs = PROGRAMS.join(", ");
    format!(
        "started as {name}, which is no program of Petrel's: a link to it is called petrel (or petrel-...), lighttpd, \
         {SPAWN_FCGI}, {programs}"
    )
}

fn file_name(word: &OsStr) -> String {
    let name = Path::new(word).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_the_path_counts() {
        for (word, called) in [
            ("petrel", Called::Petrel),
            ("/usr/bin/petrel-0.1", Called::Petrel),
            ("/usr/sbin/lighttpd", Called::Lighttpd),
            ("./build/spawn-fcgi", Called::SpawnFcgi),
            (
                "./build/fcgi-stat-accel",
                Called::Command("fcgi-stat-accel"),
            ),
            ("fcgi-magnet", Called::Command("fcgi-magnet")),
            ("lighttpd-angel", Called::Unknown),
            ("fcgi-magnet2", Called::Unknown),
            ("/petrel/httpd", Called::Unknown),
            ("", Called::Petrel),
        ] {
            assert_eq!(Called::by(Some(word.as_ref())), called, "{word}");
        }
        assert_eq!(Called::by(None), Called::Petrel);
    }

    #[test]
    fn each_program_is_a_command() {
        use clap::CommandFactory;
        let arguments = crate::cli::Arguments::command();
        for program in PROGRAMS {
            assert!(arguments.find_subcommand(program).is_some(), "{program}");
        }
    }
}
