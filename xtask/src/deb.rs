//! `cargo xtask package`: makes the Debian package.
//!
//! A table says which file goes where; `dpkg-deb` makes the archive of it. What the program can print about
//! itself (manual pages, completions) it prints here, so that the package has exactly what its program does.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{self, Workspace, output_of};

/// Files of the work tree, each with its place in the package and its mode.
const FILES: &[(&str, &str, u32)] = &[
    ("packaging/petrel.conf", "etc/petrel/petrel.conf", 0o644),
    (
        "packaging/petrel.logrotate",
        "etc/logrotate.d/petrel",
        0o644,
    ),
    (
        "packaging/petrel.service",
        "usr/lib/systemd/system/petrel.service",
        0o644,
    ),
    (
        "packaging/petrel.socket",
        "usr/lib/systemd/system/petrel.socket",
        0o644,
    ),
    (
        "packaging/lighttpd.service.conf",
        "usr/share/petrel/lighttpd.service.conf",
        0o644,
    ),
    ("packaging/mime-types", "usr/share/petrel/mime-types", 0o755),
    (
        "packaging/index.html",
        "var/www/html/index.petrel.html",
        0o644,
    ),
    ("README.md", "usr/share/doc/petrel/README.md", 0o644),
    ("CHANGELOG.md", "usr/share/doc/petrel/CHANGELOG.md", 0o644),
    ("LICENSE-MIT", "usr/share/doc/petrel/LICENSE-MIT", 0o644),
    (
        "LICENSE-APACHE",
        "usr/share/doc/petrel/LICENSE-APACHE",
        0o644,
    ),
    (
        "packaging/copyright",
        "usr/share/doc/petrel/copyright",
        0o644,
    ),
    ("packaging/postinst", "DEBIAN/postinst", 0o755),
    ("packaging/prerm", "DEBIAN/prerm", 0o755),
    ("packaging/postrm", "DEBIAN/postrm", 0o755),
];

/// What the program prints about itself, by its arguments, and where that goes.
const PRINTED: &[(&[&str], &str)] = &[
    (&["man"], "usr/share/man/man1/petrel.1"),
    (&["man", "serve"], "usr/share/man/man1/petrel-serve.1"),
    (&["man", "reload"], "usr/share/man/man1/petrel-reload.1"),
    (&["man", "stop"], "usr/share/man/man1/petrel-stop.1"),
    (&["man", "reopen"], "usr/share/man/man1/petrel-reopen.1"),
    (&["man", "status"], "usr/share/man/man1/petrel-status.1"),
    (&["man", "spawn"], "usr/share/man/man1/petrel-spawn.1"),
    (
        &["man", "fcgi-magnet"],
        "usr/share/man/man1/petrel-fcgi-magnet.1",
    ),
    (
        &["man", "fcgi-stat-accel"],
        "usr/share/man/man1/petrel-fcgi-stat-accel.1",
    ),
    (&["man", "lua"], "usr/share/man/man1/petrel-lua.1"),
    (&["man", "explain"], "usr/share/man/man1/petrel-explain.1"),
    (&["man", "plot"], "usr/share/man/man1/petrel-plot.1"),
    (&["man", "costs"], "usr/share/man/man1/petrel-costs.1"),
    (&["man", "why"], "usr/share/man/man1/petrel-why.1"),
    (&["man", "top"], "usr/share/man/man1/petrel-top.1"),
    (&["man", "petrel.conf"], "usr/share/man/man5/petrel.conf.5"),
    (
        &["completions", "bash"],
        "usr/share/bash-completion/completions/petrel",
    ),
    (
        &["completions", "zsh"],
        "usr/share/zsh/vendor-completions/_petrel",
    ),
    (
        &["completions", "fish"],
        "usr/share/fish/vendor_completions.d/petrel.fish",
    ),
];

/// Directories that are there before a file is in them, with their mode.
const DIRECTORIES: &[(&str, u32)] = &[
    ("etc/petrel/conf.d", 0o755),
    // Root's, so that the user of the server cannot lead the keeper, which opens logs as root, to other
    // files. postinst gives it to the group adm.
    ("var/log/petrel", 0o750),
];

