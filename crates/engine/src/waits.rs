//! What held a request up: who held the permit, the disk or the worker for which it waited.
//!
//! The [ledger](crate::ledger) knows how long a request was in each stage. A wait that was long gets a note
//! with its holder, in words. Few requests have one, so an exchange has one word of memory for them. Logs,
//! the recorder and the status page show the notes.
//!
//! A note is written when the wait ends, because the holder may be gone when the request ends.

use std::cell::RefCell;
use std::fmt;

use petrel_sys::socket::TcpPath;

use crate::ledger::{Nanos, Stage};
use crate::limits;

/// A long wait of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The stage in which the request waited.
    pub stage: Stage,
    /// How long.
    pub nanos: Nanos,
    /// What held it up, in words; it contains no control characters.
    pub holder: String,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {}: {}",
            self.stage.name(),
            Time(self.nanos),
            self.holder
        )
    }
}

/// A text about what held a request up, while it is written: `write!(text, ...)`. Control characters become
/// `?`, and what is over [`limits::HOLDER_BYTES_MAX`] is left out, so the text needs no more memory than it
/// has from the beginning.
pub struct HolderText<'t>(&'t mut String);

impl HolderText<'_> {
    /// Adds what `format_args!` makes.
    pub fn write_fmt(&mut self, what: fmt::Arguments<'_>) {
        // This writer returns no error, and the values that are written return none either.
        let _ = fmt::Write::write_fmt(self, what);
    }

    /// Adds `what`.
    pub fn write_str(&mut self, what: &str) {
        for c in what.chars() {
            let c = if c.is_control() { '?' } else { c };
            if self.0.len() + c.len_utf8() > limits::HOLDER_BYTES_MAX {
                return;
            }
            self.0.push(c);
        }
    }
}

impl fmt::Write for HolderText<'_> {
    fn write_str(&mut self, what: &str) -> fmt::Result {
        HolderText::write_str(self, what);
        Ok(())
    }
}

/// A long wait whose holder is not known yet.
#[derive(Clone, Copy)]
pub(crate) struct LongWait {
    pub(crate) stage: Stage,
    /// When it began.
    pub(crate) since: Nanos,
    /// How long it took.
    pub(crate) nanos: Nanos,
}

/// The long waits of one request. Under overload every request has one, so they keep their memory for the
/// next request: noting a wait then allocates nothing.
#[derive(Default)]
pub(crate) struct Waits(Option<Box<NotedWaits>>);

#[derive(Default)]
struct NotedWaits {
    /// The first `count` belong to the request; the others are memory for more.
    waits: Vec<Wait>,
    count: usize,
}

