//! Writes the status page of a status in JSON into a directory, for `cargo xtask screenshots`.
//!
//! `status_page FILE.json DIRECTORY`
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use petrel_modules::status::still;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [json, directory] = arguments.as_slice() else {
        eprintln!("status_page FILE.json DIRECTORY");
        return ExitCode::FAILURE;
    };
    match write(Path::new(json), Path::new(directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn write(json: &Path, directory: &Path) -> Result<(), String> {
    let text =
        std::fs::read_to_string(json).map_err(|error| format!("{}: {error}", json.display()))?;
    for (name, content) in still(&text)? {
        let path = directory.join(name);
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
