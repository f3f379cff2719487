//! The ledger: how long each stage of an exchange took. The connection, the phase loop and code that waits
//! fill it in.
//!
//! `stages + unattributed = total`. A stamp gives all time since the last stamp to one stage. It reads the
//! monotonic clock (16 to 30 ns), so it is made only where work was done or code has waited: a head that
//! arrives in one piece has no `read-head`, and phases without hooks cost nothing, because their time goes to
//! the next stage. A warm request for a file stamps `parse`, `map` (if there are index files), `content` and
//! `send`.
//!
//! The end of a wait is stamped by [`Ledger::stamp_wait`]. When the event arrived for which the request
//! waited, the worker may have been busy with other tasks; that part of the time is `lag`.
//!
//! All displays of timing read this structure.

pub use petrel_proto::recording::{Nanos, Stage, StageKind};

const COUNT: usize = Stage::ALL.len();

/// `Ledger::touched` has a bit for each stage. As many times as bits make a stage a valid index without a
/// check.
pub(crate) const BITS: usize = 32;
const _: () = assert!(COUNT <= BITS);

/// The times of one exchange.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    started: Nanos,
    /// The last stamp.
    last: Nanos,
    /// For how long at most the first bytes of the request lay in the kernel before the worker looked.
    in_kernel_max: Nanos,
    /// System calls that the worker made for the exchange.
    calls: u32,
    /// A bit for each stage that was stamped. Only those have a time.
    touched: u32,
    stages: [Nanos; BITS],
    /// The stamps one by one, for `petrel costs`; `None` everywhere else.
    trail: Option<Box<Trail>>,
}

/// The stamps of one exchange in the order in which they were made: the stage that the time since the stamp
/// before belongs to (`None`: to no stage), and the time of the stamp.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail(pub Vec<(Option<Stage>, Nanos)>);

impl Ledger {
    /// No exchange.
    pub(crate) const EMPTY: Ledger = Ledger {
        started: 0,
        last: 0,
        in_kernel_max: 0,
        calls: 0,
        touched: 0,
        stages: [0; BITS],
        trail: None,
    };

    /// Starts the clock: the first byte of a request arrived at `now`.
    pub fn start(&mut self, now: Nanos) {
        while self.touched != 0 {
            self.stages[self.touched.trailing_zeros() as usize % BITS] = 0;
            self.touched &= self.touched - 1;
        }
        self.in_kernel_max = 0;
        self.calls = 0;
        self.started = now;
        self.last = now;
        if let Some(Trail(stamps)) = self.trail.as_deref_mut() {
            stamps.clear();
        }
    }

    /// The worker learned at `ready` that the first bytes of the request had arrived, and ran other tasks
    /// until `now`. `in_kernel_max`: the bytes may have lain in the kernel for that long before.
    #[inline]
    pub fn start_late(&mut self, ready: Nanos, now: Nanos, in_kernel_max: Nanos) {
        self.start(ready);
        self.in_kernel_max = in_kernel_max;
        if now > ready {
            self.stamp(Stage::Lag, now);
        }
    }

    /// Counts `took` nanoseconds before the start of this ledger for `stage`. For work that was done for the
    /// request before its first byte: the TLS handshake.
    pub fn add_before(&mut self, stage: Stage, took: Nanos) {
        self.add(stage, took);
        self.started = self.started.saturating_sub(took);
    }

    /// Keeps the stamps from now on one by one, also those of later exchanges. Each stage that was stamped
    /// before counts as one stamp.
    pub fn keep_trail(&mut self) {
        if self.trail.is_some() {
            return;
        }
        let (mut trail, mut at) = (Trail::default(), self.started);
        for stage in Stage::ALL.iter().filter(|stage| self.stage(**stage) > 0) {
            at += self.stage(*stage);
            trail.0.push((Some(*stage), at));
        }
        self.trail = Some(Box::new(trail));
    }

    /// The stamps one by one, if [`Ledger::keep_trail`] was called.
    pub fn trail(&self) -> Option<&Trail> {
        self.trail.as_deref()
    }

    #[cold]
    fn note(&mut self, stage: Option<Stage>, now: Nanos) {
        if let Some(Trail(stamps)) = self.trail.as_deref_mut() {
            stamps.push((stage, now));
        }
    }

