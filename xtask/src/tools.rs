//! Programs that tests use and that no Debian package contains. Go builds them or pip fetches them, at fixed
//! versions, into the target directory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::limit::{self, Reads};

/// A program. It is kept in a folder of its name.
struct Tool {
    name: &'static str,
    /// Which tests are skipped, with a message, when the program cannot be had.
    tests: &'static str,
    maker: Maker,
}

/// How a program is made.
enum Maker {
    /// Go builds this package, with these versions of the modules that it needs: old modules do not name the
    /// versions they need, and the newest ones want a newer Go than Debian's.
    Go {
        package: &'static str,
        modules: &'static [&'static str],
    },
    /// pip installs this package and its dependencies.
    Pip(&'static str),
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "h2spec",
        tests: "of HTTP/2 with h2spec",
        maker: Maker::Go {
            package: "github.com/summerwind/h2spec/cmd/h2spec",
            modules: &[
                "github.com/summerwind/h2spec v2.2.1+incompatible",
                "github.com/fatih/color v1.16.0",
                "github.com/spf13/cobra v1.8.0",
                "golang.org/x/net v0.17.0",
            ],
        },
    },
    Tool {
        name: "sslyze",
        tests: "of TLS with sslyze",
        maker: Maker::Pip("sslyze==6.3.1"),
    },
];

/// The folder below cargo's target directory that holds the programs. `petrel_tests::tool` has the same name.
const TOOLS_IN: &str = "tools";

/// Makes the programs that are missing, below `target`. What the makers print goes to `tell`. Returns a line for
/// the summary for each one that cannot be had.
pub fn provide(target: &Path, deadline: Instant, tell: &dyn Fn(&str)) -> Vec<String> {
    let folder = target.join(TOOLS_IN);
    let missing = TOOLS.iter().filter(|tool| !folder.join(tool.name).exists());
    missing
        .filter_map(|tool| tool.make(&folder, deadline, tell).err())
        .collect()
}

impl Tool {
    /// Makes the program in a folder that is renamed when it is complete.
    fn make(&self, folder: &Path, deadline: Instant, tell: &dyn Fn(&str)) -> Result<(), String> {
        tell(&format!("=== making: {}", self.name));
        let new = folder.join(format!("{}.new", self.name));
        // An earlier run that was ended half-way may have left files there.
        let _ = fs::remove_dir_all(&new);
        let made = fs::create_dir_all(&new)
            .map_err(|error| format!("{}: {error}", new.display()))
            .and_then(|()| self.run_maker(&new, deadline, tell))
            .and_then(|()| {
                fs::rename(&new, folder.join(self.name)).map_err(|error| error.to_string())
            });
        made.map_err(|why| {
            format!(
                "{} cannot be had ({why}): tests {} are skipped",
                self.name, self.tests
            )
        })
    }

    fn run_maker(
        &self,
        directory: &Path,
        deadline: Instant,
        tell: &dyn Fn(&str),
    ) -> Result<(), String> {
        let mut command = match self.maker {
            Maker::Go { package, modules } => {
                let required: String = modules
                    .iter()
                    .map(|module| format!("require {module}\n"))
                    .collect();
                let text = format!("module petrel.test/tools\n\ngo 1.19\n\n{required}");
                fs::write(directory.join("go.mod"), text).map_err(|error| error.to_string())?;
                let mut command = Command::new("go");
                command.args([
                    "build",
                    "-mod=mod",
                    "-buildvcs=false",
                    "-o",
                    self.name,
                    package,
                ]);
                command
            }
            Maker::Pip(package) => {
                let mut command = Command::new("pip3");
                command
                    .args([
                        "install",
                        "--quiet",
                        "--no-input",
                        "--disable-pip-version-check",
                    ])
                    .args(["--target", ".", package]);
                command
            }
        };
        command.current_dir(directory).stdin(Stdio::null());
        let left = deadline.saturating_duration_since(Instant::now());
        limit::run(self.name, &mut command, Reads::Output, left, tell)
    }
}
