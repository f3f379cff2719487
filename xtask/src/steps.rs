//! The steps of `cargo xtask test`, in order: the steps that fail fastest come first.
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
    /// Its time limit, several times what it takes on two cores that build everything anew. The limits add up
    /// to more than the time of a whole run, which `--minutes` limits.
    pub minutes: u64,
    /// Does it.
    pub run: fn(&Workspace, Effort) -> Result<(), String>,
}

/// How thorough a step is that could go on for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Only replay known input.
    Quick,
    /// Look for new input as well.
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
        what: "no circles of imports, no globals, no two types of one name, no words that hide who does something",
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

/// With private items: these crates have no other users, and contributors read all of it.
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

/// `cargo test`. A test program that fails does not stop the others, and each one has a time limit.
fn tests(workspace: &Workspace) -> Command {
    let runner = format!(
        "target.'cfg(all())'.runner = ['{}', 'limited', '{PROGRAM_SECONDS}']",
        this_program()
    );
    workspace.cargo(&["test", "--no-fail-fast", "--config", &runner])
}

/// A path of this program that stays right when cargo builds it anew while it runs.
pub fn this_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// The time limit of a test program, in seconds: several times what the longest takes on two cores.
const PROGRAM_SECONDS: u32 = 900;

/// The package of whole-server tests.
const SCENARIOS: &str = "petrel-tests";