    /// Gives the time since the last stamp to `stage`.
    #[inline]
    pub fn stamp(&mut self, stage: Stage, now: Nanos) {
        let now = now.max(self.last);
        self.add(stage, now - self.last);
        self.last = now;
        if self.trail.is_some() {
            self.note(Some(stage), now);
        }
    }

    #[inline]
    fn add(&mut self, stage: Stage, time: Nanos) {
        self.touched |= 1 << stage as u8;
        self.stages[stage as usize % BITS] += time;
    }

    /// The end of a wait: gives the time since the last stamp to `stage` until `ready`, when the worker
    /// learned that the wait was over, and the rest to [`Stage::Lag`]. A `ready` before the last stamp means
    /// that another task of the worker has ended the wait; then there is no lag. Returns the time of `stage`
    /// since the last stamp.
    #[inline]
    pub fn stamp_wait(&mut self, stage: Stage, ready: Nanos, now: Nanos) -> Nanos {
        let before = self.last;
        if ready <= before {
            self.stamp(stage, now);
            return now.saturating_sub(before);
        }
        self.stamp(stage, ready.min(now));
        if now > ready {
            self.stamp(Stage::Lag, now);
        }
        ready.min(now).saturating_sub(before)
    }

    /// A part of a wait that ended at `until`, which may lie before the last stamp or after `now`.
    pub fn stamp_part(&mut self, stage: Stage, until: Nanos, now: Nanos) {
        if until > self.last {
            self.stamp(stage, until.min(now));
        }
    }

    /// Leaves the time since the last stamp unattributed, because no work was done for this exchange.
    pub fn skip(&mut self, now: Nanos) {
        self.last = now;
        if self.trail.is_some() {
            self.note(None, now);
        }
    }

    /// Counts system calls ([`system_calls`](crate::system_calls)).
    #[inline]
    pub(crate) fn add_calls(&mut self, count: u32) {
        self.calls += count;
    }

    /// System calls that the worker made for the exchange, as far as they are counted; 0 for HTTP/2.
    pub fn system_calls(&self) -> u32 {
        self.calls
    }

    /// When the first byte of the request arrived.
    pub fn started(&self) -> Nanos {
        self.started
    }

    /// The time of the last stamp.
    pub fn last(&self) -> Nanos {
        self.last
    }

    /// Time spent in `stage` so far.
    pub fn stage(&self, stage: Stage) -> Nanos {
        self.stages[stage as usize]
    }

    /// Whether one of these stages was stamped.
    #[inline]
    pub(crate) fn was_in(&self, stages: &[Stage]) -> bool {
        let bits = stages
            .iter()
            .fold(0, |bits, stage| bits | 1 << *stage as u8);
        self.touched & bits != 0
    }

    /// A bit for each stage that was stamped, in the order of [`Stage::ALL`].
    #[inline]
    pub(crate) fn touched_bits(&self) -> u32 {
        self.touched
    }

    /// The stages that were stamped, in their order.
    #[inline]
    pub fn touched(&self) -> impl Iterator<Item = Stage> + use<> {
        let mut left = self.touched;
        std::iter::from_fn(move || {
            let stage = *Stage::ALL.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(stage)
        })
    }

    /// Calls `with` with the number and the time of each stage that was stamped.
    #[inline]
    pub(crate) fn each_touched(&self, mut with: impl FnMut(usize, Nanos)) {
        let mut left = self.touched;
        while left != 0 {
            let stage = left.trailing_zeros() as usize % BITS;
            left &= left - 1;
            with(stage, self.stages[stage]);
        }
    }

    /// From the first byte of the request to the last stamp.
    pub fn total(&self) -> Nanos {
        self.last.saturating_sub(self.started)
    }

    /// For how long at most the first bytes of the request lay in the kernel before the worker looked. It
    /// was busy for that long. Not part of the total.
    pub fn in_kernel_max(&self) -> Nanos {
        self.in_kernel_max
    }

    /// The time that belongs to no stage.
    pub fn unattributed(&self) -> Nanos {
        self.total().saturating_sub(self.stages.iter().sum())
    }

