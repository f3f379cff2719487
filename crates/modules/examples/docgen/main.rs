//! Makes the pages of docs/ that come from the tables in the code, for `cargo xtask docs`, and the pages of which
//! `cargo xtask screenshots` takes pictures.
//!
//! `docgen causes|directives|ledger|metrics|mime-types` prints that page of docs/, or the package's script; `docgen status-page FILE.json DIRECTORY` writes
//! the status page of that status.
#![forbid(unsafe_code)]

mod causes;
mod metrics;
mod mime_types;
mod reference;
mod stages;
mod status_page;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let page = match *arguments {
        ["causes"] => Ok(causes::page()),
        ["directives"] => Ok(reference::page()),
        ["ledger"] => Ok(stages::page()),
        ["metrics"] => Ok(metrics::page()),
        ["mime-types"] => Ok(mime_types::script()),
        ["status-page", json, directory] => {
            status_page::write(Path::new(json), Path::new(directory)).map(|()| String::new())
        }
        _ => Err(
            "docgen causes|directives|ledger|metrics|mime-types, or status-page FILE.json DIRECTORY"
                .to_owned(),
        ),
    };
    match page {
        Ok(text) => print!("{text}"),
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
