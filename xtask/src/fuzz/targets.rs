//! The table of fuzz targets, read from the crate that has them without depending on it: xtask builds soon, and also when
//! the server does not.

/// A fuzz target.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name: the module in `fuzz/src/` and the folder of seeds in `fuzz/seeds/`.
    pub name: &'static str,
    /// The code that it is about: paths from the root of the work tree, without `.rs`.
    pub sources: &'static [&'static str],
}

impl Target {
    /// Whether the file at `path`, from the root of the work tree, is its module, one of its seeds, or code that it is
    /// about.
    pub fn is_about(&self, path: &str) -> bool {
        let own = [
            format!("fuzz/src/{}", self.name),
            format!("fuzz/seeds/{}", self.name),
        ];
        let own = own.iter().map(String::as_str);
        let mut sources = own.chain(self.sources.iter().copied());
        // A module is a file, a folder, or both.
        sources.any(|source| {
            let rest = path.strip_prefix(source);
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        })
    }
}

macro_rules! targets {
    ($($name:ident: [$($source:literal),+ $(,)?],)+) => {
        /// Every target.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            sources: &[$($source),+],
        }),+];
    };
}

include!("../../../fuzz/src/targets.rs");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    fn touched_by(path: &str) -> Vec<&'static str> {
        let targets = TARGETS.iter().filter(|target| target.is_about(path));
        targets.map(|target| target.name).collect()
    }

    #[test]
    fn a_changed_file_touches_the_targets_that_are_about_it() {
        for (path, targets) in [
            ("crates/proto/src/scgi.rs", &["scgi"][..]),
            ("crates/proto/src/cgi.rs", &["cgi_head", "fastcgi"]),
            ("crates/proto/src/cgi/tests.rs", &["cgi_head", "fastcgi"]),
            ("crates/proto/src/ldap/ber.rs", &["ldap"]),
            ("crates/config/src/listen.rs", &["configuration", "listen"]),
            ("fuzz/src/range.rs", &["range"]),
            ("fuzz/seeds/range/suffix", &["range"]),
            ("fuzz/src/lib.rs", &[]),
            ("crates/proto/src/lib.rs", &[]),
            ("crates/proto/src/ldaptest.rs", &[]),
            ("README.md", &[]),
        ] {
            assert_eq!(touched_by(path), targets, "{path}");
        }
    }

    #[test]
    fn the_sources_of_every_target_are_there() {
        let root = Workspace::here().root;
        for target in TARGETS {
            assert!(touched_by(&format!("fuzz/src/{}.rs", target.name)) == [target.name]);
            for source in target.sources {
                let path = root.join(source);
                let is_there = path.is_dir() || path.with_extension("rs").is_file();
                assert!(is_there, "{}: {source}", target.name);
            }
        }
    }
}
