//! The steps of `cargo xtask test`, in order: the steps that fail fastest come first.
//!
//! All steps share one target directory, and nothing is compiled twice: lints and documentation share cargo's check
//! metadata, and `build` makes everything else in one selection of packages (`cargo test --workspace`). With another
//! selection cargo would choose other features for crates that all others use, and build them again.

use std::process::Command;
use std::thread;

use crate::workspace::{Workspace, run};
use crate::{docs, tidy};

/// One step.
pub struct Step {
    /// What `--only` and the summary call it.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Its time limit, several times what it takes on two cores that build everything anew. The limits add up
    /// to more than the time of a whole run, which `--minutes` limits.
    pub minutes: u64,
    /// What must be there.
    pub needs: Needs,
    /// Does it. With words, only the tests whose names contain one of them run.
    pub run: fn(&Workspace, &[&str]) -> Result<(), String>,
}

/// What a step needs beside the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// What compiling needs.
    Compiler,
    /// The packages of [`crate::packages`], which are installed while earlier steps compile.
    Packages,
}

/// The steps.
pub static STEPS: &[Step] = &[
    Step {
        name: "format",
        what: "cargo fmt --check",
        minutes: 2,
        needs: Needs::Compiler,
        run: |workspace, _| run(&mut workspace.cargo(&["fmt", "--all", "--check"])),
    },
    Step {
        name: "tidy",
        what: "no circles of imports, no globals, no two types of one name, no words that hide who does something",
        minutes: 2,
        needs: Needs::Compiler,
        run: |workspace, _| tidy::check(workspace),
    },
    Step {
        name: "lint",
        what: "clippy over everything, with warnings as errors",
        minutes: 20,
        needs: Needs::Compiler,
        run: lint,
    },
    Step {
        name: "api-docs",
        what: "rustdoc over everything, with warnings as errors",
        minutes: 10,
        needs: Needs::Compiler,
        run: api_docs,
    },
    Step {
        name: "build",
        what: "compiles petrel and all tests",
        minutes: 30,
        needs: Needs::Compiler,
        run: |workspace, _| run(&mut workspace.cargo(&["test", "--workspace", "--no-run"])),
    },
    Step {
        name: "unit",
        what: "the tests of all crates, beside their code",
        minutes: 20,
        needs: Needs::Packages,
        run: unit,
    },
    Step {
        name: "scenarios",
        what: "whole-server tests",
        minutes: 40,
        needs: Needs::Packages,
        run: scenarios,
    },
    Step {
        name: "docs",
        what: "docs/ is what the code says",
        minutes: 5,
        needs: Needs::Compiler,
        run: |workspace, _| docs::check(workspace),
    },
];

fn lint(workspace: &Workspace, _: &[&str]) -> Result<(), String> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"];
    run(&mut workspace.cargo(&arguments))
}

/// With private items: these crates have no other users, and contributors read all of it.
fn api_docs(workspace: &Workspace, _: &[&str]) -> Result<(), String> {
    let arguments = [
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    run(workspace
        .cargo(&arguments)
        .env("RUSTDOCFLAGS", "-Dwarnings"))
}

/// All test programs but the scenarios.
fn unit(workspace: &Workspace, words: &[&str]) -> Result<(), String> {
    run(
        tests(workspace, THREADS, &["--except", &SCENARIOS.join(",")])
            .arg("--")
            .args(words),
    )
}

/// What counts exactly runs one test after another, beside the other programs.
fn scenarios(workspace: &Workspace, words: &[&str]) -> Result<(), String> {
    let petrel = workspace.petrel()?;
    let programs = |names: &[&str], threads: &str| {
        let mut command = tests(workspace, threads, &[]);
        command.args(names.iter().flat_map(|name| ["--test", name]));
        run(command.arg("--").args(words).env("PETREL", &petrel))
    };
    thread::scope(|scope| {
        let exact = scope.spawn(|| programs(&["exact"], "1"));
        let others = programs(&["package", "real", "scenarios"], THREADS);
        exact.join().expect("it does not panic").and(others)
    })
}

/// `cargo test`. A test program that fails does not stop the others, and each one has a time limit.
fn tests(workspace: &Workspace, threads: &str, limited: &[&str]) -> Command {
    let program = this_program();
    let mut runner = vec![program.as_str(), "limited", PROGRAM_SECONDS];
    runner.extend(limited);
    let runner = format!("target.'cfg(all())'.runner = {runner:?}");
    let arguments = ["test", "--workspace", "--no-fail-fast", "--config", &runner];
    let mut command = workspace.cargo(&arguments);
    command.env("RUST_TEST_THREADS", threads);
    command
}

/// Tests at a time. Most wait, for clients, backends and times, so there are more than cores.
const THREADS: &str = "8";

/// A path of this program that stays right when cargo builds it anew while it runs.
pub fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// The time limit of a test program, in seconds: several times what the longest takes on two cores.
const PROGRAM_SECONDS: &str = "1800";

/// The test programs of the package petrel-tests. Its library has unit tests like any other.
const SCENARIOS: [&str; 4] = ["exact", "package", "real", "scenarios"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_the_scenarios_is_known() {
        let folder = Workspace::here().root.join("tests/tests");
        let entries = std::fs::read_dir(folder).expect("it is there");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("it can be read").file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, SCENARIOS, "`scenarios` runs each of them");
    }
}
