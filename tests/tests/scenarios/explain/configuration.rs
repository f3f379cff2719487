//! Configurations at random, always the same ones: nested conditions, and directives that decide where a
//! request leads.

use std::fmt::Write as _;

/// The files of the tree. The content of each is its path.
pub(crate) const FILES: [&str; 28] = [
    "www/index.html",
    "www/index.php",
    "www/a.txt",
    "www/b.inc",
    "www/missing.html",
    "www/dir/index.html",
    "www/dir/x.txt",
    "www/dir/UP.txt",
    "www/app/run",
    "www/app/index.php",
    "www/noindex/f.txt",
    "www/page.php",
    "other/index.html",
    "other/a.txt",
    "other/dir/default.html",
    "other/page.php",
    "aliased/index.html",
    "aliased/x.txt",
    "aliased/page.php",
    "hosts/a.test/index.html",
    "hosts/a.test/a.txt",
    "hosts/a.test/dir/x.txt",
    "hosts/b.test/index.php",
    "hosts/b.test/page.php",
    "homes/jan/public_html/index.html",
    "homes/jan/public_html/a.txt",
    "errors/404.html",
    "errors/403.html",
];

/// The hosts that requests name.
pub(crate) const HOSTS: [&str; 4] = ["a.test", "b.test", "www.a.test", "c.example"];

/// The targets of requests.
pub(crate) const TARGETS: [&str; 30] = [
    "/",
    "/index.html",
    "/a.txt",
    "/a.txt?q=1",
    "/b.inc",
    "/dir",
    "/dir/",
    "/dir/x.txt",
    "/dir/up.txt",
    "/dir/x.txt/info",
    "/noindex/",
    "/app/run",
    "/app/run/info?q=2",
    "/app/",
    "/page.php",
    "/page.php/path/info",
    "/page.php?q=1",
    "/old/a.txt",
    "/old/dir/x.txt?q=1",
    "/loop/1",
    "/alias/",
    "/alias/x.txt",
    "/alias/page.php",
    "/alias/none",
    "/~jan/",
    "/~jan/a.txt",
    "/~eve/a.txt",
    "/none",
    "/dir/none.txt",
    "/a%2etxt",
];

/// The heads of blocks.
const CONDITIONS: [&str; 28] = [
    "$HTTP[\"host\"] == \"a.test\"",
    "$HTTP[\"host\"] == \"b.test\"",
    "$HTTP[\"host\"] != \"a.test\"",
    "$HTTP[\"host\"] =~ \"^(www\\.)?([a-z])\\.test\"",
    "$HTTP[\"host\"] !~ \"^b\"",
    "$HTTP[\"host\"] =^ \"www.\"",
    "$HTTP[\"url\"] =^ \"/dir\"",
    "$HTTP[\"url\"] =^ \"/a\"",
    "$HTTP[\"url\"] =~ \"^/(app|alias|dir)/(.*)$\"",
    "$HTTP[\"url\"] =~ \"\\.(txt|php)$\"",
    "$HTTP[\"url\"] !~ \"^/(a|d)\"",
    "$HTTP[\"url\"] == \"/a.txt\"",
    "$HTTP[\"url\"] =$ \".php\"",
    "$HTTP[\"remoteip\"] == \"127.0.0.1\"",
    "$HTTP[\"remoteip\"] == \"127.0.0.0/24\"",
    "$HTTP[\"remoteip\"] != \"127.0.0.7\"",
    "$HTTP[\"remoteip\"] =~ \"^127\\.0\\.\"",
    "$HTTP[\"querystring\"] =~ \"(^|&)q=1\"",
    "$HTTP[\"querystring\"] == \"\"",
    "$HTTP[\"request-method\"] == \"GET\"",
    "$HTTP[\"request-method\"] =~ \"^(POST|PUT)$\"",
    "$HTTP[\"scheme\"] == \"http\"",
    "$HTTP[\"scheme\"] == \"https\"",
    "$REQUEST_HEADER[\"X-Field\"] == \"two\"",
    "$REQUEST_HEADER[\"x-field\"] != \"two\"",
    "$PHYSICAL[\"path\"] =$ \".txt\"",
    "$PHYSICAL[\"existing-path\"] =~ \"/(a|x)\\.txt$\"",
    "$SERVER[\"socket\"] =~ \"^127\"",
];

/// A generator of numbers that are the same in each run (xorshift64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d);
        for _ in 0..8 {
            random.below(1);
        }
        random
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// True in one of `count` cases.
    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn choose<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

/// The text of a configuration. `backend` has the options of a FastCGI host.
pub(crate) fn make(random: &mut Random, backend: &str) -> String {
    let mut maker = Maker {
        random,
        backend,
        blocks: 0,
        conditions: CONDITIONS.to_vec(),
        text: String::from(
            "server.modules = ( \"mod_rewrite\", \"mod_redirect\", \"mod_access\", \"mod_alias\", \
             \"mod_auth\", \"mod_authn_file\", \"mod_setenv\", \"mod_simple_vhost\", \"mod_evhost\", \
             \"mod_userdir\", \"mod_expire\", \"mod_fastcgi\" )\n\
             mimetype.assign = ( \".html\" => \"text/html\", \".txt\" => \"text/plain\" )\n",
        ),
    };
    maker.directives(0);
    for _ in 0..2 + maker.random.below(3) {
        maker.chain(0);
    }
    maker.text
}

struct Maker<'r> {
    random: &'r mut Random,
    backend: &'r str,
    blocks: usize,
    /// Those that were not used.
    conditions: Vec<&'static str>,
    text: String,
}

