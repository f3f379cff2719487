//! The ledger: how long each stage of an exchange took. The connection, the phase loop and code that waits
//! fill it in.
//!
//! `stages + unattributed = total`. A stamp adds the time since the last stamp to a stage. It reads the
//! monotonic clock (16 to 30 ns), so it is made only where work was done or code has waited: a head that
//! arrives in one piece has no `receive`, and phases without hooks cost nothing, because their time goes to
//! the next stage. A warm request for a file stamps `parse`, `map` (if there are index files), `content` and
//! `send`. All displays of timing read this structure.

/// Nanoseconds of CLOCK_MONOTONIC.
pub type Nanos = u64;

macro_rules! stages {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal;)+) => {
        /// A stage of an exchange. The list is complete: log, headers and plots all go through it.
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
    /// From the first byte of the request head to its last. The time before the first byte does not count. Of
    /// pipelined requests, each begins when the response before it was sent.
    Receive "receive";
    /// Parsing the head and choosing the settings.
    Parse "parse";
    /// Redirects, rewrites, and scripts on the raw URL.
    Translate "translate";
    /// Access rules.
    Authorize "authorize";
    /// From the URL path to the physical path. In every phase: waiting for the disk during a look-up.
    Map "map";
    /// Receiving the request body.
    RequestBody "request-body";
    /// Waiting before a backend can be asked: for its address, for a free connection, or for a response that
    /// the page cache is fetching for another client.
    BackendQueue "backend-queue";
    /// Connecting to a backend, or starting a CGI program.
    BackendConnect "backend-connect";
    /// Sending the request to a backend and waiting for the first byte of its reply.
    BackendWait "backend-wait";
    /// From the first byte of a backend's reply to its last, as far as the response waits for it; also while
    /// the reply is passed on as it arrives.
    BackendReply "backend-reply";
    /// The hook that makes the response, and waiting for content that is read from the disk while it is sent.
    Content "content";
    /// Changing headers, compressing.
    Transform "transform";
    /// Sending the response: passing it to the kernel, waiting for the client to take it, and bandwidth
    /// limits.
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

    /// Leaves the time since the last stamp unattributed, because no work was done for this exchange.
    pub fn skip(&mut self, now: Nanos) {
        self.last = now;
        self.ended = now;
    }

    /// When the first byte of the request arrived.
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

    /// The time that belongs to no stage.
    pub fn unattributed(&self) -> Nanos {
        self.total().saturating_sub(self.stages.iter().sum())
    }

    /// The value of Server-Timing: `translate;dur=0.012345, ..., total;dur=0.050000`, in milliseconds with
    /// all nanoseconds, so that the stages add up. Stages without measured time are left out.
    pub(crate) fn server_timing(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for stage in Stage::ALL.iter().filter(|stage| self.stage(**stage) > 0) {
            write_duration(&mut out, stage.name(), self.stage(*stage));
            out.extend_from_slice(b", ");
        }
        write_duration(&mut out, "unattributed", self.unattributed());
        out.extend_from_slice(b", ");
        write_duration(&mut out, "total", self.total());
        out
    }
}

fn write_duration(out: &mut Vec<u8>, name: &str, nanos: Nanos) {
    let millis = nanos / NANOS_PER_MILLI;
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(format!(";dur={millis}.{:06}", nanos % NANOS_PER_MILLI).as_bytes());
}

const NANOS_PER_MILLI: Nanos = 1_000_000;

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

    /// Parses the value by the grammar of Server Timing (W3C, `#server-timing-metric`): each metric is a
    /// token with `dur` as its parameter. Returns names and nanoseconds.
    fn metrics(value: &str) -> Vec<(String, Nanos)> {
        let metric = |text: &str| {
            let (name, duration) = text.split_once(";dur=").expect("a parameter");
            let is_token = |c: char| c.is_ascii_alphanumeric() || c == '-';
            assert!(!name.is_empty() && name.chars().all(is_token), "{text}");
            let (millis, fraction) = duration.split_once('.').expect("a decimal number");
            assert_eq!(fraction.len(), 6, "{text}");
            let number = |digits: &str| digits.parse::<Nanos>().expect("digits");
            (
                name.to_owned(),
                number(millis) * NANOS_PER_MILLI + number(fraction),
            )
        };
        value.split(", ").map(metric).collect()
    }

    #[test]
    fn the_parts_of_server_timing_add_up_to_its_total() {
        let mut ledger = Ledger::default();
        ledger.start(1_000);
        ledger.stamp(Stage::Receive, 1_999);
        ledger.stamp(Stage::Map, 3_001_234_567);
        ledger.skip(3_001_300_001);
        ledger.stamp(Stage::Content, 3_001_300_003);
        let value = ledger.server_timing();
        let metrics = metrics(std::str::from_utf8(&value).expect("ASCII"));
        let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["receive", "map", "content", "unattributed", "total"]
        );
        let (total, parts) = metrics.split_last().expect("several");
        assert_eq!(parts.iter().map(|(_, nanos)| nanos).sum::<Nanos>(), total.1);
        assert_eq!(total.1, ledger.total());
        assert_eq!(metrics[0].1, 999);
    }
}
