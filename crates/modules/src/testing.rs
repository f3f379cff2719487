//! What the tests of this crate share: a tree of files that is removed after the test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use petrel_engine::module::ModuleSpec;
use petrel_engine::testing::Site;

/// A directory for one test.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// A tree with these files and their directories.
    pub(crate) fn new(files: &[(&str, &str)]) -> Tree {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("petrel-modules-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&root).expect("the temporary directory is writable");
        for (path, content) in files {
            let path = root.join(path);
            let parent = path.parent().expect("it is below the root");
            std::fs::create_dir_all(parent).expect("a directory can be made");
            std::fs::write(path, content).expect("a file can be written");
        }
        Tree { root }
    }

    /// The path of `name` in the tree.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root.display())
    }

    /// Writes the file `name`, which may exist already.
    pub(crate) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.root.join(name), content).expect("a file can be written");
    }

    /// A site with this tree as its document root. `ROOT` in `config` stands for the tree's path.
    pub(crate) fn site(&self, config: &str, modules: &[&'static ModuleSpec]) -> Site {
        Site::new(&self.config(config), modules)
    }

    /// The whole configuration of [`Tree::site`].
    pub(crate) fn config(&self, config: &str) -> String {
        let root = self.root.display().to_string();
        format!(
            "server.document-root = \"{root}\"\n{}",
            config.replace("ROOT", &root)
        )
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // The error is ignored: a leftover in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// The error message for an invalid `config`.
pub(crate) fn refusal(config: &str, modules: &[&'static ModuleSpec]) -> String {
    match Site::try_new(config, modules) {
        Ok(_) => panic!("it is accepted: {config}"),
        Err(message) => message,
    }
}