impl Waits {
    /// Adds a wait whose holder `tell` writes, unless there are [`limits::NOTED_WAITS_MAX`] longer ones.
    /// A wait in the same stage for the same holder adds to the one that is there. Where `tell` writes nothing,
    /// nothing held the request up.
    pub(crate) fn add(
        &mut self,
        stage: Stage,
        nanos: Nanos,
        tell: impl FnOnce(&mut HolderText<'_>),
    ) {
        self.0.get_or_insert_default().add(stage, nanos, tell);
    }

    pub(crate) fn all(&self) -> &[Wait] {
        let noted = self.0.as_deref();
        noted.map_or(&[], |noted| &noted.waits[..noted.count])
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        if let Some(noted) = &mut self.0 {
            noted.count = 0;
            noted.waits.truncate(limits::POOLED_WAITS_MAX);
        }
    }
}

impl NotedWaits {
    fn add(&mut self, stage: Stage, nanos: Nanos, tell: impl FnOnce(&mut HolderText<'_>)) {
        if self.waits.len() == self.count {
            self.waits.reserve_exact(1);
            self.waits.push(Wait {
                stage,
                nanos,
                holder: String::with_capacity(limits::HOLDER_BYTES_MAX),
            });
        }
        let (before, rest) = self.waits.split_at_mut(self.count);
        let new = &mut rest[0];
        new.stage = stage;
        new.nanos = nanos;
        new.holder.clear();
        tell(&mut HolderText(&mut new.holder));
        if new.holder.is_empty() {
            return;
        }
        let same = |known: &&mut Wait| known.stage == stage && known.holder == new.holder;
        if let Some(known) = before.iter_mut().find(same) {
            known.nanos += nanos;
            return;
        }
        self.count += 1;
        if self.count > limits::NOTED_WAITS_MAX {
            let shortest = (0..self.count).min_by_key(|index| self.waits[*index].nanos);
            self.waits[shortest.unwrap_or(0)..self.count].rotate_left(1);
            self.count -= 1;
        }
    }
}

/// A request, or other work, that has kept its worker busy for long.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hog {
    /// The script, or method and path.
    pub(crate) what: String,
    pub(crate) run: LongRun,
}

/// How long something has kept a worker busy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LongRun {
    /// The stage of the request.
    pub(crate) stage: Option<Stage>,
    /// For how long.
    pub(crate) ran: Nanos,
    /// For how long the worker had a processor meanwhile, at most.
    pub(crate) on_processor: Nanos,
    /// For how long, at most, the worker could have gone on meanwhile and had no processor; 0 unless it had one for less
    /// than half of the time. The rest of the time without one it waited in a system call.
    pub(crate) without_processor: Nanos,
    /// When that ended.
    pub(crate) ended: Nanos,
}

impl Hog {
    pub(crate) fn tell(&self, text: &mut HolderText<'_>) {
        text.write_str(&self.what);
        self.run.tell(text);
    }
}

impl LongRun {
    /// Says behind the name of what ran for how long it did so.
    pub(crate) fn tell(&self, text: &mut HolderText<'_>) {
        write!(text, " ran {}", Time(self.ran));
        if let Some(stage) = self.stage {
            write!(text, " ({})", stage.name());
        }
        self.tell_processor(text);
    }

    /// Says so if the worker had no processor for most of the time.
    pub(crate) fn tell_processor(&self, text: &mut HolderText<'_>) {
        if self.on_processor < self.ran / 2 {
            let time = Time(self.on_processor);
            write!(
                text,
                ", and the worker had a processor for at most {time} of it"
            );
        }
    }
}

/// The hogs of a worker: the requests that kept it from its event loop for longest, one in this turn and one in the
/// turn before. A turn is what the worker does between two calls of `epoll_wait`. A request that was ready in this
/// turn waited for the first one. A request that arrived in the turn before waited in the kernel for the second one.
#[derive(Default)]
pub(crate) struct Hogs {
    /// What ran for no time is none.
    latest: Hog,
    earlier: Hog,
}

