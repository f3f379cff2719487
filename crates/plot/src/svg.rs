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

/// Colours that people who are colour-blind can tell apart, too. The last one is for what is left over.
pub const COLOURS: [&str; 9] = [
    "#0072b2", "#009e73", "#56b4e9", "#e69f00", "#cc79a7", "#d55e00", "#8c6bb1", "#a6761d",
    "#777777",
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
}
