//! The table of what `cargo xtask test` does, in order: what fails fastest comes first.
//!
//! All steps share one target directory. Formatting needs no build; lints and documentation share
//! cargo's check metadata; unit tests and scenarios the dev profile; scenarios and docs one petrel
//! of the quick profile. Only fuzzing needs a build of its own, for its coverage flags.

use crate::workspace::{Workspace, run, run_and_keep};
use crate::{docs, fuzz};

/// One step.
pub struct Step {
    /// What `--only` and the summary call it.
    pub name: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// Does it.
    pub run: fn(&Workspace, Effort) -> Outcome,
}

/// How much time may go into a step that could go on for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// What is known already is tried again.
    Quick,
    /// New input is looked for as well.
    Full,
}

/// What came of a step.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Lines for the summary: the result lines of tests, and what was skipped.
    pub results: Vec<String>,
    /// Why it failed, if it did.
    pub failure: Option<String>,
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Outcome {
        Outcome {
            results: Vec::new(),
            failure: result.err(),
        }
    }
}

/// The steps.
pub static STEPS: &[Step] = &[
    Step {
        name: "format",
        what: "cargo fmt --check, of the workspace and of fuzz/",
        run: format,
    },
    Step {
        name: "lint",
        what: "clippy over everything, with warnings as errors",
        run: lint,
    },
    Step {
        name: "api-docs",
        what: "rustdoc over everything, with warnings as errors",
        run: api_docs,
    },
    Step {
        name: "unit",
        what: "the tests of all crates, beside their code",
        run: unit,
    },
    Step {
        name: "scenarios",
        what: "whole-server tests, on the quick profile",
        run: scenarios,
    },
    Step {
        name: "docs",
        what: "docs/ is what the code says",
        run: |workspace, _| docs::check(workspace).into(),
    },
    Step {
        name: "fuzz",
        what: "every fuzz target for a while",
        run: |workspace, effort| fuzz::step(workspace, effort).into(),
    },
];

fn format(workspace: &Workspace, _: Effort) -> Outcome {
    let check = |manifest: &str| {
        let arguments = ["fmt", "--all", "--check", "--manifest-path", manifest];
        run(&mut workspace.cargo(&arguments))
    };
    check("Cargo.toml").and(check(fuzz::MANIFEST)).into()
}

fn lint(workspace: &Workspace, _: Effort) -> Outcome {
    let arguments = ["clippy", "--workspace", "--all-targets", "--", "-Dwarnings"];
    run(&mut workspace.cargo(&arguments)).into()
}

/// With private items: nobody uses these crates but ourselves, and we read all of it.
fn api_docs(workspace: &Workspace, _: Effort) -> Outcome {
    let arguments = [
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ];
    run(workspace
        .cargo(&arguments)
        .env("RUSTDOCFLAGS", "-Dwarnings"))
    .into()
}

fn unit(workspace: &Workspace, _: Effort) -> Outcome {
    let arguments = ["--workspace", "--exclude", SCENARIOS];
    tests(workspace.cargo(&["test", "--no-fail-fast"]).args(arguments))
}

fn scenarios(workspace: &Workspace, _: Effort) -> Outcome {
    match workspace.petrel() {
        Ok(petrel) => {
            let arguments = ["test", "--no-fail-fast", "--package", SCENARIOS];
            tests(workspace.cargo(&arguments).env("PETREL", petrel))
        }
        Err(message) => Err(message).into(),
    }
}

fn tests(command: &mut std::process::Command) -> Outcome {
    let (results, outcome) = run_and_keep(command, |line| {
        line.starts_with("test result: ") || line.contains("SKIPPED ")
    });
    // Test programs without a test, and documentation without an example, tell nobody anything.
    let tells = |line: &String| !line.contains("ok. 0 passed; 0 failed; 0 ignored");
    Outcome {
        results: results.into_iter().filter(tells).collect(),
        failure: outcome.err(),
    }
}

/// The package of whole-server tests.
const SCENARIOS: &str = "petrel-tests";
