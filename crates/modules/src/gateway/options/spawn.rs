//! Programs that the keeper runs as backends: `bin-path` and the options for it.

use std::time::Duration;

use petrel_engine::config::{Config, Diagnostic, Severity};
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::loaded_modules;

use super::map::OptionMap;
use super::{FAMILIES, HostAddress, SpawnSpec, server};

/// Every program that some block of `config` has as a backend, each once, in the order of the text. Only
/// directives of loaded modules among `modules` count. Two entries with the same address are one program, that
/// of the first entry, as in lighttpd.
///
/// # Errors
/// The first invalid value, or a second program with the same address that should run as another user.
pub fn spawn_specs(
    config: &Config,
    modules: &[&'static ModuleSpec],
) -> Result<Vec<SpawnSpec>, Diagnostic> {
    let mut specs: Vec<SpawnSpec> = Vec::new();
    for (map, spec) in programs(config, modules)? {
        match first_at(&specs, &spec) {
            Some(known) if is_same_user(known, &spec) => {}
            Some(_) => {
                let message = "another bin-path has the same address and another user";
                return Err(map.error(place_key(&spec), message.to_owned()));
            }
            None => specs.push(spec),
        }
    }
    Ok(specs)
}

/// Warns about entries whose options have no effect, because the program uses those of another entry.
pub(super) fn warnings(config: &Config, modules: &[&'static ModuleSpec]) -> Vec<Diagnostic> {
    let mut specs: Vec<SpawnSpec> = Vec::new();
    let mut warnings = Vec::new();
    // Errors in an entry are reported elsewhere.
    for (map, spec) in programs(config, modules).unwrap_or_default() {
        match first_at(&specs, &spec) {
            Some(known) if *known != spec && is_same_user(known, &spec) => {
                let message = match known.command == spec.command {
                    true => {
                        "an earlier entry runs the same program at this address with other options, and those count"
                    }
                    false => {
                        "an earlier entry runs another program at this address, which serves this entry as well"
                    }
                };
                let mut warning = map.error(place_key(&spec), message.to_owned());
                warning.severity = Severity::Warning;
                warnings.push(warning);
            }
            Some(_) => {}
            None => specs.push(spec),
        }
    }
    warnings
}

fn first_at<'s>(specs: &'s [SpawnSpec], spec: &SpawnSpec) -> Option<&'s SpawnSpec> {
    specs.iter().find(|known| known.address == spec.address)
}

fn is_same_user(one: &SpawnSpec, other: &SpawnSpec) -> bool {
    one.user == other.user && one.group == other.group
}

/// The option that sets the address of `spec`.
fn place_key(spec: &SpawnSpec) -> &'static str {
    match spec.address {
        HostAddress::Unix(_) => "socket",
        _ => "port",
    }
}

/// Every entry with a program.
fn programs<'c>(
    config: &'c Config,
    modules: &[&'static ModuleSpec],
) -> Result<Vec<(OptionMap<'c>, SpawnSpec)>, Diagnostic> {
    let loaded = loaded_modules(config, modules);
    let is_loaded = |name: &str| loaded.iter().any(|module| module.name == name);
    let mut programs = Vec::new();
    for entry in config.blocks.iter().flat_map(|block| &block.entries) {
        let family = FAMILIES.iter().find(|family| family.server == entry.name);
        let Some(family) = family.filter(|family| is_loaded(family.module)) else {
            continue;
        };
        for (map, host) in server::hosts(config, family, entry)? {
            programs.extend(host.spawn.map(|spec| (map, spec)));
        }
    }
    Ok(programs)
}

/// The program of one backend; `None` without `bin-path`. `listens` is the configured address.
pub(super) fn read(
    map: &OptionMap<'_>,
    listens: &HostAddress,
) -> Result<Option<SpawnSpec>, Diagnostic> {
    let Some(command_line) = map.text("bin-path")? else {
        return Ok(None);
    };
    let command = match split(command_line) {
        Some(command) if !command.is_empty() => command,
        _ => {
            let message = format!("bin-path {command_line:?} is no command");
            return Err(map
                .error("bin-path", message)
                .with_hint("a quote is not closed, or it is blank"));
        }
    };
    let copied = map.texts("bin-copy-environment")?;
    let processes_max = map.short("max-procs")?.unwrap_or(PROCESSES).max(1);
    let processes_min = map.short("min-procs")?.unwrap_or(PROCESSES);
    Ok(Some(SpawnSpec {
        command,
        address: spawned_address(listens),
        environment: map.pairs("bin-environment")?,
        copied_environment: copied.map(|names| names.into_iter().map(str::to_owned).collect()),
        processes_min: processes_min.clamp(1, processes_max),
        processes_max,
        idle_timeout: Duration::from_secs(map.short("idle-timeout")?.unwrap_or(60).into()),
        kill_signal: kill_signal(map)?,
        listen_backlog: map
            .number("listen-backlog", i32::MAX as u32)?
            .unwrap_or(1024)
            .max(1),
        user: map.text("user")?.map(str::to_owned),
        group: map.text("group")?.map(str::to_owned),
    }))
}

