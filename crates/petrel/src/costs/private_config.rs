//! What makes a configuration private: nothing that it names is shared with the server that runs by it.
//!
//! The listeners are replaced when they are opened, and the logs when they are adopted; here are the values
//! that other code reads: sockets of backend programs, and directories that a server writes to. Stores that
//! keep pages for several servers are left out: a page that was made for the private instance's client would be
//! sent to theirs. So is the collector of traces.

use std::path::{Path, PathBuf};

use config::value::Key;
use config::{Array, Config, Element, Entry, Value};

/// Replaces the places that a server of its own must not share by places in `directory`. Returns the
/// directories that have to be made.
pub(super) fn make_private(config: &mut Config, directory: &Path) -> Vec<PathBuf> {
    let mut places = PrivatePlaces {
        directory,
        programs: Vec::new(),
    };
    let mut made = Vec::new();
    for block in &mut config.blocks {
        let is_kept = |entry: &Entry| !SHARED_STORES.contains(&entry.name.as_str());
        block.entries.retain(is_kept);
    }
    for entry in config
        .blocks
        .iter_mut()
        .flat_map(|block| &mut block.entries)
    {
        let path = directory.join(&entry.name);
        let private = Value::String(path.display().to_string());
        let is_written = if WRITTEN_DIRECTORIES.contains(&entry.name.as_str()) {
            entry.value = private;
            true
        } else if entry.name == "dir-listing.cache" {
            let value = std::mem::replace(&mut entry.value, Value::Integer(0));
            let (value, has_path) = with_path(value, &private);
            entry.value = value;
            has_path
        } else {
            let value = std::mem::replace(&mut entry.value, Value::Integer(0));
            entry.value = places.in_value(value);
            false
        };
        if is_written && !made.contains(&path) {
            made.push(path);
        }
    }
    made
}

/// A map whose "path" is another one, and whether it had a path.
fn with_path(value: Value, path: &Value) -> (Value, bool) {
    let Value::Array(array) = value else {
        return (value, false);
    };
    let (mut changed, mut has_path) = (Array::default(), false);
    for mut element in array {
        if element.key() == Some("path") {
            element.value = path.clone();
            has_path = true;
        }
        push(&mut changed, element);
    }
    (Value::Array(changed), has_path)
}

/// The sockets of backend programs.
struct PrivatePlaces<'a> {
    directory: &'a Path,
    /// The configured addresses. Two backends with one address and one program are one program.
    programs: Vec<String>,
}

impl PrivatePlaces<'_> {
    fn in_value(&mut self, value: Value) -> Value {
        match value {
            Value::Array(array) => Value::Array(self.in_array(array)),
            other => other,
        }
    }

    fn in_array(&mut self, array: Array) -> Array {
        let program = array.get("bin-path").map(|element| element.span);
        let address = program.map(|_| address_of(&array));
        let mut changed = Array::default();
        let is_replaced = |key: &str| ADDRESS.contains(&key) || PROCESSES.contains(&key);
        for element in array {
            if program.is_none() || !element.key().is_some_and(is_replaced) {
                let value = self.in_value(element.value);
                push(&mut changed, Element { value, ..element });
            }
        }
        if let (Some(span), Some(address)) = (program, address) {
            let mut add = |key: &str, value: Value| {
                let text = key.to_owned();
                let key = Some(Key { text, span });
                push(&mut changed, Element { key, value, span });
            };
            add("socket", Value::String(self.socket(address)));
            for key in PROCESSES {
                add(key, Value::Integer(1));
            }
        }
        changed
    }

    fn socket(&mut self, address: String) -> String {
        let known = self.programs.iter().position(|known| *known == address);
        let number = known.unwrap_or_else(|| {
            self.programs.push(address);
            self.programs.len() - 1
        });
        let path = self.directory.join(format!("program-{number}"));
        path.display().to_string()
    }
}

fn push(array: &mut Array, element: Element) {
    // It cannot be refused: its keys are those of an array that had each once.
    let _ = array.push(element);
}

fn address_of(array: &Array) -> String {
    let values = ADDRESS.map(|key| match array.get(key).map(|element| &element.value) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Integer(number)) => number.to_string(),
        _ => String::new(),
    });
    values.join(" ")
}

const ADDRESS: [&str; 3] = ["socket", "host", "port"];
/// One process is enough for one request at a time.
const PROCESSES: [&str; 2] = ["max-procs", "min-procs"];
/// Directories that a server writes to.
const WRITTEN_DIRECTORIES: &[&str] = &[
    "deflate.cache-dir",
    "compress.cache-dir",
    "page-cache.disk-path",
];

/// What switches on stores of pages that servers share, and the sending of traces.
const SHARED_STORES: &[&str] = &["page-cache.second-tier", "mcpage.enable", "otel.endpoint"];

#[cfg(test)]
mod tests {
    use super::*;
    use config::LoadOptions;

    #[test]
    fn programs_listen_elsewhere_and_other_backends_stay() {
        let text = r#"
            deflate.cache-dir = "/var/cache/live"
            dir-listing.cache = ( "max-age" => 60, "path" => "/var/cache/live-lists" )
            page-cache.second-tier = "redis:10.0.0.1"
            otel.endpoint = "http://10.0.0.1:4318"
            mcpage.memcached-hosts = ( "10.0.0.2" )
            $HTTP["host"] == "a" { mcpage.enable = "enable" }
            fastcgi.server = (
                ".a" => (( "socket" => "/run/live", "bin-path" => "/bin/a", "max-procs" => 8 )),
                ".b" => (( "socket" => "/run/live", "bin-path" => "/bin/a" )),
                ".c" => (( "host" => "127.0.0.1", "port" => 9000, "bin-path" => "/bin/c" )),
                ".d" => (( "socket" => "/run/php-fpm" )) )"#;
        let schema = modules::schema();
        let mut config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
            .expect("a configuration");
        let made = make_private(&mut config, Path::new("/p"));
        assert_eq!(
            made,
            [
                Path::new("/p/deflate.cache-dir"),
                Path::new("/p/dir-listing.cache")
            ]
        );
        let printed = config::print(&config);
        for gone in [
            "/run/live",
            "/var/cache",
            "9000",
            "127.0.0.1",
            "8",
            "second-tier",
            "mcpage.enable",
            "otel.endpoint",
        ] {
            assert!(!printed.contains(gone), "{gone}: {printed}");
        }
        assert!(printed.contains("/run/php-fpm"), "{printed}");
        assert!(printed.contains("60"), "{printed}");
        assert_eq!(printed.matches("/p/program-0").count(), 2, "{printed}");
        assert_eq!(printed.matches("/p/program-1").count(), 1, "{printed}");
    }
}
