//! Makes `docs/ledger.md` with the table of stages from the code; `cargo xtask docs` writes it back.

use petrel_engine::ledger::{Stage, StageKind};

pub(crate) fn page() -> String {
    let before = PAGE.split_once(BEGIN).map_or(PAGE, |(before, _)| before);
    let after = PAGE.split_once(END).map_or("", |(_, after)| after);
    format!("{before}{BEGIN}\n{}{END}{after}", table())
}

fn table() -> String {
    let mut text = String::from("\n| stage | | what its time is |\n|---|---|---|\n");
    for stage in Stage::ALL {
        let kind = match stage.kind() {
            StageKind::Work => "works",
            StageKind::Wait => "waits",
        };
        text += &format!("| `{}` | {kind} | {} |\n", stage.name(), stage.meaning());
    }
    text + "\n"
}

const PAGE: &str = include_str!("../../../../docs/ledger.md");
const BEGIN: &str = "<!-- The table is made by cargo xtask docs. -->";
const END: &str = "<!-- Its end. -->";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_has_all_stages() {
        assert_eq!(page(), PAGE, "run `cargo xtask docs`");
    }
}
