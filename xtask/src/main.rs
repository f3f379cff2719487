//! The chores of this repository: run the tests, check the shape of the code, regenerate the docs, make
//! the Debian package, fuzz.
//!
//! `cargo xtask CHORE`, from anywhere in the work tree. One file a chore; [`steps`] is the table of
//! what `cargo xtask test` does. Uses no crate of the server, so that it starts soon, and builds even
//! when the server does not.
#![forbid(unsafe_code)]

mod changes;
mod deb;
mod docs;
mod fuzz;
mod http2_clients;
mod limit;
mod packages;
mod picture;
mod screenshots;
mod selection;
mod site;
mod steps;
mod test;
mod tidy;
mod tools;
mod workspace;

use std::process::ExitCode;

use workspace::Workspace;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments = arguments.iter().map(String::as_str);
    let workspace = Workspace::here();
    let chore = arguments.next();
    let arguments: Vec<&str> = arguments.collect();
    let outcome = match chore {
        Some("test") => test::run(&workspace, &arguments),
        Some("docs") => docs::run(&workspace, &arguments),
        Some("screenshots") => screenshots::run(&workspace, &arguments),
        Some("site") => site::run(&workspace, &arguments),
        Some("package") => deb::run(&workspace, &arguments),
        Some("tidy") => tidy::check(&workspace),
        Some("fuzz") => fuzz::run(&workspace, &arguments),
        Some("http2-clients") => http2_clients::run(&workspace, &arguments),
        // `test` starts itself again for each step, so that a step that hangs can be ended.
        Some("step") => test::run_step(&workspace, &arguments),
        Some("limited") => limit::wrap(&arguments),
        Some("help" | "--help" | "-h") => {
            print!("{}", usage());
            Ok(())
        }
        Some(other) => Err(format!("no chore is called {other:?}\n\n{}", usage())),
        None => Err(usage()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from(
        "\
cargo xtask test [--changed] [--only STEP]... [--minutes N]
    Install what the tests need (as root; else say what is missing), then run all of them.
    --changed run only the tests of what has changed since the main branch
    --only    run this step; may be repeated
    --minutes take so long and no longer: steps that have no time left count as failed
cargo xtask docs
    Regenerate docs/: the directive reference, the man page, the shell completions and the picture.
cargo xtask screenshots
    Take the pictures of the status page in docs/images, with Chromium.
cargo xtask site
    Build the documentation as a site with search, into target/site.
cargo xtask package [--binary FILE] [--version VERSION] [--out DIR] [--uncompressed]
    Make a Debian package in target/debian, with the program of the dist profile. It needs dpkg-dev and binutils.
    --binary       package this program and build none
    --version      the version of the package; that of the program unless told
    --uncompressed make it in no time, for tests
cargo xtask fuzz [TARGET]... [--changed] [--seconds N] [--minutes N]
    Fuzz these targets, or all of them. Failures are kept in fuzz/artifacts, new inputs in fuzz/corpus.
    --changed only targets that are about files that were changed since the work on them began
    --seconds fuzz each target for so long (60)
    --minutes take so long for all targets and no longer
cargo xtask http2-clients [WORD]...
    Download from Petrel and upload to it with real HTTP/2 clients: those whose names contain a word, or all.

The steps of the tests:
",
    );
    for step in steps::STEPS {
        text.push_str(&format!(
            "    {:<11} {}, for {} minutes at most\n",
            step.name, step.what, step.minutes
        ));
    }
    let targets: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
    text.push_str(&format!("The fuzz targets: {}\n", targets.join(", ")));
    text
}
