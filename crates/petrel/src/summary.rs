//! Counts the directives that do less than they say. `-tt`, the start and the log show these lines.

use config::{Consequence, Diagnostic, Style};
use engine::settings::exposure::of_every_request;

use crate::load::Loaded;
use crate::terminal;

/// The lines; none if every directive does what it says.
pub(crate) fn lines(loaded: &Loaded) -> Vec<String> {
    let count = |consequence| {
        let warnings = loaded.warnings();
        let warnings = warnings.filter(|warning| warning.consequence == Some(consequence));
        // One directive may have two warnings but counts once.
        let mut spans = Vec::new();
        for span in warnings.map(|warning| warning.span) {
            if !spans.contains(&span) {
                spans.push(span);
            }
        }
        spans.len()
    };
    let counts = (count(Consequence::Answers503), count(Consequence::NoEffect));
    let mut lines: Vec<String> = sentence(counts).into_iter().collect();
    let closing = of_every_request(&loaded.config, &loaded.schema, &loaded.modules);
    lines.extend(closing.into_iter().map(|entry| {
        let message = format!(
            "EVERY REQUEST is answered 503 because of {}, which is set for all of them",
            entry.name
        );
        let warning = Diagnostic::warning(message, entry.name_span);
        config::render(&warning, &loaded.config.sources, Style::Line)
    }));
    lines
}

/// Writes the lines to standard error.
pub(crate) fn print(loaded: &Loaded) {
    for line in lines(loaded) {
        terminal::complain(format_args!("petrel: {line}"));
    }
}

/// How many directives are answered with 503, and how many have no effect.
fn sentence(counts: (usize, usize)) -> Option<String> {
    let directives = |count: usize| match count {
        1 => "1 directive".to_owned(),
        _ => format!("{count} directives"),
    };
    let answer = |count: usize| if count == 1 { "answers" } else { "answer" };
    let have = |count: usize| if count == 1 { "has" } else { "have" };
    match counts {
        (0, 0) => None,
        (0, idle) => Some(format!("{} {} no effect", directives(idle), have(idle))),
        (closed, 0) => Some(format!("{} {} 503", directives(closed), answer(closed))),
        (closed, idle) => Some(format!(
            "{} {} 503, {idle} {} no effect",
            directives(closed),
            answer(closed),
            have(idle)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_counts_in_plain_words() {
        for (counts, words) in [
            ((0, 0), None),
            ((1, 0), Some("1 directive answers 503")),
            ((0, 2), Some("2 directives have no effect")),
            ((3, 4), Some("3 directives answer 503, 4 have no effect")),
            ((1, 1), Some("1 directive answers 503, 1 has no effect")),
        ] {
            assert_eq!(sentence(counts).as_deref(), words);
        }
    }
}
