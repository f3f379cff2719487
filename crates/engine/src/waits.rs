//! What held a request up: who held the permit, the disk or the worker for which it waited.
//!
//! The [ledger](crate::ledger) knows how long a request was in each stage. A wait that was long gets a note
//! with its holder, in words. Few requests have one, so an exchange has one word of memory for them. Logs,
//! the recorder and the status page show the notes.

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
    pub holder: Box<str>,
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

/// A long wait whose holder is not known yet.
#[derive(Clone, Copy)]
pub(crate) struct LongWait {
    pub(crate) stage: Stage,
    /// When it began.
    pub(crate) since: Nanos,
    /// How long it took.
    pub(crate) nanos: Nanos,
}

/// The long waits of one request.
#[derive(Default)]
#[expect(
    clippy::box_collection,
    reason = "few requests have any, and a vector is three words"
)]
pub(crate) struct Waits(Option<Box<Vec<Wait>>>);

impl Waits {
    /// Adds `wait`, unless there are [`limits::NOTED_WAITS_MAX`] longer ones. A wait in the same stage for
    /// the same holder adds to the one that is there.
    pub(crate) fn add(&mut self, mut wait: Wait) {
        let clean: String = wait
            .holder
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        wait.holder = clean.into();
        let all = self.0.get_or_insert_default();
        let same = |known: &&mut Wait| known.stage == wait.stage && known.holder == wait.holder;
        if let Some(known) = all.iter_mut().find(same) {
            known.nanos += wait.nanos;
            return;
        }
        all.push(wait);
        if all.len() > limits::NOTED_WAITS_MAX {
            let shortest = (0..all.len()).min_by_key(|index| all[*index].nanos);
            all.remove(shortest.unwrap_or(0));
        }
    }

    pub(crate) fn all(&self) -> &[Wait] {
        self.0.as_ref().map_or(&[], |waits| waits)
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

/// A request, or other work, that has kept its worker busy for long.
#[derive(Clone, Debug)]
pub(crate) struct Hog {
    /// The script, or method and path.
    pub(crate) what: String,
    /// The stage of the request.
    pub(crate) stage: Option<Stage>,
    /// For how long.
    pub(crate) ran: Nanos,
    /// For how long the worker had a processor meanwhile, at most.
    pub(crate) on_processor: Nanos,
    /// When that ended.
    pub(crate) ended: Nanos,
}

impl fmt::Display for Hog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ran {}", self.what, Time(self.ran))?;
        if let Some(stage) = self.stage {
            write!(f, " ({})", stage.name())?;
        }
        if self.on_processor < self.ran / 2 {
            let time = Time(self.on_processor);
            write!(
                f,
                ", and the worker had a processor for at most {time} of it"
            )?;
        }
        Ok(())
    }
}

/// The hogs of a worker: the requests that kept it from its event loop for longest, one in this turn and one in the
/// turn before. A turn is what the worker does between two calls of `epoll_wait`. A request that was ready in this
/// turn waited for the first one. A request that arrived in the turn before waited in the kernel for the second one.
#[derive(Default)]
pub(crate) struct Hogs {
    latest: Option<Hog>,
    earlier: Option<Hog>,
}

impl Hogs {
    /// Adds `hog`, which has just ended, in the turn that began at `turn`.
    pub(crate) fn note(&mut self, hog: Hog, turn: Nanos) {
        match &self.latest {
            Some(latest) if latest.ended < turn => self.earlier = self.latest.take(),
            Some(latest) if latest.ran > hog.ran => return,
            _ => {}
        }
        self.latest = Some(hog);
    }

    /// The one that ran for longest in the latest turn that had one.
    pub(crate) fn latest(&self) -> Option<&Hog> {
        self.latest.as_ref()
    }

    /// The one that ran for longest, of those that ended from `since` to `until`.
    pub(crate) fn between(&self, since: Nanos, until: Nanos) -> Option<&Hog> {
        let both = [&self.latest, &self.earlier].into_iter().flatten();
        let then = both.filter(|hog| (since..=until).contains(&hog.ended));
        then.max_by_key(|hog| hog.ran)
    }
}

