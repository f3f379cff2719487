//! `print "123"` in Perl, Python and Ruby, each with its FastCGI library.
//!
//! Each forks as many processes as php-cgi has; all of them accept on their standard input.

use super::php::{PROCESSES, installed};
use crate::install::Package;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Perl's FCGI, identified by its package, because the program perl is always there.
pub const PERL: Package = ("perl", "libfcgi-perl");
/// Python. Debian has no package of the library: see [`install_flup`].
pub const PYTHON: Package = ("python3", "python3");
/// The program that installs the library.
pub const PIP: Package = ("pip3", "python3-pip");
/// Ruby's fcgi.
pub const RUBY: Package = ("ruby", "ruby-fcgi");

/// Perl's FCGI, a wrapper around the library that was published with the specification.
pub fn perl(directory: &Path) -> Result<Command, String> {
    let text = format!(
        "use strict;
use FCGI;
for (2..{PROCESSES}) {{ last unless fork }}
my $request = FCGI::Request();
while ($request->Accept() >= 0) {{
    print \"Content-Type: text/html\\r\\n\\r\\n123\";
}}
"
    );
    has_library(PERL, &["-MFCGI", "-e", "1"])?;
    script(PERL, directory, "123.pl", &text)
}

/// Python's flup, a WSGI server, with one thread per process like the others.
pub fn python(directory: &Path) -> Result<Command, String> {
    let libraries = flup_directory();
    if !libraries.is_dir() {
        return Err("flup is not installed (PyPI)".to_owned());
    }
    let text = format!(
        "import os
from flup.server.fcgi_single import WSGIServer

def application(environ, start_response):
    start_response('200 OK', [('Content-Type', 'text/html')])
    return [b'123']

for _ in range(1, {PROCESSES}):
    if os.fork() == 0:
        break
WSGIServer(application).run()
"
    );
    let mut command = script(PYTHON, directory, "123.py", &text)?;
    command.env("PYTHONPATH", libraries);
    Ok(command)
}

/// Ruby's fcgi.
pub fn ruby(directory: &Path) -> Result<Command, String> {
    let text = format!(
        "require 'fcgi'
({PROCESSES} - 1).times {{ break if fork.nil? }}
FCGI.each do |request|
  request.out.print \"Content-Type: text/html\\r\\n\\r\\n123\"
  request.finish
end
"
    );
    has_library(RUBY, &["-rfcgi", "-e", "1"])?;
    script(RUBY, directory, "123.rb", &text)
}

/// Installs flup where [`python`] looks for it, unless it is there.
pub fn install_flup() -> Result<(), String> {
    let directory = flup_directory();
    if directory.is_dir() {
        return Ok(());
    }
    let mut command = Command::new(installed(PYTHON)?);
    command.args(["-m", "pip", "install", "--quiet", "--target"]);
    command.arg(&directory).arg("flup");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("pip install flup: {status}")),
        Err(error) => Err(format!("pip: {error}")),
    }
}

/// A directory in the user's cache, which is kept after a comparison.
fn flup_directory() -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(home).unwrap_or_else(std::env::temp_dir);
    cache.join("petrel-bench/flup")
}

/// Whether the language has the library, which a program of one line loads. Without it the script would end at once, and
/// servers would answer 503.
fn has_library((program, package): Package, load_it: &[&str]) -> Result<(), String> {
    let mut command = Command::new(installed((program, package))?);
    let output = command.args(load_it).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        _ => Err(format!(
            "the FastCGI library of {program} is not installed (Debian package {package})"
        )),
    }
}

fn script(program: Package, directory: &Path, name: &str, text: &str) -> Result<Command, String> {
    let path = directory.join(name);
    std::fs::write(&path, text).map_err(|error| error.to_string())?;
    let mut command = Command::new(installed(program)?);
    command.arg(path);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named_by_its_package() {
        let perl = ("perl", "libfcgi-perl");
        assert_eq!(has_library(perl, &["-Mstrict", "-e", "1"]), Ok(()));
        assert_eq!(
            has_library(perl, &["-MNo::Such::Library", "-e", "1"]),
            Err(
                "the FastCGI library of perl is not installed (Debian package libfcgi-perl)"
                    .to_owned()
            )
        );
    }
}
