//! `cargo xtask test`: installs what is needed, runs the steps, sums up.
//!
//! Each step runs in a process of its own, `xtask step NAME`. So a step that hangs can be ended with all
//! processes that it has started, and the next steps still run.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::changes;
use crate::limit::{self, ENDED, Reads};
use crate::packages::Installation;
use crate::selection;
use crate::steps::{self, Needs, STEPS, Step};
use crate::workspace::Workspace;

/// Runs the chosen steps. A step that fails does not stop the next ones.
///
/// # Errors
/// When the command line is wrong, a package is missing without which nothing builds, or a step failed.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let mut options = Options::parse(arguments)?;
    let Some(words) = words(workspace, &mut options)? else {
        println!("nothing has changed");
        return Ok(());
    };
    let begin = Instant::now();
    let with_rest = (options.steps.iter()).any(|step| step.needs == Needs::Packages);
    let mut installation = Some(Installation::begin(workspace, with_rest)?);
    let mut waited = Duration::ZERO;
    let mut unavailable = Vec::new();
    let mut done = Vec::new();
    for step in &options.steps {
        if step.needs == Needs::Packages
            && let Some(installation) = installation.take()
        {
            let begin = Instant::now();
            unavailable = installation.wait(workspace);
            waited = begin.elapsed();
        }
        let left = options
            .total
            .map(|total| total.saturating_sub(begin.elapsed()));
        println!("\n=== {}: {}", step.name, step.what);
        let begin = Instant::now();
        let outcome = run_limited(workspace, step, &words, left);
        if let Some(message) = &outcome.failure {
            println!("=== {} failed: {message}", step.name);
        }
        done.push((*step, outcome, begin.elapsed()));
    }
    println!("\n=== summary, {}", seconds(begin.elapsed()));
    for missing in &unavailable {
        println!("{missing}");
    }
    println!("{:<11} {:>9}  waited for", "packages", seconds(waited));
    sum_up(&done)
}

/// The words that choose tests; without any, all run. Where no test is about what has changed, no step that runs tests
/// is left. `None`: nothing has changed.
fn words(workspace: &Workspace, options: &mut Options) -> Result<Option<Vec<String>>, String> {
    if !options.only_changed {
        return Ok(Some(Vec::new()));
    }
    let files = changes::changed_files(workspace)?;
    if files.as_ref().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    let files = files
        .as_deref()
        .map(|files| files.iter().map(String::as_str));
    let Some(words) = files.and_then(selection::words) else {
        println!("=== what has changed concerns all tests");
        return Ok(Some(Vec::new()));
    };
    println!("=== tests of what has changed: {}", words.join(" "));
    if words.is_empty() {
        options.steps.retain(|step| step.needs == Needs::Compiler);
    }
    Ok(Some(words))
}

/// `xtask step NAME [WORD]...`: runs a step in this process.
///
/// # Errors
/// When the command line is wrong or the step fails.
pub fn run_step(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    let [name, words @ ..] = arguments else {
        return Err("`step` takes the name of a step".to_owned());
    };
    let outcome = (named(name)?.run)(workspace, words);
    if let Err(message) = &outcome {
        println!("{FAILED}{message}");
    }
    outcome
}

/// The result of a step.
#[derive(Debug, Default)]
struct Outcome {
    /// Lines for the summary: result lines of tests, skipped tests, and commands that were ended.
    results: Vec<String>,
    /// The tests that took longer than others, with their time.
    slow: Vec<(Duration, String)>,
    /// Why it failed, if it did.
    failure: Option<String>,
}

/// Runs a step in a process of its own, for its own time limit or for the time that is `left` for all steps.
fn run_limited(
    workspace: &Workspace,
    step: &Step,
    words: &[String],
    left: Option<Duration>,
) -> Outcome {
    let own = Duration::from_secs(step.minutes * 60);
    let time = left.map_or(own, |left| left.min(own));
    let mut outcome = Outcome::default();
    if time.is_zero() {
        outcome.failure = Some("not run: no time was left".to_owned());
        return outcome;
    }
    let mut command = Command::new(steps::this_program());
    command.args(["step", step.name]).args(words);
    command.current_dir(&workspace.root).stdin(Stdio::null());
    let mut said = None;
    let ended = limit::run("the step", &mut command, Reads::Output, time, |line| {
        if let Some(message) = line.strip_prefix(FAILED) {
            said = Some(message.to_owned());
            return;
        }
        println!("{line}");
        if belongs_into_summary(line) {
            outcome.results.push(line.to_owned());
        }
        outcome.slow.extend(slow_test(line));
    });
    outcome.failure = ended.err().map(|message| said.unwrap_or(message));
    outcome
}

/// The name and the time of a test that took long, from a line such as `test a::b ... ok <12.345s>`.
fn slow_test(line: &str) -> Option<(Duration, String)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.rsplit_once('<')?.1.strip_suffix("s>")?;
    let took = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    (took >= SLOW).then(|| (took, name.to_owned()))
}

/// A test that takes longer says in its documentation why.
const SLOW: Duration = Duration::from_secs(5);

/// How many slow tests the summary lists.
const SLOW_LISTED: usize = 10;

