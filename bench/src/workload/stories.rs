//! The URLs of the article "Reducing the Number of stat() Calls Made by Apache", and the ways to answer them.
//!
//! Apache's mod_perl answers in each of the article's configurations, for a URL that is no file. Petrel's
//! counterparts are a document root and an alias, which do have files, and a script. (The fourth is a FastCGI
//! route, an ordinary workload.)

use std::path::Path;
use std::{fs, io};

/// What is requested, and how it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Story {
    /// How it is answered.
    pub way: Way,
    /// Sections of the path after the first.
    pub sections: usize,
}

/// A way to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Apache: a handler in Perl.
    Handler(Htaccess, Lookup),
    /// Petrel: a file in the document root.
    DocumentRoot,
    /// Petrel: a file in another directory, through an alias.
    Alias,
    /// Petrel: a script in Lua that runs before the URL is mapped to a file.
    Script,
}

/// Whether Apache looks for `.htaccess` files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Htaccess {
    /// It does.
    Sought,
    /// It does not: `AllowOverride None`.
    Off,
}

/// How Apache maps the URL to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It looks below the document root.
    DocumentRoot,
    /// `Alias /news /`.
    Alias,
    /// Not at all: a `PerlTransHandler` answers for it.
    Trans,
}

impl Story {
    /// The requested path.
    pub fn path(self) -> String {
        match self.way {
            Way::DocumentRoot => format!("{FILES}{}", self.file()),
            Way::Alias => format!("{NEWS}{}", self.file()),
            Way::Handler(..) | Way::Script => format!("{NEWS}{}", self.sections()),
        }
    }

    /// The body of the reply. The script's role is not to look at the path: it prints it as it is.
    pub fn body(self) -> String {
        match self.way {
            Way::Script => format!("Story matching {}\n", self.path()),
            _ => {
                let path = format!("{NEWS}{}", self.sections());
                format!("Story matching {}\n", path.replace('/', " "))
            }
        }
    }

    /// Makes its file, if it has one. Files of stories are not below [`NEWS`], where Apache would find their
    /// directories.
    pub fn make(self, root: &Path) -> io::Result<()> {
        if !matches!(self.way, Way::DocumentRoot | Way::Alias) {
            return Ok(());
        }
        let file = root.join(format!("{FILES}{}", self.file()).trim_start_matches('/'));
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(file, self.body())
    }

    fn sections(self) -> String {
        let names = SECTIONS.iter().take(self.sections);
        names.map(|name| format!("/{name}")).collect()
    }

    fn file(self) -> String {
        self.sections() + ".html"
    }
}

/// The prefix of the article's URLs.
pub const NEWS: &str = "/news";
/// The directory of files, below the document root.
pub const FILES: &str = "/stories";
const SECTIONS: [&str; 5] = ["perl", "mod_perl", "summary", "foo", "bar"];

#[cfg(test)]
mod tests {
    use super::*;

    fn story(way: Way, sections: usize) -> Story {
        Story { way, sections }
    }

    #[test]
    fn paths_are_the_articles() {
        let handler = Way::Handler(Htaccess::Sought, Lookup::DocumentRoot);
        let path = |sections| story(handler, sections).path();
        assert_eq!(path(1), "/news/perl");
        assert_eq!(path(3), "/news/perl/mod_perl/summary");
        assert_eq!(path(5), "/news/perl/mod_perl/summary/foo/bar");
        assert_eq!(
            story(handler, 3).body(),
            "Story matching  news perl mod_perl summary\n"
        );
    }

    #[test]
    fn apache_finds_nothing_below_the_articles_prefix() {
        let root = tempfile::tempdir().unwrap();
        for sections in [1, 3, 5] {
            for way in [Way::DocumentRoot, Way::Alias, Way::Script] {
                story(way, sections).make(root.path()).unwrap();
            }
            let path = story(Way::DocumentRoot, sections).path();
            let text = fs::read_to_string(root.path().join(&path[1..])).unwrap();
            assert_eq!(text, story(Way::DocumentRoot, sections).body());
        }
        assert!(!root.path().join("news").exists());
    }
}
