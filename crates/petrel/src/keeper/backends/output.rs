//! Where the standard error output of a backend goes: to `server.breakagelog`, else to the error log.

use std::os::fd::{AsFd, OwnedFd};

use engine::log::{LogRegistry, LogTarget};

use crate::spawn::Output;

/// A place for the output of one process. It keeps it when the logs are reopened: processes that are
/// started later get the new file.
pub(super) enum ErrorOutput {
    Log(OwnedFd),
    Inherited,
    Discarded,
}

impl ErrorOutput {
    /// The place that `target` stands for. Syslog takes messages, not a stream, and a terminal that
    /// is about to be let go takes nothing: then the output is lost, as with lighttpd.
    pub(super) fn find(target: &LogTarget, logs: &LogRegistry, detached: bool) -> ErrorOutput {
        match target {
            LogTarget::Stderr if detached => ErrorOutput::Discarded,
            LogTarget::Stderr => ErrorOutput::Inherited,
            _ => {
                let descriptors = logs.descriptors().unwrap_or_default();
                let mut found = descriptors.into_iter().filter(|(known, _)| known == target);
                let found = found.next();
                found.map_or(ErrorOutput::Discarded, |(_, log)| ErrorOutput::Log(log))
            }
        }
    }

    pub(super) fn as_output(&self) -> Output<'_> {
        match self {
            ErrorOutput::Log(log) => Output::Errors(log.as_fd()),
            ErrorOutput::Inherited => Output::InheritedErrors,
            ErrorOutput::Discarded => Output::Discarded,
        }
    }
}