fn belongs_into_summary(line: &str) -> bool {
    // Test programs without a test and documentation without an example say nothing worth repeating.
    let is_result = line.starts_with("test result: ") && !line.contains(NOTHING);
    is_result || line.contains("SKIPPED ") || line.starts_with(ENDED)
}

const NOTHING: &str = "ok. 0 passed; 0 failed; 0 ignored";

/// The beginning of the line by which a step's process tells why it failed.
const FAILED: &str = "FAILED: ";

/// The steps of `--changed`, which leaves out what looks at everything.
const OF_A_CHANGE: &[&str] = &["format", "tidy", "build", "unit", "scenarios"];

/// What the command line asks for.
struct Options {
    steps: Vec<&'static Step>,
    /// Run the tests of what has changed.
    only_changed: bool,
    /// How long all steps may take together.
    total: Option<Duration>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Options, String> {
        let mut steps = Vec::new();
        let (mut only_changed, mut total) = (false, None);
        let mut arguments = arguments.iter();
        while let Some(&argument) = arguments.next() {
            match argument {
                "--changed" => only_changed = true,
                "--only" => {
                    let name = arguments.next().ok_or("--only takes the name of a step")?;
                    steps.push(named(name)?);
                }
                "--minutes" => {
                    let minutes = arguments.next().and_then(|number| number.parse().ok());
                    let minutes: u32 = minutes.ok_or("--minutes takes a number")?;
                    total = Some(Duration::from_secs(u64::from(minutes) * 60));
                }
                other => return Err(format!("no option of `test` is called {other:?}")),
            }
        }
        if steps.is_empty() {
            let is_chosen = |step: &&Step| !only_changed || OF_A_CHANGE.contains(&step.name);
            steps = STEPS.iter().filter(is_chosen).collect();
        }
        Ok(Options {
            steps,
            only_changed,
            total,
        })
    }
}

fn named(name: &str) -> Result<&'static Step, String> {
    STEPS.iter().find(|step| step.name == name).ok_or_else(|| {
        let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        format!("no step is called {name:?}; there are {}", names.join(", "))
    })
}

/// Prints the time and the result of each step, then the result lines of the tests, then the count.
fn sum_up(done: &[(&Step, Outcome, Duration)]) -> Result<(), String> {
    for (step, outcome, took) in done {
        let fate = outcome.failure.as_deref().unwrap_or("ok");
        println!("{:<11} {:>9}  {fate}", step.name, seconds(*took));
    }
    let mut slow: Vec<_> = done
        .iter()
        .flat_map(|(_, outcome, _)| &outcome.slow)
        .collect();
    slow.sort_by(|one, other| other.cmp(one));
    for (took, name) in slow.iter().take(SLOW_LISTED) {
        println!("slow test   {:>9}  {name}", seconds(*took));
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
        let options = Options::parse(&["--only", "lint"]).expect("it is right");
        assert_eq!(options.steps.len(), 1);
        let all = Options::parse(&[]).expect("it is right");
        assert_eq!(all.steps.len(), STEPS.len());
        assert_eq!(all.total, None);
        let changed = Options::parse(&["--changed"]).expect("it is right");
        assert!(changed.only_changed);
        assert_eq!(changed.steps.len(), OF_A_CHANGE.len());
        let limited = Options::parse(&["--minutes", "70"]).expect("it is right");
        assert_eq!(limited.total, Some(Duration::from_secs(70 * 60)));
        for wrong in [
            &["--only"][..],
            &["--only", "nothing"],
            &["lint"],
            &["--minutes", "soon"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_failed_step_fails_the_run() {
        let failed = Outcome {
            failure: Some("why".to_owned()),
            ..Outcome::default()
        };
        let done = [
            (&STEPS[0], Outcome::default(), Duration::ZERO),
            (&STEPS[1], failed, Duration::ZERO),
        ];
        assert!(sum_up(&done[..1]).is_ok());
        assert_eq!(sum_up(&done), Err(format!("failed: {}", STEPS[1].name)));
    }
    #[test]
    fn a_step_without_time_is_not_run_and_fails() {
        let workspace = Workspace::here();
        let outcome = run_limited(&workspace, &STEPS[0], &[], Some(Duration::ZERO));
        assert!(outcome.failure.is_some_and(|why| why.contains("no time")));
    }

    #[test]
    fn slow_tests_are_known() {
        let line = "test gateway::a ... ok <12.345s>";
        let expected = (Duration::from_millis(12_345), "gateway::a".to_owned());
        assert_eq!(slow_test(line), Some(expected));
        assert!(slow_test("test a ... FAILED <60.000s>").is_some());
        for other in [
            "test a ... ok <0.345s>",
            "test a ... ok",
            "test result: ok <9s>",
        ] {
            assert_eq!(slow_test(other), None, "{other}");
        }
    }

    #[test]
    fn the_summary_repeats_what_matters() {
        for line in [
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured",
            "test a ... SKIPPED a: there is no FUSE",
            "ENDED files after 480 s; tests that had taken long by then: ",
        ] {
            assert!(belongs_into_summary(line), "{line}");
        }
        for line in [
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured",
            "test a ... ok",
        ] {
            assert!(!belongs_into_summary(line), "{line}");
        }
    }
}
