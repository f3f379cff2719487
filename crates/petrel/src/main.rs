//! The program: command line, start-up, process life.
//!
//! Knows the kernel's side of a server (users, signals, sockets, processes) and nothing of HTTP:
//! the engine serves, the modules answer.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod bundled;
mod check;
mod cli;
mod command;
mod control;
mod costs;
mod explain;
mod fcgi_magnet;
mod fcgi_program;
mod fcgi_stat_accel;
mod features;
mod keeper;
mod limits;
mod listen;
mod load;
mod local_authority;
mod lua_command;
mod names;
mod plot;
mod recorded;
mod serve_dir;
mod server;
mod spawn;
mod start_warnings;
mod stdio;
mod summary;
mod terminal;
mod tls_files;
mod top;
mod user;
mod why;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::error::ErrorKind;

use bundled::BundledSite;
use cli::{Arguments, Command, SpawnFcgi};
use keeper::daemon::{self, Detached};
use keeper::{KeeperExit, KeeperOptions};
use listen::ListenerSet;
use load::{Loaded, Origin};
use local_authority::LocalAuthority;
use names::Called;
use serve_dir::Site;
use terminal::{EXIT_FAILURE, fail, print};

fn main() -> ExitCode {
    // Descriptors beyond the first three, which the parent process passed, must not reach backend programs.
    if let Err(error) = sys::child::close_on_exec_from(3) {
        return ExitCode::from(fail(&format!("marking descriptors: {error}")));
    }
    let mut words = std::env::args_os();
    let called = Called::by(words.next().as_deref());
    ExitCode::from(match called {
        Called::SpawnFcgi => match SpawnFcgi::try_parse() {
            Ok(arguments) => spawn::run(&arguments.spawn, names::SPAWN_FCGI),
            Err(error) => explain_usage(&error),
        },
        Called::Command(command) => {
            let line = [OsString::from("petrel"), command.into()];
            match Arguments::try_parse_from(line.into_iter().chain(words)) {
                Ok(arguments) => run(arguments, called),
                Err(error) => explain_usage(&error),
            }
        }
        Called::Petrel | Called::Lighttpd => match Arguments::try_parse() {
            Ok(arguments) => run(arguments, called),
            Err(error) => explain_usage(&error),
        },
        Called::Unknown => fail(&names::refusal(std::env::args_os().next().as_deref())),
    })
}

fn run(arguments: Arguments, called: Called) -> u8 {
    // Only `petrel` without arguments serves the bundled site; lighttpd has none.
    if arguments.is_empty() && called == Called::Petrel {
        return serve_bundled();
    }
    match &arguments.command {
        Some(Command::Serve(serve)) => serve_directory(serve),
        Some(Command::Reload { now: false, server }) => command::run("reload", server),
        Some(Command::Reload { now: true, server }) => command::run("reload now", server),
        Some(Command::Stop { now: false, server }) => command::run("stop", server),
        Some(Command::Stop { now: true, server }) => command::run("stop now", server),
        Some(Command::Reopen { server }) => command::run("reopen", server),
        Some(Command::Status { server }) => command::run("status", server),
        Some(Command::Why(options)) => why::run(options),
        Some(Command::Top(options)) => top::run(options),
        Some(Command::Completions { shell }) => print(&cli::completions(*shell)),
        Some(Command::Spawn(options)) => spawn::run(options, "petrel spawn"),
        Some(Command::Lua(options)) => lua_command::run(options),
        Some(Command::Explain(options)) => explain::run(options),
        Some(Command::Plot(options)) => plot::run(options),
        Some(Command::Costs(options)) => costs::run(options),
        Some(Command::FcgiMagnet(options)) => fcgi_magnet::run(options),
        Some(Command::FcgiStatAccel(options)) => fcgi_stat_accel::run(options),
        Some(Command::Man { command }) => match cli::manual_page(command.as_deref()) {
            Some(page) => print(&page),
            None => fail("there is no such command"),
        },
        None if arguments.features => print(features::features().as_bytes()),
        None if arguments.version => print(format!("{}\n", features::version()).as_bytes()),
        None if arguments.one_request => fail(
            "-1 is not supported: let the service manager pass a socket (server.systemd-socket-activation)",
        ),
        None => match &arguments.file {
            Some(file) => with_file(&arguments, file),
            None => fail(
                "no configuration: name a file by -f, or serve a directory by `petrel serve DIR`",
            ),
        },
    }
}

/// `-f FILE`, with `-p`, `-t`, `-tt` or none of them.
fn with_file(arguments: &Arguments, file: &Path) -> u8 {
    let file = match std::path::absolute(file) {
        Ok(file) => file,
        Err(error) => return fail(&format!("{}: {error}", file.display())),
    };
    let origin = Origin::File(file.clone());
    let loaded = match load::load(&origin) {
        Ok(loaded) => loaded,
        Err(errors) => {
            load::print_errors(&errors);
            let printable = arguments.print.then(|| load::printable(&origin)).flatten();
            return match printable {
                Some(config) => print(config::print(&config).as_bytes()),
                None => EXIT_FAILURE,
            };
        }
    };
    load::print_warnings(&loaded);
    if arguments.print {
        return print(config::print(&loaded.config).as_bytes());
    }
    match arguments.test {
        0 => {}
        1 => return print(b"Syntax OK\n"),
        _ => return preflight(&loaded, &file),
    }
    summary::print(&loaded);
    let inherited = match inherited_sockets(&loaded) {
        Ok(inherited) => inherited,
        Err(error) => return fail(&format!("sockets of the service manager: {error}")),
    };
    let launch = match arguments.foreground {
        true => None,
        false => match daemon::detach() {
            Ok(Detached::Launcher(code)) => return code,
            Ok(Detached::Background(launch)) => Some(launch),
            Err(error) => return fail(&format!("going to the background: {error}")),
        },
    };
    let announcement = match launch.is_none() && io::stdout().is_terminal() {
        true => listening_lines(&loaded),
        false => Vec::new(),
    };
    let idle = arguments
        .idle_s
        .map(|seconds| Duration::from_secs(seconds.into()));
    keep(
        KeeperOptions {
            origin,
            idle,
            announcement,
            launch,
            inherited,
        },
        loaded,
    )
}

