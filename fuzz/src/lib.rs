//! Fuzz targets: one for each language that strangers write to the server.
//!
//! A target is a function that takes any bytes and panics when the code that it is about does what it must not.
//! The fuzzing program calls it with new inputs (`cargo xtask fuzz`), and the tests of this crate with the seeds.
#![forbid(unsafe_code)]

mod ajp13;
mod cgi_head;
mod client_hello;
mod configuration;
mod fastcgi;
mod fields;
mod hpack;
mod http2_connection;
mod http2_frames;
mod http2_to_http1;
mod ldap;
mod listen;
mod memcached;
mod proxied;
mod range;
mod recorder;
mod request_body;
mod request_head;
mod resp;
mod response;
mod scgi;
mod sock_diag;
mod stored_page;
mod template;
mod url;
mod uwsgi;

/// A fuzz target.
pub struct Target {
    /// The name of its module, and of the folder of its seeds.
    pub name: &'static str,
    /// Tries an input.
    pub run: fn(&[u8]),
    /// The code that it is about: paths from the root of the work tree, without `.rs`.
    pub sources: &'static [&'static str],
}

macro_rules! targets {
    ($($name:ident: [$($source:literal),+ $(,)?],)+) => {
        /// Every target.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $name::$name,
            sources: &[$($source),+],
        }),+];

        #[cfg(test)]
        mod seeds {
            $(#[test]
            fn $name() {
                super::tests::replay_seeds(stringify!($name), crate::$name::$name);
            })+
        }
    };
}

include!("targets.rs");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsStr;
    use std::path::{Path, PathBuf};
    use std::{fs, panic};

    use super::*;

    /// Fewer do not show the fuzzer what the language looks like.
    const SEEDS_MIN: usize = 5;

    fn seeds() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds")
    }

    fn entries(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder)
            .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
            .map(|entry| entry.expect("an entry").path());
        entries.collect()
    }

    /// Calls the target with each of its seeds.
    pub(super) fn replay_seeds(name: &str, run: fn(&[u8])) {
        let seeds = entries(&seeds().join(name));
        assert!(seeds.len() >= SEEDS_MIN, "{name} has {} seeds", seeds.len());
        for seed in seeds {
            let input = fs::read(&seed).expect("a seed can be read");
            if panic::catch_unwind(|| run(&input)).is_err() {
                panic!("{name} fails with the seed {}", seed.display());
            }
        }
    }

    #[test]
    fn each_folder_of_seeds_belongs_to_a_target() {
        let names: BTreeSet<_> = TARGETS
            .iter()
            .map(|target| OsStr::new(target.name))
            .collect();
        let folders = entries(&seeds());
        let folders: BTreeSet<_> = folders
            .iter()
            .filter_map(|folder| folder.file_name())
            .collect();
        assert_eq!(folders, names);
    }
}