    /// The value of Server-Timing: `translate;dur=0.012345, ..., total;dur=0.050000`, in milliseconds with
    /// all nanoseconds, so that the stages add up. Stages without measured time are left out.
    pub(crate) fn server_timing(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for stage in self.touched().filter(|stage| self.stage(*stage) > 0) {
            write_duration(&mut out, stage.name(), self.stage(stage));
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
        ledger.stamp(Stage::ReadHead, 1_500);
        ledger.skip(1_700);
        ledger.stamp(Stage::Content, 2_700);
        ledger.stamp(Stage::Content, 3_000);
        assert_eq!(ledger.stage(Stage::ReadHead), 500);
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
    fn after_a_wait_the_time_in_which_the_worker_was_busy_is_lag() {
        let mut ledger = Ledger::default();
        ledger.start(1_000);
        ledger.stamp(Stage::Parse, 2_000);
        // The worker slept, and learned at 5,000 that the reply was there.
        assert_eq!(
            ledger.stamp_wait(Stage::BackendFirstByte, 5_000, 5_700),
            3_000
        );
        assert_eq!(ledger.stage(Stage::Lag), 700);
        // Another task of the worker ended the wait.
        assert_eq!(ledger.stamp_wait(Stage::Cache, 5_000, 6_000), 300);
        assert_eq!(ledger.stage(Stage::Lag), 700);
        assert_eq!(ledger.total(), 5_000);
        assert_eq!(ledger.unattributed(), 0);
    }

    #[test]
    fn a_request_that_is_read_late_has_lagged_and_its_handshake_counts() {
        let mut ledger = Ledger::default();
        ledger.start_late(1_000, 41_000, 7);
        ledger.add_before(Stage::Tls, 300);
        assert_eq!(ledger.stage(Stage::Lag), 40_000);
        assert_eq!((ledger.started(), ledger.total()), (700, 40_300));
        assert_eq!((ledger.unattributed(), ledger.in_kernel_max()), (0, 7));
    }

    #[test]
    fn stamps_in_any_order_add_up_to_the_total() {
        // A generator of numbers, so that a failure repeats.
        let mut state = 1_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..1_000 {
            let (mut ledger, mut now) = (Ledger::default(), next(1_000));
            let ready = now;
            now += next(50);
            ledger.start_late(ready, now, 0);
            let mut skipped = 0;
            for _ in 0..next(60) {
                let before = now;
                now += next(1_000);
                let stage = Stage::ALL[next(COUNT as u64) as usize];
                match next(4) {
                    0 => {
                        ledger.skip(now);
                        skipped += now - before;
                    }
                    1 => {
                        ledger.stamp_wait(stage, before + next(1_200), now);
                    }
                    _ => ledger.stamp(stage, now),
                }
            }
            assert_eq!(ledger.unattributed(), skipped, "{ledger:?}");
            assert_eq!(ledger.total(), now - ready, "{ledger:?}");
        }
    }

    #[test]
    fn a_trail_has_every_stamp_and_ends_with_the_exchange() {
        let mut ledger = Ledger::default();
        ledger.start(100);
        ledger.stamp(Stage::Parse, 150);
        assert_eq!(ledger.trail(), None);
        ledger.keep_trail();
        ledger.stamp(Stage::Content, 170);
        ledger.skip(180);
        ledger.stamp(Stage::Content, 200);
        let content = Some(Stage::Content);
        let stamps = vec![
            (Some(Stage::Parse), 150),
            (content, 170),
            (None, 180),
            (content, 200),
        ];
        assert_eq!(ledger.trail(), Some(&Trail(stamps)));
        ledger.start(300);
        assert_eq!(ledger.trail(), Some(&Trail::default()));
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
        ledger.stamp(Stage::ReadHead, 1_999);
        ledger.stamp(Stage::Map, 3_001_234_567);
        ledger.skip(3_001_300_001);
        ledger.stamp(Stage::Content, 3_001_300_003);
        let value = ledger.server_timing();
        let metrics = metrics(std::str::from_utf8(&value).expect("ASCII"));
        let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["read-head", "map", "content", "unattributed", "total"]
        );
        let (total, parts) = metrics.split_last().expect("several");
        assert_eq!(parts.iter().map(|(_, nanos)| nanos).sum::<Nanos>(), total.1);
        assert_eq!(total.1, ledger.total());
        assert_eq!(metrics[0].1, 999);
    }
}
