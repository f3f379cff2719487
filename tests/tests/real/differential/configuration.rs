//! The configurations of `configurations/`: a comment says what each is about, and what it is asked.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// A configuration, and what requests to it are made of.
pub(crate) struct Configuration {
    /// The name of its file.
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) hosts: Vec<String>,
    /// Targets of its own, beside those that all have.
    pub(crate) paths: Vec<String>,
    /// Lines of request heads, of which a request has at most one.
    pub(crate) fields: Vec<String>,
    /// Methods beside GET, HEAD and POST.
    pub(crate) methods: Vec<String>,
    /// Addresses that clients have.
    pub(crate) from: Vec<Ipv4Addr>,
}

impl Configuration {
    /// Those of the directory, by name.
    pub(crate) fn all() -> Vec<Configuration> {
        let directory =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real/differential/configurations");
        let entries = fs::read_dir(&directory).expect("the configurations");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .filter(|name| name.ends_with(".conf"))
            .collect();
        names.sort();
        let read = |name: String| {
            let text = fs::read_to_string(directory.join(&name)).expect("a configuration");
            Configuration::read(name.trim_end_matches(".conf"), text)
        };
        names.into_iter().map(read).collect()
    }

    fn read(name: &str, text: String) -> Configuration {
        let list = |key: &str, separator: &str| -> Vec<String> {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("# {key}: ")));
            let items = line.into_iter().flat_map(|line| line.split(separator));
            items.map(str::to_owned).collect()
        };
        let mut hosts = list("hosts", " ");
        if hosts.is_empty() {
            hosts.push("a.test".to_owned());
        }
        let address = |text: &String| text.parse().expect("an address");
        let mut from: Vec<Ipv4Addr> = list("from", " ").iter().map(address).collect();
        if from.is_empty() {
            from.push(Ipv4Addr::LOCALHOST);
        }
        Configuration {
            name: name.to_owned(),
            hosts,
            from,
            paths: list("paths", " "),
            fields: list("fields", " | "),
            methods: list("methods", " "),
            text,
        }
    }
}