thread_local! {
    /// The last slow answer of a server that scripts and caches of this worker use: how long it took, when it
    /// came, and both in words. A global of the thread, because pools of connections know no worker.
    static SLOW_PEER: RefCell<Option<(Nanos, Nanos, String)>> = const { RefCell::new(None) };
}

/// Notes that a server which scripts or caches use was slow: `what` says which and how slow. The answer came,
/// or the wait was given up, at `ended`, after `took`.
pub fn note_slow_peer(took: Nanos, ended: Nanos, what: String) {
    SLOW_PEER.set(Some((took, ended, what)));
}

/// What [`note_slow_peer`] last told, if it ended a wait that began at `since`: it took most of the time from
/// then on.
pub fn slow_peer_since(since: Nanos) -> Option<String> {
    SLOW_PEER.with_borrow(|peer| match peer {
        Some((took, ended, what)) if *ended >= since && *took >= (ended - since) / 2 => {
            Some(what.clone())
        }
        _ => None,
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

/// `path` for a note: printable, and cut to [`limits::NOTED_PATH_BYTES_MAX`].
pub(crate) fn shown_path(path: &[u8]) -> String {
    let cut = path.get(..limits::NOTED_PATH_BYTES_MAX).unwrap_or(path);
    let more = if cut.len() < path.len() { "..." } else { "" };
    format!("{}{more}", String::from_utf8_lossy(cut).escape_debug())
}

/// What held up a response whose client took it slowly: `bytes` in `nanos`, over this way.
pub(crate) fn for_slow_client(bytes: u64, nanos: Nanos, path: Option<TcpPath>) -> String {
    let per_second = u128::from(bytes) * 1_000_000_000 / u128::from(nanos.max(1));
    let mut text = match per_second {
        0..10_000 => format!("the client took {per_second} bytes a second"),
        10_000..10_000_000 => format!("the client took {} kB a second", per_second / 1_000),
        _ => format!("the client took {} MB a second", per_second / 1_000_000),
    };
    if let Some(path) = path {
        let rtt = Time(u64::from(path.rtt_us) * 1_000);
        let lost = u64::from(path.retransmitted) * 100;
        let percent = lost.checked_div(u64::from(path.segments)).unwrap_or(0);
        text += &format!(" (rtt {rtt}, {percent} % lost)");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hog_says_when_it_had_no_processor() {
        let mut hog = Hog {
            what: "/srv/slow.lua".to_owned(),
            stage: Some(Stage::Lua),
            ran: 41_000_000,
            on_processor: 40_000_000,
            ended: 0,
        };
        assert_eq!(hog.to_string(), "/srv/slow.lua ran 41 ms (lua)");
        hog.on_processor = 3_000_000;
        let told = "/srv/slow.lua ran 41 ms (lua), and the worker had a processor for at most 3.0 ms of it";
        assert_eq!(hog.to_string(), told);
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
        for nanos in 1..=20 {
            waits.add(wait(nanos, &format!("holder {nanos}")));
        }
        assert_eq!(waits.all().len(), limits::NOTED_WAITS_MAX);
        assert!(waits.all().iter().all(|wait| wait.nanos > 10));
        waits.add(wait(100, "holder 20"));
        assert!(waits.all().contains(&wait(120, "holder 20")));
        waits.clear();
        assert!(waits.all().is_empty());
    }

    #[test]
    fn the_longest_hog_of_a_turn_is_named() {
        let hog = |what: &str, ran, ended| Hog {
            what: what.to_owned(),
            stage: Some(Stage::Lua),
            ran,
            on_processor: ran,
            ended,
        };
        let mut hogs = Hogs::default();
        // One turn begins at 0, the next one at 1,000.
        hogs.note(hog("first", 900, 950), 0);
        hogs.note(hog("long", 500, 1_500), 1_000);
        hogs.note(hog("short", 20, 1_520), 1_000);
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
    fn a_note_is_one_line() {
        let mut waits = Waits::default();
        waits.add(wait(412_000_000, "a\r\nb"));
        let shown = waits.all()[0].to_string();
        assert_eq!(shown, "backend-queue 412 ms: a??b");
        assert_eq!(shown_path(b"/a\x1b\n\xff"), "/a\\u{1b}\\n\u{fffd}");
        assert_eq!(
            shown_path(&[b'a'; 500]).len(),
            limits::NOTED_PATH_BYTES_MAX + 3
        );
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
