//! What makes a configuration private: nothing that it names is shared with the server that runs by it.
//!
//! The listeners are replaced when they are opened, and the logs when they are adopted; here are the values
//! that other code reads: sockets of backend programs, and directories that a server writes to.

use std::path::{Path, PathBuf};

use config::value::Key;
use config::{Array, Config, Element, Value};

/// Replaces the places that a server of its own must not share by places in `directory`. Returns the
/// directories that have to be made.
pub(super) fn make_private(config: &mut Config, directory: &Path) -> Vec<PathBuf> {
    let mut places = PrivatePlaces {
        directory,
        programs: Vec::new(),
    };
    let mut made = Vec::new();
    for entry in config
        .blocks
        .iter_mut()
        .flat_map(|block| &mut block.entries)
    {
        if WRITTEN_DIRECTORIES.contains(&entry.name.as_str()) {
            let path = directory.join(&entry.name);
            entry.value = Value::String(path.display().to_string());
            if !made.contains(&path) {
                made.push(path);
            }
        } else {
            let value = std::mem::replace(&mut entry.value, Value::Integer(0));
            entry.value = places.in_value(value);
        }
    }
    made
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

#[cfg(test)]
mod tests {
    use super::*;
    use config::LoadOptions;

    #[test]
    fn programs_listen_elsewhere_and_other_backends_stay() {
        let text = r#"
            deflate.cache-dir = "/var/cache/live"
            fastcgi.server = (
                ".a" => (( "socket" => "/run/live", "bin-path" => "/bin/a", "max-procs" => 8 )),
                ".b" => (( "socket" => "/run/live", "bin-path" => "/bin/a" )),
                ".c" => (( "host" => "127.0.0.1", "port" => 9000, "bin-path" => "/bin/c" )),
                ".d" => (( "socket" => "/run/php-fpm" )) )"#;
        let schema = modules::schema();
        let mut config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
            .expect("a configuration");
        let made = make_private(&mut config, Path::new("/p"));
        assert_eq!(made, [Path::new("/p/deflate.cache-dir")]);
        let printed = config::print(&config);
        for gone in ["/run/live", "/var/cache", "9000", "127.0.0.1", "8"] {
            assert!(!printed.contains(gone), "{gone}: {printed}");
        }
        assert!(printed.contains("/run/php-fpm"), "{printed}");
        assert_eq!(printed.matches("/p/program-0").count(), 2, "{printed}");
        assert_eq!(printed.matches("/p/program-1").count(), 1, "{printed}");
    }
}
