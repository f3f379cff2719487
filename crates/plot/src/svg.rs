//! The two shapes of all drawings, and their colours.

use std::fmt::Write as _;

/// A rectangle; `style`: attributes.
pub fn rectangle(out: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), style: &str) {
    let _infallible = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
    );
}

/// Text that starts at this position of its base line; `style`: attributes. Control characters, which XML
/// does not allow, become question marks.
pub fn text(out: &mut String, (x, y): (f64, f64), style: &str, words: &str) {
    let _infallible = write!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>");
    for c in words.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out.push_str("</text>\n");
}

/// Colours that people who are colour-blind can tell apart, too, for what are no stages.
pub const COLOURS: [&str; 9] = [
    "#0072b2", "#009e73", "#56b4e9", "#e69f00", "#cc79a7", "#d55e00", "#8c6bb1", "#a6761d",
    "#777777",
];

/// The colour of what is left over, or has no stage that is known.
pub const OTHERS: &str = "#a9afb6";

/// The colour of a stage: the status page's on white, so that a stage looks alike in both.
#[must_use]
pub fn colour_of(stage: &str) -> &'static str {
    let known = STAGES.iter().find(|(name, _)| *name == stage);
    known.map_or(OTHERS, |(_, colour)| *colour)
}

const STAGES: [(&str, &str); 26] = [
    ("lag", "#d45624"),
    ("disk-queue", "#dd5e2e"),
    ("backend-queue", "#e56636"),
    ("backend-accept", "#e96a3a"),
    ("cache", "#ee6e3f"),
    ("throttle", "#f77647"),
    ("backend-connect", "#774897"),
    ("backend-send", "#8151a1"),
    ("backend-first-byte", "#8b5bac"),
    ("backend-body", "#9565b6"),
    ("open", "#d9b342"),
    ("stat", "#e9c354"),
    ("read-file", "#fad365"),
    ("parse", "#014333"),
    ("match", "#014937"),
    ("translate", "#014f3c"),
    ("authorize", "#005541"),
    ("map", "#005b46"),
    ("lua", "#06614b"),
    ("content", "#126751"),
    ("transform", "#1b6d56"),
    ("send", "#23735c"),
    ("tls", "#67a7e3"),
    ("read-head", "#71b2ee"),
    ("request-body", "#7cbcf9"),
    ("client-drain", "#8cc7ff"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_control_characters_in_words_are_harmless() {
        let mut out = String::new();
        text(&mut out, (1.0, 2.0), "", "a < b & c\u{1b}");
        assert_eq!(out, "<text x=\"1.0\" y=\"2.0\" >a &lt; b &amp; c?</text>\n");
    }

    #[test]
    fn stages_have_the_colours_of_the_status_page() {
        let style = include_str!("../../modules/src/status/page/style.css");
        let light = style.split("@media").next().expect("a part");
        for (stage, colour) in STAGES.into_iter().chain([("none", OTHERS)]) {
            let rule = format!("--{stage}: {colour};");
            assert!(light.contains(&rule), "{rule}");
        }
    }
}