/// The address at which the processes of a program accept connections. lighttpd gives each process a socket
/// of its own, with names ending in -0, -1 and so on; here all processes share the first one.
pub(super) fn spawned_address(listens: &HostAddress) -> HostAddress {
    match listens {
        HostAddress::Unix(path) => HostAddress::Unix([path, &b"-0"[..]].concat()),
        other => other.clone(),
    }
}

/// How many requests all processes of `spec` together can work on, if the program says so: each child of
/// php-cgi takes one.
pub(super) fn capacity(spec: &SpawnSpec) -> Option<u32> {
    let environment = &spec.environment;
    let children = environment
        .iter()
        .find(|(name, _)| name == "PHP_FCGI_CHILDREN");
    let children: u32 = children?.1.trim().parse().ok()?;
    Some(spec.processes_max.saturating_mul(children.max(1)))
}

fn kill_signal(map: &OptionMap<'_>) -> Result<i32, Diagnostic> {
    match map.short("kill-signal")? {
        None | Some(0) => Ok(SIGTERM),
        Some(signal) => match i32::try_from(signal)
            .ok()
            .filter(|signal| *signal <= SIGNAL_MAX)
        {
            Some(signal) => Ok(signal),
            None => Err(map.error("kill-signal", format!("there is no signal {signal}"))),
        },
    }
}

