//! Where the time of an exchange goes: a closed list of stages, filled in by the connection, the phase
//! loop and what waits.
//!
//! `stages + unattributed = total`. A stamp gives all time since the last one to a stage. It reads the
//! monotonic clock (16 to 30 ns), so it is taken only where work was done or something has waited: a head that
//! comes in one piece has no `receive`, and phases without hooks cost nothing, their time is that of the next
//! stage. A warm request for a file stamps `parse`, `map` (if there are index files), `content` and `send`.
//! Everything that shows timing reads this structure.

/// Nanoseconds of CLOCK_MONOTONIC.
pub type Nanos = u64;

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal;)+) => {
        /// A stage of an exchange. The list is closed: log, headers and plots all walk it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Stage { $($(#[doc = $doc])+ $variant,)+ }

        impl Stage {
            /// Every stage, in the order in which they happen.
            pub const ALL: &'static [Stage] = &[$(Stage::$variant,)+];

            /// The name used in logs, `Server-Timing` and plots.
            pub const fn name(self) -> &'static str {
                match self { $(Stage::$variant => $name,)+ }
            }
        }
    };
}

stages! {
    /// From the first byte of the request head to its last. The time before the first byte is not the request's,
    /// and of a pipeline each request begins when the answer before it is sent.
    Receive "receive";
    /// Parsing the head, choosing the settings.
    Parse "parse";
    /// Redirects, rewrites, scripts on the raw URL.
    Translate "translate";
    /// Access rules.
    Authorize "authorize";
    /// URL path to physical path, and in every phase waiting until the disk has said what is at a path.
    Map "map";
    /// Receiving the request body.
    RequestBody "request-body";
    /// Waiting until a backend may be asked: for its address, for a connection that is free, or for the answer that
    /// the page cache is fetching for another client.
    BackendQueue "backend-queue";
    /// Connecting to a backend, or starting a CGI program.
    BackendConnect "backend-connect";
    /// Sending the request to a backend, until the first byte of its reply.
    BackendWait "backend-wait";
    /// From the first byte of a backend's reply to the last, as far as the answer waits for it: also while a reply
    /// is sent as it comes.
    BackendReply "backend-reply";
    /// The handler that makes the answer, and waiting for contents that are read from the disk while they are sent.
    Content "content";
    /// Changing headers, compressing.
    Transform "transform";
    /// Handing the answer to the kernel, waiting for the client to take it, and bandwidth limits.
    Send "send";
}

const COUNT: usize = Stage::ALL.len();

/// The times of one exchange.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    started: Nanos,
    last: Nanos,
    ended: Nanos,
    stages: [Nanos; COUNT],
}

impl Ledger {
    /// Starts the clock: the first byte of a request arrived at `now`.
    pub fn start(&mut self, now: Nanos) {
        *self = Ledger {
            started: now,
            last: now,
            ended: now,
            stages: [0; COUNT],
        };
    }

    /// Gives the time since the last stamp to `stage`.
    #[inline]
    pub fn stamp(&mut self, stage: Stage, now: Nanos) {
        self.stages[stage as usize] += now.saturating_sub(self.last);
        self.last = now;
        self.ended = now;
    }

    /// Leaves the time since the last stamp unattributed: nobody worked for this exchange.
    pub fn skip(&mut self, now: Nanos) {
        self.last = now;
        self.ended = now;
    }

    /// When the request began.
    pub fn started(&self) -> Nanos {
        self.started
    }

    /// Time spent in `stage` so far.
    pub fn stage(&self, stage: Stage) -> Nanos {
        self.stages[stage as usize]
    }

    /// From the first byte of the request to the last stamp.
    pub fn total(&self) -> Nanos {
        self.ended.saturating_sub(self.started)
    }

    /// What no stage accounts for.
    pub fn unattributed(&self) -> Nanos {
        self.total().saturating_sub(self.stages.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_and_the_unattributed_rest_are_the_total() {
        let mut ledger = Ledger::default();
        ledger.start(1_000);
        ledger.stamp(Stage::Receive, 1_500);
        ledger.skip(1_700);
        ledger.stamp(Stage::Content, 2_700);
        ledger.stamp(Stage::Content, 3_000);
        assert_eq!(ledger.stage(Stage::Receive), 500);
        assert_eq!(ledger.stage(Stage::Content), 1_300);
        assert_eq!(ledger.unattributed(), 200);
        let stages: Nanos = Stage::ALL.iter().map(|stage| ledger.stage(*stage)).sum();
        assert_eq!(stages + ledger.unattributed(), ledger.total());
    }

    #[test]
    fn a_new_request_starts_from_nothing() {
        let mut ledger = Ledger::default();
        ledger.start(10);
        ledger.stamp(Stage::Send, 20);
        ledger.start(100);
        assert_eq!(ledger.total(), 0);
        assert_eq!(ledger.stage(Stage::Send), 0);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Stage::ALL.len());
    }
}
