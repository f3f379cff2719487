//! Where a backend's standard error goes: to `server.breakagelog`, or else to the error log.

use std::os::fd::{AsFd, OwnedFd};

use engine::log::{LogRegistry, LogTarget};

use crate::spawn::Output;

/// The standard error of one process. When logs are reopened, a running process keeps the old file; processes
/// started later get the new one.
pub(super) enum ErrorOutput {
    Log(OwnedFd),
    Inherited,
    Discarded,
}

impl ErrorOutput {
    /// The output for `target`. Syslog takes messages, not a stream, and the terminal is lost when the keeper
    /// goes to the background. In both cases the output is discarded, as in lighttpd.
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