/// The sockets that the service manager passed. They are taken before the process goes to the background,
/// because they name the process that was started.
fn inherited_sockets(loaded: &Loaded) -> io::Result<ListenerSet> {
    match loaded.process.socket_activation {
        true => ListenerSet::from_service_manager(),
        false => Ok(ListenerSet::default()),
    }
}

fn preflight(loaded: &Loaded, file: &Path) -> u8 {
    if let Some(warning) = user::warning(&loaded.process) {
        terminal::complain(format_args!("petrel: warning: {warning}"));
    }
    for warning in check::warnings(loaded, file) {
        load::print_diagnostic(&warning, loaded);
    }
    let checked = check::preflight(loaded);
    summary::print(loaded);
    match checked {
        Ok(()) => 0,
        Err(errors) => {
            load::print_errors(&errors);
            EXIT_FAILURE
        }
    }
}

/// `petrel` alone.
fn serve_bundled() -> u8 {
    // spawn-fcgi passes a FastCGI program its listening socket as standard input. Clients of that socket
    // would wait for replies for ever.
    if rustix::net::sockopt::socket_acceptconn(rustix::stdio::stdin()).unwrap_or(false) {
        return fail(
            "standard input is a listening socket: say which FastCGI program is meant, \
             `petrel fcgi-magnet` or `petrel fcgi-stat-accel`",
        );
    }
    let bundled = match BundledSite::write() {
        Ok(bundled) => bundled,
        Err(error) => return fail(&format!("writing the bundled site: {error}")),
    };
    let site = Site {
        directory: bundled.directory().to_owned(),
        bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
        port: BUNDLED_PORT,
        listing: true,
        certificate: None,
    };
    serve_site(&site, "its bundled site", Vec::new())
}

/// `petrel serve DIR`.
fn serve_directory(serve: &cli::Serve) -> u8 {
    let mut words = Vec::new();
    let certificate = match serve.tls.then(|| certificate_for(serve, &mut words)) {
        None => None,
        Some(Ok(file)) => Some(file),
        Some(Err(error)) => return fail(&error.to_string()),
    };
    let site = Site {
        directory: serve.directory.clone(),
        bind: serve.bind,
        port: serve.port,
        listing: serve.listing,
        certificate,
    };
    serve_site(&site, &serve.directory.display().to_string(), words)
}

/// For `--tls`: makes a file with certificate and key. Appends to `words` what the user must know about the
/// authority.
fn certificate_for(serve: &cli::Serve, words: &mut Vec<String>) -> io::Result<PathBuf> {
    let directory =
        local_authority::data_directory(|name| std::env::var_os(name).map(PathBuf::from))?;
    let authority = LocalAuthority::open(&directory)?;
    local_authority::keep_apart(&directory, &serve.directory)?;
    let file = authority.certify(serve.bind)?;
    words.push(match authority.is_new {
        true => authority.instructions(&format!("https://localhost:{}/", serve.port)),
        false => format!(
            "Its certificate is signed by {} (how to trust that: petrel serve --help)",
            authority.certificate().display()
        ),
    });
    Ok(file)
}

/// Serves a generated configuration. `words` are further lines to show once the site is served.
fn serve_site(site: &Site, what: &str, words: Vec<String>) -> u8 {
    let origin = match site.configuration() {
        Ok(origin) => origin,
        Err(error) => return fail(&error.to_string()),
    };
    match load::load(&origin) {
        Ok(loaded) => {
            let version = env!("CARGO_PKG_VERSION");
            let line = format!(
                "Petrel {version} serves {what} on {} (Ctrl-C ends it)",
                site.url()
            );
            let announcement = [vec![line], words].concat();
            let inherited = ListenerSet::default();
            keep(
                KeeperOptions {
                    origin,
                    idle: None,
                    announcement,
                    launch: None,
                    inherited,
                },
                loaded,
            )
        }
        Err(errors) => {
            load::print_errors(&errors);
            EXIT_FAILURE
        }
    }
}

/// Runs the keeper; in a process that it forks, runs the server or the TLS reader.
fn keep(options: KeeperOptions, loaded: Loaded) -> u8 {
    match keeper::run(options, loaded) {
        KeeperExit::Exit(code) => code,
        KeeperExit::Server(handover) => server::run(*handover),
        KeeperExit::TlsReader(reading) => keeper::tls_reader::run(*reading),
        KeeperExit::PamHelper(asking) => keeper::pam_helper::run(*asking),
    }
}

fn listening_lines(loaded: &Loaded) -> Vec<String> {
    let addresses = loaded
        .process
        .listeners
        .iter()
        .map(|listener| &listener.address);
    let lines = addresses.map(|address| match listen::url_of(address) {
        Some(url) => format!("listening on {url}"),
        None => format!("listening on {address}"),
    });
    lines.collect()
}

/// Prints help to standard output and returns 0; prints usage errors to standard error and returns lighttpd's
/// 255.
fn explain_usage(error: &clap::Error) -> u8 {
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
        _ => EXIT_FAILURE,
    }
}

/// The port of the bundled site.
const BUNDLED_PORT: u16 = 8080;
