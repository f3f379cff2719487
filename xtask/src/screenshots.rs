//! `cargo xtask screenshots`: takes the pictures of the status page in docs/images.
//!
//! They show the example that tests/fixtures/status_json.py writes, so that they look the same on every
//! machine but for its fonts.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{Workspace, output_of};

/// A picture.
struct Picture {
    /// Its name in docs/images.
    name: &'static str,
    width: u32,
    height: u32,
    /// Further switches of Chromium.
    switches: &'static [&'static str],
}

const PICTURES: &[Picture] = &[
    Picture {
        name: "status-light.png",
        width: 1280,
        height: 2000,
        switches: &[],
    },
    Picture {
        name: "status-dark.png",
        width: 1280,
        height: 2000,
        switches: &["--blink-settings=preferredColorScheme=0"],
    },
    Picture {
        name: "status-phone.png",
        width: 360,
        height: 1800,
        switches: &[],
    },
];

/// Takes them all.
///
/// # Errors
/// The command line is wrong, the code does not build, or python3 or Chromium is missing.
pub fn run(workspace: &Workspace, arguments: &[&str]) -> Result<(), String> {
    if let Some(other) = arguments.first() {
        return Err(format!("no option of `screenshots` is called {other:?}"));
    }
    let directory = workspace.target.join("screenshots");
    fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let json = directory.join("status.json");
    let mut example = Command::new("python3");
    example.arg(workspace.root.join("tests/fixtures/status_json.py"));
    let text = output_of(&mut example)?;
    fs::write(&json, text).map_err(|error| format!("{}: {error}", json.display()))?;
    let mut page = Command::new(workspace.docgen()?);
    page.arg("status-page").args([&json, &directory]);
    output_of(&mut page)?;
    for picture in PICTURES {
        take(workspace, &directory, picture)?;
        println!("docs/images/{}", picture.name);
    }
    Ok(())
}

fn take(workspace: &Workspace, directory: &Path, picture: &Picture) -> Result<(), String> {
    let target = workspace.root.join("docs/images").join(picture.name);
    let mut chromium = Command::new("chromium");
    chromium
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ])
        .args(["--no-first-run", "--hide-scrollbars", "--no-proxy-server"])
        .arg(format!(
            "--user-data-dir={}",
            directory.join("profile").display()
        ))
        .arg(format!(
            "--window-size={},{}",
            picture.width, picture.height
        ))
        .arg(format!("--screenshot={}", target.display()))
        .args(picture.switches)
        .arg(format!("file://{}", directory.join("index.html").display()));
    output_of(&mut chromium)?;
    Ok(())
}