impl Hogs {
    /// Adds a hog that has just ended, in the turn that began at `turn`; `what` writes its name.
    pub(crate) fn note(
        &mut self,
        run: LongRun,
        turn: Nanos,
        what: impl FnOnce(&mut HolderText<'_>),
    ) {
        if self.latest.run.ended < turn {
            std::mem::swap(&mut self.latest, &mut self.earlier);
        } else if self.latest.run.ran > run.ran {
            return;
        }
        let name = &mut self.latest.what;
        name.clear();
        name.reserve(limits::HOLDER_BYTES_MAX);
        what(&mut HolderText(name));
        self.latest.run = run;
    }

    /// The one that ran for longest in the latest turn that had one.
    pub(crate) fn latest(&self) -> Option<&Hog> {
        Some(&self.latest).filter(|hog| hog.run.ran > 0)
    }

    /// The one that ran for longest, of those that ended from `since` to `until`.
    pub(crate) fn between(&self, since: Nanos, until: Nanos) -> Option<&Hog> {
        let both = [&self.latest, &self.earlier].into_iter();
        let then = both.filter(|hog| hog.run.ran > 0 && (since..=until).contains(&hog.run.ended));
        then.max_by_key(|hog| hog.run.ran)
    }
}

thread_local! {
    /// The last slow answer of a server or a file system that scripts and caches of this worker use: how long it
    /// took, when it came, and both in words. A global of the thread, because pools of connections know no worker.
    static SLOW_PEER: RefCell<(Nanos, Nanos, String)> =
        const { RefCell::new((0, 0, String::new())) };
}

/// Notes that a server or a file system which scripts or caches use was slow: `tell` says which and how slow. The
/// answer came, or the wait was given up, at `ended`, after `took`.
pub fn note_slow_peer(took: Nanos, ended: Nanos, tell: impl FnOnce(&mut HolderText<'_>)) {
    SLOW_PEER.with_borrow_mut(|(last_took, last_ended, text)| {
        (*last_took, *last_ended) = (took, ended);
        text.clear();
        tell(&mut HolderText(text));
    });
}

/// Calls `with` with what [`note_slow_peer`] last told, if it ended a wait that began at `since`: it took
/// at least one of `parts` of the time from then on. A wait that is for servers and nothing else may be for several
/// answers, one after the other.
pub fn with_slow_peer<T>(since: Nanos, parts: u64, with: impl FnOnce(Option<&str>) -> T) -> T {
    SLOW_PEER.with_borrow(|(took, ended, what)| {
        let is_it = *took > 0 && *ended >= since && *took >= (*ended - since) / parts;
        with(is_it.then_some(what.as_str()))
    })
}

/// A time for readers: `412 ms`, `2.1 s`, `87 us`.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Time(nanos) = *self;
        match nanos {
            0..1_000_000 => write!(f, "{} us", nanos / 1_000),
            1_000_000..10_000_000 => write!(f, "{}.{} ms", nanos / 1_000_000, nanos / 100_000 % 10),
            10_000_000..1_000_000_000 => write!(f, "{} ms", nanos / 1_000_000),
            1_000_000_000..100_000_000_000 => {
                write!(
                    f,
                    "{}.{} s",
                    nanos / 1_000_000_000,
                    nanos / 100_000_000 % 10
                )
            }
            _ => write!(f, "{} s", nanos / 1_000_000_000),
        }
    }
}

/// A path for a note: printable, and cut to [`limits::NOTED_PATH_BYTES_MAX`].
#[derive(Clone, Copy, Debug)]
pub struct ShownPath<'p>(pub &'p [u8]);

impl fmt::Display for ShownPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShownPath(path) = *self;
        let cut = path.get(..limits::NOTED_PATH_BYTES_MAX).unwrap_or(path);
        for chunk in cut.utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        match cut.len() < path.len() {
            true => f.write_str("..."),
            false => Ok(()),
        }
    }
}

