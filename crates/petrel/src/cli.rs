//! The command line: one definition, from which help, man page and completions are made.
//!
//! The short options are lighttpd's, with its exit codes; `serve` and the others are ours.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, CommandFactory, Parser, Subcommand};

/// What was asked for.
#[derive(Debug, Parser)]
#[command(
    name = "petrel",
    about = "A web server that takes lighttpd's configuration as it is",
    long_about = "A web server that takes lighttpd's configuration as it is.\n\n\
        Without any argument it serves a small bundled site on http://127.0.0.1:8080/.",
    after_help = "Signals: TERM stops at once, INT stops gracefully, HUP reopens the logs, \
        USR1 reloads the configuration without losing a request.",
    disable_version_flag = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Arguments {
    /// Read the configuration from this file
    #[arg(short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Module directory: accepted and ignored, the modules are built in
    #[arg(short = 'm', value_name = "DIR")]
    pub module_directory: Option<PathBuf>,
    /// Stop gracefully after this many seconds without a connection
    #[arg(short = 'i', value_name = "SECS", value_parser = clap::value_parser!(u32).range(1..))]
    pub idle_s: Option<u32>,
    /// Serve one request on standard input: not supported
    #[arg(short = '1')]
    pub one_request: bool,
    /// Print the effective configuration and exit
    #[arg(short = 'p')]
    pub print: bool,
    /// Check the configuration and exit; twice: also check what start-up would need
    #[arg(short = 't', action = ArgAction::Count)]
    pub test: u8,
    /// Stay in the foreground
    #[arg(short = 'D')]
    pub foreground: bool,
    /// Print the version and exit
    #[arg(short = 'v')]
    pub version: bool,
    /// Print the version and the features and exit
    #[arg(short = 'V')]
    pub features: bool,
    /// What to do instead of serving a configuration file.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do instead of serving a configuration file.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a directory, without a configuration file
    Serve(Serve),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man,
}

/// Options of `petrel serve`.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// The directory
    pub directory: PathBuf,
    /// The TCP port
    #[arg(long, default_value_t = 8080, value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// The address to listen on; 0.0.0.0 or :: for all
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub bind: IpAddr,
    /// Show listings of directories that have no index file
    #[arg(long)]
    pub listing: bool,
}

impl Arguments {
    /// Whether nothing at all was asked for.
    pub fn is_empty(&self) -> bool {
        let asked = self.one_request
            || self.print
            || self.test > 0
            || self.foreground
            || self.version
            || self.features;
        let given = self.file.is_some()
            || self.module_directory.is_some()
            || self.idle_s.is_some()
            || self.command.is_some();
        !asked && !given
    }
}

/// The completion script for `shell`.
pub fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "petrel", &mut script);
    script
}

/// The manual page, in roff.
pub fn manual_page() -> Vec<u8> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Arguments::command())
        .render(&mut page)
        .expect("writing to memory does not fail");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_may_stand_together_as_with_getopt() {
        let arguments = Arguments::parse_from(["petrel", "-ttf", "x.conf", "-Dm", "/usr/lib"]);
        assert_eq!(arguments.test, 2);
        assert!(arguments.foreground);
        assert_eq!(arguments.file, Some("x.conf".into()));
        assert!(!arguments.is_empty());
        assert!(Arguments::parse_from(["petrel"]).is_empty());
    }

    #[test]
    fn the_manual_names_every_option() {
        let page = String::from_utf8(manual_page()).expect("text");
        for argument in Arguments::command().get_arguments() {
            let short = argument.get_short().expect("options are short ones");
            assert!(page.contains(&format!("\\-{short}")), "-{short}");
        }
    }
}
