//! What scripts of mod_magnet can do, compared with lighttpd 1.4.69.

mod answers;
mod functions;
mod recipes;
mod request;
mod response;

use petrel_engine::module::ModuleSpec;
use petrel_engine::testing::{Answer, Site};

use crate::testing::Tree;
use crate::{alias, deflate, expire, index_file, lua, setenv, static_file};

/// The modules that take part.
const MODULES: &[&ModuleSpec] = &[
    &index_file::MODULE,
    &alias::MODULE,
    &setenv::MODULE,
    &expire::MODULE,
    &deflate::MODULE,
    &lua::MODULE,
    &super::MODULE,
    &static_file::MODULE,
];

/// A site whose scripts are files next to its document root.
struct Scripts {
    site: Site,
    tree: Tree,
}

impl Scripts {
    /// A script for each named hook: `raw-url`, `physical-path`, `response-start`.
    fn new(scripts: &[(&str, &str)]) -> Scripts {
        Scripts::with("", scripts)
    }

    /// As [`Scripts::new`], with more configuration. `ROOT` stands for the tree.
    fn with(config: &str, scripts: &[(&str, &str)]) -> Scripts {
        let mut files = vec![
            ("www/a.txt".to_owned(), "0123456789".to_owned()),
            ("www/sub/index.html".to_owned(), "index".to_owned()),
        ];
        let mut text = format!("{BASE}\n{config}\n");
        for (hook, script) in scripts {
            let name = format!("{hook}.lua");
            text += &format!("magnet.attract-{hook}-to = (\"ROOT/{name}\")\n");
            files.push((name, (*script).to_owned()));
        }
        let borrowed: Vec<_> = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_str()))
            .collect();
        let tree = Tree::new(&borrowed);
        let site = Site::new(&tree.config(&text), MODULES);
        let scripts = Scripts { site, tree };
        for (name, text) in &files {
            scripts.write(name, text);
        }
        scripts
    }

    /// Writes a file. `ROOT` stands for the tree.
    fn write(&self, name: &str, text: &str) {
        let path = std::path::PathBuf::from(self.tree.path(name));
        let parent = path.parent().expect("it is below the root");
        std::fs::create_dir_all(parent).expect("a directory can be made");
        let root = self.tree.path("");
        self.tree
            .write(name, &text.replace("ROOT", root.trim_end_matches('/')));
    }

    fn get(&self, target: &str) -> Answer {
        self.site.get(target)
    }
}

/// The budget is large enough for a debug build on a slow machine.
const BASE: &str = "server.document-root := \"ROOT/www\"
    lua.max-run-time = 1000
    index-file.names = (\"index.html\")
    mimetype.assign = (\".html\" => \"text/html\", \".txt\" => \"text/plain\")";

/// The answer of a script that runs as the first hook.
fn run(script: &str) -> Answer {
    Scripts::new(&[("raw-url", script)]).get("/x?q=1&r=2")
}

/// The texts that `script` puts into the list `o`.
fn shown(script: &str) -> String {
    let script =
        format!("local o = {{}} {script}\nlighty.content = {{ table.concat(o, '|') }} return 200");
    let answer = run(&script);
    assert_eq!(answer.status(), 200, "{script}");
    text(&answer)
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}
