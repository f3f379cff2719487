//! `cargo xtask test`: installs what is needed, runs the steps, sums up.

use std::time::{Duration, Instant};

use crate::packages;
use crate::steps::{Effort, Outcome, STEPS, Step};
use crate::workspace::Workspace;

/// Runs the steps that are asked for, all of them in any case; one that fails stops no other.
///
/// # Errors
/// When the command line is wrong, a package that all tests need is missing, or a step failed.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let begin = Instant::now();
    let unavailable = packages::provide()?;
    let mut done = Vec::new();
    for step in options.steps {
        println!("\n=== {}: {}", step.name, step.what);
        let begin = Instant::now();
        let outcome = (step.run)(workspace, options.effort);
        if let Some(message) = &outcome.failure {
            println!("=== {} failed: {message}", step.name);
        }
        done.push((step, outcome, begin.elapsed()));
    }
    println!("\n=== summary, {}", seconds(begin.elapsed()));
    for missing in &unavailable {
        println!("{missing}");
    }
    sum_up(&done)
}

/// What the command line asks for.
struct Options {
    effort: Effort,
    steps: Vec<&'static Step>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut effort = Effort::Full;
        let mut steps = Vec::new();
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            match argument {
                "--quick" => effort = Effort::Quick,
                "--only" => {
                    let name = arguments.next().ok_or("--only takes the name of a step")?;
                    steps.push(named(name)?);
                }
                other => return Err(format!("no option of `test` is called {other:?}")),
            }
        }
        if steps.is_empty() {
            steps = STEPS.iter().collect();
        }
        Ok(Options { effort, steps })
    }
}

fn named(name: &str) -> Result<&'static Step, String> {
    STEPS.iter().find(|step| step.name == name).ok_or_else(|| {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        format!("no step is called {name:?}; there are {}", names.join(", "))
    })
}

/// Prints the time and the fate of each step, then the result lines of the tests, then the count.
fn sum_up(done: &[(&Step, Outcome, Duration)]) -> Result<(), String> {
    for (step, outcome, took) in done {
        let fate = outcome.failure.as_deref().unwrap_or("ok");
        println!("{:<11} {:>7}  {fate}", step.name, seconds(*took));
    }
    for line in done.iter().flat_map(|(_, outcome, _)| &outcome.results) {
        println!("{line}");
    }
    let has_failed = |(_, outcome, _): &&(&Step, Outcome, Duration)| outcome.failure.is_some();
    let failed: Vec<_> = done.iter().filter(has_failed).collect();
    println!(
        "{} passed, {} failed",
        done.len() - failed.len(),
        failed.len()
    );
    match failed.as_slice() {
        [] => Ok(()),
        failed => {
            let names: Vec<_> = failed.iter().map(|(step, ..)| step.name).collect();
            Err(format!("failed: {}", names.join(", ")))
        }
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_chosen_by_name() {
        let options = Options::parse(&["--quick", "--only", "lint"]).expect("it is right");
        assert_eq!(options.effort, Effort::Quick);
        assert_eq!(options.steps.len(), 1);
        let all = Options::parse(&[]).expect("it is right");
        assert_eq!((all.effort, all.steps.len()), (Effort::Full, STEPS.len()));
        for wrong in [&["--only"][..], &["--only", "nothing"], &["lint"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_failed_step_fails_the_run() {
        let failed = Outcome {
            results: Vec::new(),
            failure: Some("why".to_owned()),
        };
        let done = [
            (&STEPS[0], Outcome::default(), Duration::ZERO),
            (&STEPS[1], failed, Duration::ZERO),
        ];
        assert!(sum_up(&done[..1]).is_ok());
        assert_eq!(sum_up(&done), Err(format!("failed: {}", STEPS[1].name)));
    }
}