/// Makes the package, and prints its path.
///
/// # Errors
/// The command line is wrong, the program does not build, or a tool of Debian's dpkg-dev or binutils is
/// missing.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let binary = match options.binary {
        Some(binary) => binary,
        None => workspace.petrel_of_package()?,
    };
    let version = match options.version {
        Some(version) => version,
        None => version_of(&binary)?,
    };
    let directory = options.directory.unwrap_or(workspace.target.join("debian"));
    let architecture = text_of(Command::new("dpkg").arg("--print-architecture"))?;
    let name = format!("petrel_{version}_{architecture}");
    let stage = directory.join(&name);
    remove_directory(&stage)?;
    install_files(workspace, &binary, &stage)?;
    let depends = dependencies(&stage, &directory)?;
    write_control(&stage, &version, &architecture, &depends)?;
    let package = directory.join(format!("{name}.deb"));
    let mut command = Command::new("dpkg-deb");
    command
        .args(["--root-owner-group", "--build"])
        .args(&options.compression);
    output_of(command.arg(&stage).arg(&package))?;
    remove_directory(&stage)?;
    println!("{}", package.display());
    Ok(())
}

/// What the command line asks for.
#[derive(Default)]
struct Options {
    /// The program to package instead of one that is built for it.
    binary: Option<PathBuf>,
    /// The version of the package, if not that of the program.
    version: Option<String>,
    /// Where the package goes.
    directory: Option<PathBuf>,
    /// Arguments for dpkg-deb.
    compression: Vec<&'static str>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} takes a value"));
            match argument {
                "--binary" => options.binary = Some(absolute(value()?)?),
                "--version" => options.version = Some((*value()?).to_owned()),
                "--out" => options.directory = Some(absolute(value()?)?),
                "--uncompressed" => options.compression = vec!["-Znone"],
                other => return Err(format!("no option of `package` is called {other:?}")),
            }
        }
        Ok(options)
    }
}

fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}

/// `petrel -v` begins with "petrel/VERSION ".
fn version_of(binary: &Path) -> Result<String, String> {
    let line = text_of(Command::new(binary).arg("-v"))?;
    let version = line
        .strip_prefix("petrel/")
        .and_then(|rest| rest.split(' ').next());
    // dpkg sorts 0.2.0~rc.1 before 0.2.0, and 0.2.0-rc.1 behind it.
    version
        .map(|version| version.replacen('-', "~", 1))
        .ok_or_else(|| format!("{}: -v says {line:?}", binary.display()))
}

fn install_files(workspace: &Workspace, binary: &Path, stage: &Path) -> Result<(), String> {
    for (directory, mode) in DIRECTORIES {
        make_directory(&stage.join(directory))?;
        set_mode(&stage.join(directory), *mode)?;
    }
    for (source, place, mode) in FILES {
        copy(&workspace.root.join(source), &stage.join(place), *mode)?;
    }
    let program = stage.join(PROGRAM);
    copy(binary, &program, 0o755)?;
    // Names of functions stay, for the trace of a crash; what only a debugger reads goes.
    workspace::run(Command::new("strip").arg("--strip-debug").arg(&program))?;
    for (arguments, place) in PRINTED {
        let text = output_of(Command::new(binary).args(*arguments))?;
        write(&stage.join(place), &text)?;
        if place.contains("/man/") {
            workspace::run(Command::new("gzip").arg("-9n").arg(stage.join(place)))?;
        }
    }
    let docs = workspace.root.join("docs");
    copy_pages(&docs, &stage.join("usr/share/doc/petrel/docs"))
}

/// Copies the pages of the documentation, and what they show.
fn copy_pages(from: &Path, to: &Path) -> Result<(), String> {
    let entries = fs::read_dir(from).map_err(|error| about(from, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| about(from, &error))?.path();
        let place = to.join(path.file_name().unwrap_or_default());
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            copy_pages(&path, &place)?;
        } else if matches!(extension, Some("md" | "svg" | "png" | "rs")) {
            copy(&path, &place, 0o644)?;
        }
    }
    Ok(())
}