/// Says what held up a response whose client took it slowly: `bytes` in `nanos`, over this way.
pub(crate) fn tell_slow_client(
    text: &mut HolderText<'_>,
    bytes: u64,
    nanos: Nanos,
    path: Option<TcpPath>,
) {
    let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(nanos.max(1));
    match per_second {
        0..10_000 => write!(text, "the client took {per_second} bytes a second"),
        10_000..10_000_000 => write!(text, "the client took {} kB a second", per_second / 1_000),
        _ => write!(
            text,
            "the client took {} MB a second",
            per_second / 1_000_000
        ),
    }
    if let Some(path) = path {
        let rtt = Time(u64::from(path.rtt_us) * 1_000);
        let lost = u64::from(path.retransmitted) * 100;
        let percent = lost.checked_div(u64::from(path.segments)).unwrap_or(0);
        write!(text, " (rtt {rtt}, {percent} % lost)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hog(what: &str, run: LongRun) -> String {
        let mut text = String::new();
        let what = what.to_owned();
        Hog { what, run }.tell(&mut HolderText(&mut text));
        text
    }

    #[test]
    fn a_hog_says_when_it_had_no_processor() {
        let mut run = LongRun {
            stage: Some(Stage::Lua),
            ran: 41_000_000,
            on_processor: 40_000_000,
            without_processor: 0,
            ended: 0,
        };
        let what = "/srv/slow.lua";
        assert_eq!(hog(what, run), "/srv/slow.lua ran 41 ms (lua)");
        run.on_processor = 3_000_000;
        let told = "/srv/slow.lua ran 41 ms (lua), and the worker had a processor for at most 3.0 ms of it";
        assert_eq!(hog(what, run), told);
    }

    fn add(waits: &mut Waits, nanos: Nanos, holder: &str) {
        waits.add(Stage::BackendQueue, nanos, |text| text.write_str(holder));
    }

    fn wait(nanos: Nanos, holder: &str) -> Wait {
        Wait {
            stage: Stage::BackendQueue,
            nanos,
            holder: holder.into(),
        }
    }

    #[test]
    fn the_longest_waits_are_kept_and_equal_ones_add_up() {
        let mut waits = Waits::default();
        assert!(waits.all().is_empty());
        for round in 0..3 {
            for nanos in 1..=20 {
                add(&mut waits, nanos, &format!("holder {nanos}"));
            }
            assert_eq!(waits.all().len(), limits::NOTED_WAITS_MAX, "{round}");
            let nanos: Vec<_> = waits.all().iter().map(|wait| wait.nanos).collect();
            assert_eq!(nanos, [13, 14, 15, 16, 17, 18, 19, 20]);
            add(&mut waits, 100, "holder 20");
            assert!(waits.all().contains(&wait(120, "holder 20")));
            waits.clear();
            assert!(waits.all().is_empty());
        }
    }

    #[test]
    fn the_longest_hog_of_a_turn_is_named() {
        let run = |ran, ended| LongRun {
            stage: Some(Stage::Lua),
            ran,
            on_processor: ran,
            without_processor: 0,
            ended,
        };
        let mut hogs = Hogs::default();
        assert!(hogs.latest().is_none());
        let mut note =
            |what: &str, run: LongRun, turn| hogs.note(run, turn, |text| text.write_str(what));
        // One turn begins at 0, the next one at 1,000.
        note("first", run(900, 950), 0);
        note("long", run(500, 1_500), 1_000);
        note("short", run(20, 1_520), 1_000);
        let named = |since, until| hogs.between(since, until).map(|hog| hog.what.as_str());
        assert_eq!(named(1_000, 1_600), Some("long"));
        assert_eq!(
            named(0, 1_000),
            Some("first"),
            "it lay in the kernel meanwhile"
        );
        assert_eq!(named(1_600, 2_000), None);
    }

    #[test]
    fn a_note_is_one_line_of_a_limited_length() {
        let mut waits = Waits::default();
        add(&mut waits, 412_000_000, "a\r\nb");
        let shown = waits.all()[0].to_string();
        assert_eq!(shown, "backend-queue 412 ms: a??b");
        let shown_path = |path: &[u8]| ShownPath(path).to_string();
        assert_eq!(shown_path(b"/a\x1b\n\xff"), "/a\\u{1b}\\n\u{fffd}");
        assert_eq!(
            shown_path(&[b'a'; 500]).len(),
            limits::NOTED_PATH_BYTES_MAX + 3
        );
        add(&mut waits, 1, &"\u{20ac}".repeat(10_000));
        let long = &waits.all()[1].holder;
        assert!(long.len() > limits::HOLDER_BYTES_MAX - 3);
        assert_eq!(long.capacity(), limits::HOLDER_BYTES_MAX);
    }

    #[test]
    fn times_have_two_or_three_digits() {
        for (nanos, shown) in [
            (0, "0 us"),
            (87_900, "87 us"),
            (2_140_000, "2.1 ms"),
            (412_999_999, "412 ms"),
            (2_100_000_000, "2.1 s"),
            (180_000_000_000, "180 s"),
        ] {
            assert_eq!(Time(nanos).to_string(), shown);
        }
    }
}
