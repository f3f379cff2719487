//! What is needed to interpret the figures: processor, kernel, versions of all servers.

use crate::peers::Chosen;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::Command;

/// The machine and the servers of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The version that each server reports.
    pub versions: BTreeMap<&'static str, String>,
}

/// The facts of this machine.
pub fn facts(servers: &[Chosen]) -> Machine {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let processor = model.map_or("unknown", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    Machine {
        processor: processor.to_owned(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        versions: servers
            .iter()
            .map(|chosen| (chosen.peer.name, version(chosen)))
            .collect(),
    }
}

/// The first line with a digit in the server's output; some servers print it to standard error.
fn version(chosen: &Chosen) -> String {
    let output = Command::new(&chosen.path)
        .args(chosen.peer.version)
        .output();
    let text = output
        .map(|output| [output.stdout, output.stderr].concat())
        .unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text
        .lines()
        .find(|line| line.contains(|c: char| c.is_ascii_digit()));
    shorten(line.unwrap_or("unknown"))
}

/// Reduces `lighttpd/1.4.69 (ssl) - a light server` and the like to the number.
fn shorten(line: &str) -> String {
    let numbers = line.split([' ', '/', '(', ')']);
    let number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let mut words = numbers.map(|word| word.trim_start_matches('v'));
    words.find(number).unwrap_or(line).to_owned()
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            kernel,
            versions,
        } = self;
        write!(f, "{processor}, {cores} cores, Linux {kernel}")?;
        for (name, version) in versions {
            write!(f, ", {name} {version}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_shortened_to_the_number() {
        assert_eq!(
            shorten("lighttpd/1.4.69 (ssl) - a light and fast webserver"),
            "1.4.69"
        );
        assert_eq!(shorten("nginx version: nginx/1.22.1"), "1.22.1");
        assert_eq!(shorten("h2o version 2.2.5"), "2.2.5");
        assert_eq!(shorten("v2.6.2 h1:abc="), "2.6.2");
        assert_eq!(shorten("unknown"), "unknown");
    }
}
