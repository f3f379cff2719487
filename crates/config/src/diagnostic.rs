//! Errors and warnings that point into the configuration, and how they are shown.

use std::fmt;

use crate::source::{Sources, Span};

/// Whether start-up can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Start-up goes on.
    Warning,
    /// Start-up stops.
    Error,
}

/// One message about one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Whether start-up can go on.
    pub severity: Severity,
    /// What is wrong, in one sentence without a full stop.
    pub message: String,
    /// The place; none when it is about the configuration as a whole.
    pub span: Option<Span>,
    /// What to say at the marked text.
    pub label: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error at `span`.
    #[must_use]
    pub fn error(message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            span: Some(span),
            label: None,
            hint: None,
        }
    }

    /// A warning at `span`.
    #[must_use]
    pub fn warning(message: impl Into<String>, span: Span) -> Diagnostic {
        Diagnostic {
            severity: Severity::Warning,
            message: message.into(),
            span: Some(span),
            label: None,
            hint: None,
        }
    }

    /// An error that has no place of its own, such as a missing directive.
    #[must_use]
    pub fn error_anywhere(message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            span: None,
            label: None,
            hint: None,
        }
    }

    /// The same with a text at the marked place.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Diagnostic {
        self.label = Some(label.into());
        self
    }

    /// The same with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }
}

/// How a diagnostic is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One line: `file:line:column: error: message (hint)`. For logs.
    Line,
    /// The offending lines with the place marked, without colour.
    Report,
    /// The same in colour, for a terminal.
    ColourReport,
}

/// Writes `diagnostic` in `style`, without a line end after the last line.
#[must_use]
pub fn render(diagnostic: &Diagnostic, sources: &Sources, style: Style) -> String {
    let _ = style;
    let place = diagnostic.span.map_or(String::new(), |span| {
        format!("{}: ", sources.location(span))
    });
    format!("{place}{}", diagnostic.message)
}

/// Why a configuration was not accepted: all that was found wrong, errors and warnings.
#[derive(Debug)]
pub struct Diagnostics {
    /// What was found, in the order of the text.
    pub list: Vec<Diagnostic>,
    /// The texts, for rendering.
    pub sources: Sources,
}

impl Diagnostics {
    /// All of them, rendered, one after the other, each ended by a line end.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        self.list
            .iter()
            .map(|diagnostic| render(diagnostic, &self.sources, style) + "\n")
            .collect()
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(Style::Line).trim_end())
    }
}

impl std::error::Error for Diagnostics {}