impl Maker<'_> {
    /// A condition with its block, and further branches.
    fn chain(&mut self, depth: usize) {
        let Some(condition) = self.condition() else {
            return;
        };
        self.block(condition, depth);
        while self.random.one_in(2) {
            let Some(condition) = self.condition() else {
                break;
            };
            self.block(&format!("else {condition}"), depth);
        }
        if self.random.one_in(2) {
            self.block("else", depth);
        }
    }

    fn block(&mut self, head: &str, depth: usize) {
        let indent = "    ".repeat(depth);
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{indent}{head} {{");
        self.directives(depth + 1);
        if depth < 3 && self.random.one_in(2) {
            self.chain(depth + 1);
        }
        let _ = writeln!(self.text, "{indent}}}");
    }

    /// A condition that was not used before: the same one twice would be one block.
    fn condition(&mut self) -> Option<&'static str> {
        if self.conditions.is_empty() {
            return None;
        }
        let index = self.random.below(self.conditions.len());
        Some(self.conditions.swap_remove(index))
    }

    fn directives(&mut self, depth: usize) {
        let indent = "    ".repeat(depth);
        let number = self.blocks;
        self.blocks += 1;
        let _ = writeln!(self.text, "{indent}server.tag = \"block-{number}\"");
        if self.random.one_in(2) {
            let _ = writeln!(
                self.text,
                "{indent}setenv.add-response-header = ( \"X-Block\" => \"{number}\" )"
            );
        }
        let mut names = Vec::new();
        for _ in 0..self.random.below(4) {
            let directive = self.directive();
            let name = directive.split(' ').next().unwrap_or_default().to_owned();
            // A directive stands once in a block. The defaults of all tests have these outside of blocks.
            let is_default =
                depth == 0 && ["server.document-root", "index-file.names"].contains(&name.as_str());
            if names.contains(&name) || is_default {
                continue;
            }
            names.push(name);
            for line in directive.lines() {
                let _ = writeln!(self.text, "{indent}{line}");
            }
        }
    }

    fn directive(&mut self) -> String {
        let backend = self.backend;
        let choices = [
            "server.document-root = var.dir + \"/other\"".to_owned(),
            "server.document-root = var.dir + \"/www/dir\"".to_owned(),
            "server.document-root = var.dir + \"/none\"".to_owned(),
            "index-file.names = ( \"index.php\", \"index.html\" )".to_owned(),
            "index-file.names = ( \"default.html\", \"/missing.html\" )".to_owned(),
            "index-file.names = ()".to_owned(),
            "url.rewrite-once = ( \"^/old/(.*)$\" => \"/$1\", \"^/none$\" => \"\" )".to_owned(),
            "url.rewrite-once = ( \"^/dir/(.*)\\.txt\" => \"/page.php?file=$1\", \"^/~(.*)\" => \"/%1/$1\" )"
                .to_owned(),
            "url.rewrite-repeat = ( \"^/loop/(.*)$\" => \"/loop/x$1\", \"^/old/(.*)\" => \"/dir/$1\" )"
                .to_owned(),
            "url.rewrite-if-not-file = ( \"^/(none|dir/none)\" => \"/index.php?$1\" )".to_owned(),
            "url.redirect = ( \"^/old/(.*)$\" => \"http://%0.example/$1${qsa}\" )".to_owned(),
            "url.redirect = ( \"^/dir/x\" => \"/a.txt\" )\nurl.redirect-code = 302".to_owned(),
            "alias.url = ( \"/alias/\" => var.dir + \"/aliased/\" )".to_owned(),
            "alias.url = ( \"/alias\" => var.dir + \"/www/dir\", \"/app/\" => var.dir + \"/aliased/\" )".to_owned(),
            "simple-vhost.server-root = var.dir + \"/hosts/\"\nsimple-vhost.default-host = \"a.test\"\n\
             simple-vhost.document-root = \"/\""
                .to_owned(),
            "evhost.path-pattern = var.dir + \"/hosts/%0/\"".to_owned(),
            "userdir.basepath = var.dir + \"/homes\"\nuserdir.path = \"public_html\"".to_owned(),
            "url.access-deny = ( \".inc\", \"x.txt\" )".to_owned(),
            "server.error-handler-404 = \"/missing.html\"".to_owned(),
            "server.error-handler-404 = \"/index.php\"".to_owned(),
            "server.error-handler = \"/a.txt\"".to_owned(),
            "server.errorfile-prefix = var.dir + \"/errors/\"".to_owned(),
            "dir-listing.activate = \"enable\"".to_owned(),
            "static-file.exclude-extensions = ( \".php\" )".to_owned(),
            "server.force-lowercase-filenames = \"enable\"".to_owned(),
            "expire.url = ( \"/dir/\" => \"access plus 1 hours\" )".to_owned(),
            "auth.require = ( \"/dir\" => ( \"method\" => \"basic\", \"realm\" => \"r\", \"require\" => \"valid-user\" ) )\n\
             auth.backend = \"plain\"\nauth.backend.plain.userfile = var.dir + \"/errors/404.html\""
                .to_owned(),
            format!("fastcgi.server = ( \".php\" => (( {backend} )) )"),
            format!("fastcgi.server = ( \".php\" => (( {backend} )), \"/app\" => (( {backend}, \"check-local\" => \"disable\" )) )"),
            format!("fastcgi.server = ( \"/\" => (( {backend}, \"check-local\" => \"disable\" )) )"),
        ];
        self.random.choose(&choices).clone()
    }
}
