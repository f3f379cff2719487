//! Draws pictures from the text of a graph, and checks that the paths in its labels exist.

use std::fs;
use std::path::Path;

use layout::backends::svg::SVGWriter;
use layout::gv::{DotParser, GraphBuilder};

/// Draws the graph in `file` (DOT language, below `root`) as SVG.
///
/// # Errors
/// When the file cannot be read, is no graph, or a label names a path that is not below crates/.
pub fn draw(root: &Path, file: &str) -> Result<Vec<u8>, String> {
    let text = fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
    let mut parser = DotParser::new(&text);
    let graph = parser
        .process()
        .map_err(|error| format!("{file}: {error}"))?;
    let words = text.replace("\\n", " ");
    let missing = missing(&root.join("crates"), paths(&words));
    if !missing.is_empty() {
        return Err(format!("{file}: not below crates/: {}", missing.join(", ")));
    }
    let mut builder = GraphBuilder::new();
    builder.visit_graph(&graph);
    let mut writer = SVGWriter::new();
    builder.get().do_it(false, false, false, &mut writer);
    Ok(writer.finalize().into_bytes())
}

/// The words of `text` that are paths of code.
fn paths(text: &str) -> impl Iterator<Item = &str> {
    let is_path_byte = |c: char| c.is_ascii_alphanumeric() || "_/.".contains(c);
    text.split(move |c| !is_path_byte(c))
        .filter(|word| word.contains("/src/"))
}

/// The paths that do not exist in `directory`.
fn missing<'a>(directory: &Path, paths: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    paths
        .filter(|path| !directory.join(path).exists())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_name_paths() {
        let text = r#"a [label="worker engine/src/worker.rs"]; a -> b [label="and/or"];"#;
        assert_eq!(paths(text).collect::<Vec<_>>(), ["engine/src/worker.rs"]);
    }

    #[test]
    fn paths_that_are_gone_are_told() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let named = ["engine/src/lib.rs", "engine/src/gone.rs"];
        assert_eq!(missing(&crates, named.into_iter()), ["engine/src/gone.rs"]);
    }
}