/// Splits a command line at spaces. Single and double quotes keep spaces; a backslash keeps the next
/// character, except in single quotes. `None`: a quote is not closed.
fn split(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().push(rest.next()?),
            (Some(_), _) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ' | '\t' | '\n') => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// The number of processes, if it is not configured.
const PROCESSES: u32 = 4;

/// The signal that ends a process, if it is not configured.
const SIGTERM: i32 = 15;

/// The highest signal number of Linux.
const SIGNAL_MAX: i32 = 64;

#[cfg(test)]
mod tests {
    use super::super::testing::{config, host};
    use super::*;

    #[test]
    fn command_lines_are_split_as_a_shell_would() {
        let words = |line| split(line).map(|words| words.join("|"));
        for (line, expected) in [
            ("/usr/bin/php-cgi", Some("/usr/bin/php-cgi")),
            ("  a\t b  ", Some("a|b")),
            ("a 'b c' \"d e\"f", Some("a|b c|d ef")),
            ("a '' \"\"", Some("a||")),
            (r"a\ b 'c\d' \\", Some(r"a b|c\d|\")),
            ("", Some("")),
            ("a 'b", None),
            ("a\\", None),
        ] {
            assert_eq!(words(line).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_program_listens_on_the_first_of_lighttpds_sockets() {
        let spawned = host("\"socket\" => \"/run/php\", \"bin-path\" => \"/usr/bin/php-cgi -b x\"");
        let spec = spawned.spawn.clone().expect("bin-path is set");
        assert_eq!(spawned.address, HostAddress::Unix(b"/run/php-0".to_vec()));
        assert_eq!(spec.address, spawned.address);
        assert_eq!(spec.command, ["/usr/bin/php-cgi", "-b", "x"]);
        assert_eq!((spec.processes_min, spec.processes_max), (4, 4));
        assert_eq!((spec.kill_signal, spec.listen_backlog), (15, 1024));
        assert_eq!(spec.idle_timeout, Duration::from_secs(60));
        assert_eq!(spec.copied_environment, None);
        assert_eq!(spawned.connections_max, None);
        let spawned = host("\"port\" => 4000, \"bin-path\" => \"/app\"");
        assert_eq!(
            spawned.address,
            HostAddress::Tcp("127.0.0.1".to_owned(), 4000)
        );
    }

    #[test]
    fn options_of_programs_are_read() {
        let spawned = host(
            "\"socket\" => \"/s\", \"bin-path\" => \"/app\", \"min-procs\" => 9, \"max-procs\" => \"3\", \
             \"bin-environment\" => (\"PHP_FCGI_CHILDREN\" => \"16\", \"A\" => \"\"), \
             \"bin-copy-environment\" => (\"PATH\"), \"kill-signal\" => 10, \"listen-backlog\" => 5, \
             \"idle-timeout\" => 7, \"user\" => \"www\", \"group\" => \"grp\", \"max-load-per-proc\" => 4",
        );
        let spec = spawned.spawn.as_ref().expect("bin-path is set");
        assert_eq!((spec.processes_min, spec.processes_max), (3, 3));
        assert_eq!(spec.environment[1], ("A".to_owned(), String::new()));
        assert_eq!(spec.copied_environment, Some(vec!["PATH".to_owned()]));
        assert_eq!((spec.kill_signal, spec.listen_backlog), (10, 5));
        assert_eq!(spec.idle_timeout, Duration::from_secs(7));
        assert_eq!(spec.user.as_deref(), Some("www"));
        assert_eq!(spec.group.as_deref(), Some("grp"));
        assert_eq!(spawned.connections_max, Some(48));
    }

    #[test]
    fn programs_of_all_blocks_are_found_once() {
        let text = r#"
            var.php = ( "socket" => "/php", "bin-path" => "/usr/bin/php-cgi" )
            fastcgi.server = ( ".php" => ( php ), ".php5" => ( php ), "/x" => (( "host" => "10.0.0.1", "port" => 1 )) )
            $HTTP["host"] == "a" {
                scgi.server = ( "/app" => ( "label" => ( "port" => 4000, "bin-path" => "/app" )))
                $HTTP["url"] =~ "b" { fastcgi.server = ( ".php" => ( php )) }
            }
        "#;
        let modules = "server.modules = ( \"mod_fastcgi\", \"mod_scgi\" )\n";
        let specs =
            spawn_specs(&config(&format!("{modules}{text}")), crate::MODULES).expect("valid");
        let commands: Vec<_> = specs.iter().map(|spec| spec.command[0].as_str()).collect();
        assert_eq!(commands, ["/usr/bin/php-cgi", "/app"]);
        let unlisted = spawn_specs(&config(text), crate::MODULES).expect("valid");
        assert_eq!(unlisted, [], "no module takes part");
    }

    #[test]
    fn the_first_program_at_an_address_serves_all_entries() {
        let text = r#"server.modules = ( "mod_fastcgi" )
            fastcgi.server = (
            ".a" => (( "socket" => "/s", "bin-path" => "/a" )),
            ".b" => (( "socket" => "/s", "bin-path" => "/b" )) )"#;
        let specs = spawn_specs(&config(text), crate::MODULES).expect("valid");
        let commands: Vec<_> = specs.iter().map(|spec| spec.command[0].as_str()).collect();
        assert_eq!(commands, ["/a"]);
        let told = warnings(&config(text), crate::MODULES);
        assert!(told[0].message.contains("another program"), "{told:?}");
        let other_user = text.replace("\"/b\" ))", "\"/b\", \"user\" => \"www\" ))");
        assert_ne!(other_user, text);
        let error = spawn_specs(&config(&other_user), crate::MODULES).expect_err("another user");
        assert!(error.message.contains("another user"), "{}", error.message);
    }

    #[test]
    fn a_program_that_is_named_again_has_its_first_options() {
        let text = r#"server.modules = ( "mod_fastcgi" )
            fastcgi.server = ( ".php" => (( "socket" => "/s", "bin-path" => "/a",
                "bin-copy-environment" => ( "PATH", "USER" ) )) )
            $HTTP["host"] == "b" { fastcgi.server = ( ".php" => (( "socket" => "/s", "bin-path" => "/a",
                "bin-copy-environment" => ( "PATH" ) )) ) }"#;
        let specs = spawn_specs(&config(text), crate::MODULES).expect("valid");
        let copied = specs.iter().map(|spec| spec.copied_environment.clone());
        let both = vec!["PATH".to_owned(), "USER".to_owned()];
        assert_eq!(copied.collect::<Vec<_>>(), [Some(both)]);
        let told = warnings(&config(text), crate::MODULES);
        assert!(told[0].message.contains("those count"), "{told:?}");
        let other_user = text.replace("(( \"socket\" => \"/s\", \"bin-path\" => \"/a\",\n                \"bin-copy-environment\" => ( \"PATH\" )", "(( \"socket\" => \"/s\", \"bin-path\" => \"/a\", \"user\" => \"www\"");
        assert_ne!(other_user, text);
        assert!(spawn_specs(&config(&other_user), crate::MODULES).is_err());
    }
}