/// The libraries that the program needs, as `Depends` says it.
fn dependencies(stage: &Path, directory: &Path) -> Result<String, String> {
    // It wants to run beside a debian/control, and reads nothing in it but that there is a package.
    let source = directory.join("shlibdeps");
    write(
        &source.join("debian/control"),
        b"Source: petrel\n\nPackage: petrel\nArchitecture: any\n",
    )?;
    let mut command = Command::new("dpkg-shlibdeps");
    command
        .arg("-O")
        .arg(stage.join(PROGRAM))
        .current_dir(&source);
    let line = text_of(command.stderr(Stdio::null()))?;
    remove_directory(&source)?;
    let depends = line.strip_prefix("shlibs:Depends=");
    depends
        .map(str::to_owned)
        .ok_or_else(|| format!("dpkg-shlibdeps says {line:?}"))
}

/// Writes what dpkg has to know: control, conffiles and md5sums.
fn write_control(
    stage: &Path,
    version: &str,
    architecture: &str,
    depends: &str,
) -> Result<(), String> {
    let mut files = Vec::new();
    list(stage, stage, &mut files)?;
    files.sort();
    let size_of = |file: &String| fs::metadata(stage.join(file)).map_or(0, |data| data.len());
    let kib: u64 = files.iter().map(|file| size_of(file).div_ceil(1024)).sum();
    let control = format!(
        "\
Package: petrel
Version: {version}
Architecture: {architecture}
Maintainer: The Petrel authors <petrel@petrel.invalid>
Installed-Size: {kib}
Depends: {depends}
Recommends: logrotate, media-types
Suggests: libpam0g
Provides: httpd, httpd-cgi
Section: httpd
Priority: optional
Description: web server that takes lighttpd's configuration
 Petrel serves files and applications by HTTP/2, 1.1 and 1.0, in the clear and
 over TLS, and takes the configuration of lighttpd as it is. It speaks FastCGI,
 SCGI, uwsgi, AJP13, HTTP and CGI to applications, runs Lua scripts, and keeps
 the pages that applications make.
"
    );
    let conffiles = files.iter().filter(|file| file.starts_with("etc/"));
    let conffiles = conffiles.fold(String::new(), |mut lines, file| {
        let _ = writeln!(lines, "/{file}");
        lines
    });
    let mut sums = Command::new("md5sum");
    let sums = output_of(sums.args(&files).current_dir(stage))?;
    write(&stage.join("DEBIAN/control"), control.as_bytes())?;
    write(&stage.join("DEBIAN/conffiles"), conffiles.as_bytes())?;
    write(&stage.join("DEBIAN/md5sums"), &sums)
}

/// Appends the files below `directory` that get installed, as paths below `stage`.
fn list(stage: &Path, directory: &Path, files: &mut Vec<String>) -> Result<(), String> {
    let entries = fs::read_dir(directory).map_err(|error| about(directory, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| about(directory, &error))?.path();
        let place = path.strip_prefix(stage).unwrap_or(&path);
        if place.starts_with("DEBIAN") {
            continue;
        }
        match path.is_dir() {
            true => list(stage, &path, files)?,
            false => files.push(place.to_string_lossy().into_owned()),
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    let bytes = fs::read(from).map_err(|error| about(from, &error))?;
    write(to, &bytes)?;
    set_mode(to, mode)
}

/// Writes a file that all users may read, with any umask.
fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    fs::write(path, bytes).map_err(|error| about(path, &error))?;
    set_mode(path, 0o644)
}

fn make_directory(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Ok(());
    }
    make_directory(path.parent().unwrap_or(Path::new("/")))?;
    fs::create_dir(path).map_err(|error| about(path, &error))?;
    set_mode(path, 0o755)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| about(path, &error))
}

fn remove_directory(path: &Path) -> Result<(), String> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(about(path, &error)),
        _ => Ok(()),
    }
}

fn text_of(command: &mut Command) -> Result<String, String> {
    let output = output_of(command)?;
    Ok(String::from_utf8_lossy(&output).trim().to_owned())
}

fn about(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Where the program goes.
const PROGRAM: &str = "usr/bin/petrel";
