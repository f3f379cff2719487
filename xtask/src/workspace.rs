//! Where things are, and commands that run there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The work tree and its build directory.
pub struct Workspace {
    /// The directory that holds this package's parent.
    pub root: PathBuf,
    /// Where cargo builds: CARGO_TARGET_DIR, or `target` in the root.
    pub target: PathBuf,
}

impl Workspace {
    /// The work tree that this program was built from.
    pub fn here() -> Workspace {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("a package has a parent directory")
            .to_owned();
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => root.join(target),
            None => root.join("target"),
        };
        Workspace { root, target }
    }

    /// A cargo command in the root, without a terminal to ask.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(arguments)
            .current_dir(&self.root)
            .stdin(Stdio::null());
        command
    }

    /// The petrel program for whole-server tests and generated docs, with debug assertions. Cargo builds it for the
    /// tests of the program itself, together with everything that all tests use.
    ///
    /// # Errors
    /// When it does not build.
    pub fn petrel(&self) -> Result<PathBuf, String> {
        let arguments = [
            "test",
            "--workspace",
            "--no-run",
            "--quiet",
            "--test",
            "program",
        ];
        run(&mut self.cargo(&arguments))?;
        Ok(self.target.join("debug/petrel"))
    }

    /// The program that makes pages of docs/ from the tables of the code.
    ///
    /// # Errors
    /// When it does not build.
    pub fn docgen(&self) -> Result<PathBuf, String> {
        // An example that is named has the features of the tests.
        let arguments = ["build", "--workspace", "--quiet", "--example", "docgen"];
        run(&mut self.cargo(&arguments))?;
        Ok(self.target.join("debug/examples/docgen"))
    }

    /// The petrel program for packages: the fastest one.
    ///
    /// # Errors
    /// When it does not build.
    pub fn petrel_of_package(&self) -> Result<PathBuf, String> {
        let arguments = ["build", "--package", "petrel", "--profile", "dist"];
        run(&mut self.cargo(&arguments))?;
        Ok(self.target.join("dist/petrel"))
    }
}

/// Runs a command that talks to the terminal itself.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let name = name(command);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// Runs a command for what it prints.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn output_of(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = name(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", output.status));
    }
    Ok(output.stdout)
}

/// The command as a message names it: its program and first arguments.
fn name(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut name = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args().take(3) {
        name.push(' ');
        name.push_str(&argument.to_string_lossy());
    }
    name
}
