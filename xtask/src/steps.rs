//! The table of what `cargo xtask test` does, in order: what fails fastest comes first.
//!
//! All steps share one target directory. Formatting and tidying need no build; lints and documentation share
//! cargo's check metadata; unit tests and scenarios the dev profile; scenarios and docs one petrel
//! of the quick profile. Only fuzzing needs a build of its own, for its coverage flags.

use std::process::Command;

use crate::workspace::{Workspace, run};
use crate::{docs, fuzz, tidy};

/// One step.
pub struct Step {
    /// What `--only` and the summary call it.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// How long it may take: several times what it takes where two cores build everything from scratch. All
    /// limits together may exceed that of a run, which has a limit of its own.
    pub minutes: u64,
    /// Does it.
    pub run: fn(&Workspace, Effort) -> Result<(), String>,
}

/// How much time may go into a step that could go on for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What is known already is tried again.
    Quick,
    /// New input is looked for as well.
    Full,
}

/// The steps.
pub static STEPS: &[Step] = &[
    Step {
        name: "format",
        what: "cargo fmt --check, of the workspace and of fuzz/",
        minutes: 2,
        run: format,
    },
    Step {
        name: "tidy",
        what: "no circles of imports, no globals, no two types of one name",
        minutes: 2,
        run: |workspace, _| tidy::check(workspace),
    },
    Step {
        name: "lint",
        what: "clippy over everything, with warnings as errors",
        minutes: 15,
        run: lint,
    },
    Step {
        name: "api-docs",
        what: "rustdoc over everything, with warnings as errors",
        minutes: 10,
        run: api_docs,
    },
    Step {
        name: "unit",
        what: "the tests of all crates, beside their code",
        minutes: 25,
        run: unit,
    },
    Step {
        name: "scenarios",
        what: "whole-server tests, on the quick profile",
        minutes: 40,
        run: scenarios,
    },
    Step {
        name: "docs",
        what: "docs/ is what the code says",
        minutes: 15,
        run: |workspace, _| docs::check(workspace),
    },
    Step {
        name: "fuzz",
        what: "every fuzz target for a while",
        minutes: 25,
        run: |workspace, effort| fuzz::step(workspace, effort),
    },
];

fn format(workspace: &Workspace, _: Effort) -> Result<(), String> {
    let check = |manifest: &str| {
        let arguments = ["fmt", "--all", "--check", "--manifest-path", manifest];
        run(&mut workspace.cargo(&arguments))
    };
    check("Cargo.toml").and(check(fuzz::MANIFEST))
}

fn lint(workspace: &Workspace, _: Effort) -> Result<(), String> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"];
    run(&mut workspace.cargo(&arguments))
}

/// Private items are documented as well: these crates have no other users, and the authors read everything.
fn api_docs(workspace: &Workspace, _: Effort) -> Result<(), String> {
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

fn unit(workspace: &Workspace, _: Effort) -> Result<(), String> {
    let arguments = ["--workspace", "--exclude", SCENARIOS];
    run(tests(workspace).args(arguments))
}

fn scenarios(workspace: &Workspace, _: Effort) -> Result<(), String> {
    let petrel = workspace.petrel()?;
    run(tests(workspace)
        .args(["--package", SCENARIOS])
        .env("PETREL", petrel))
}

/// Tests, of which one that fails stops no other, and each program gets its time and no more.
fn tests(workspace: &Workspace) -> Command {
    let runner = format!(
        "target.'cfg(all())'.runner = ['{}', 'limited', '{PROGRAM_SECONDS}']",
        this_program()
    );
    workspace.cargo(&["test", "--no-fail-fast", "--config", &runner])
}

/// A name for this program that leads to it also when it has been built anew meanwhile.
pub fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// How long a test program may take, in seconds: some times what the longest does on two cores.
const PROGRAM_SECONDS: u32 = 900;

/// The package of whole-server tests.
const SCENARIOS: &str = "petrel-tests";
