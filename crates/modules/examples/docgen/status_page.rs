//! Writes the status page of a status in JSON into a directory, for `cargo xtask screenshots`.

use std::path::Path;

use petrel_modules::status::still;

pub(crate) fn write(json: &Path, directory: &Path) -> Result<(), String> {
    let text =
        std::fs::read_to_string(json).map_err(|error| format!("{}: {error}", json.display()))?;
    for (name, content) in still(&text)? {
        let path = directory.join(name);
        std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
