//! The small example site that `petrel` serves when it is started without arguments.
//!
//! The site's files are compiled into the program. They are written to a private temporary directory, because
//! the server serves files; dropping [`BundledSite`] removes the directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The example site in its temporary directory.
pub(crate) struct BundledSite {
    directory: PathBuf,
    owner: u32,
}

impl BundledSite {
    /// Writes the site's files to a new temporary directory.
    ///
    /// # Errors
    /// The directory or a file cannot be written.
    pub(crate) fn write() -> io::Result<BundledSite> {
        let template = std::env::temp_dir().join("petrel-site-XXXXXX");
        let directory = nix::unistd::mkdtemp(&template)?;
        let site = BundledSite {
            directory,
            owner: std::process::id(),
        };
        for (name, content) in FILES {
            let path = site.directory.join(name);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, content)?;
        }
        Ok(site)
    }

    /// The directory that holds the site.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for BundledSite {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            // If this fails, a few files stay in the temporary directory and do no harm.
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// The files of the site: name and content.
const FILES: &[(&str, &[u8])] = &[
    ("index.html", include_bytes!("site/index.html")),
    ("style.css", include_bytes!("site/style.css")),
    ("petrel.svg", include_bytes!("site/petrel.svg")),
    ("files/hello.txt", include_bytes!("site/files/hello.txt")),
    (
        "files/sample.conf.txt",
        include_bytes!("site/files/sample.conf.txt"),
    ),
    (
        "files/numbers.json",
        include_bytes!("site/files/numbers.json"),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_the_page_leads_to_a_file() {
        let site = BundledSite::write().expect("written");
        let page = fs::read_to_string(site.directory().join("index.html")).expect("the page");
        let links: Vec<&str> = ["href=\"", "src=\""]
            .iter()
            .flat_map(|start| page.split(start).skip(1))
            .filter_map(|rest| rest.split('"').next())
            .collect();
        assert!(links.len() >= 5, "{links:?}");
        for link in links {
            let path = site.directory().join(link.trim_start_matches('/'));
            assert!(path.exists(), "{link}");
        }
        let directory = site.directory().to_owned();
        drop(site);
        assert!(!directory.exists());
    }
}
