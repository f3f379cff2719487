//! When a worker had a processor, and for how long it waited for one.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io::IoSliceMut;

use crate::clock::thread_processor_time;
use crate::ledger::Nanos;

/// What the kernel says about the thread of one worker.
#[derive(Default)]
pub(crate) struct ProcessorTimes {
    /// `schedstat` of the thread: see scheduler/sched-stats.rst of the kernel. `None`: there is no such file.
    waits: OnceCell<Option<File>>,
    /// At the beginning of the present second.
    had: Cell<Nanos>,
    waited: Cell<Nanos>,
}

impl ProcessorTimes {
    /// A second begins. Called by the thread of the worker.
    pub(crate) fn next_second(&self) {
        self.had.set(thread_processor_time());
        self.waited.set(self.read_waits());
    }

    /// For how long the worker has had a processor in this second.
    pub(crate) fn had(&self) -> Nanos {
        thread_processor_time().saturating_sub(self.had.get())
    }

    /// For how long it could have gone on in this second and had no processor: others had it, or a quota was used up.
    pub(crate) fn waited(&self) -> Nanos {
        self.read_waits().saturating_sub(self.waited.get())
    }

    /// For how long the thread has waited since it began; 0 if that is not known.
    fn read_waits(&self) -> Nanos {
        let open = || File::open("/proc/thread-self/schedstat").ok();
        let mut text = [0; 80];
        let file = self.waits.get_or_init(open).as_ref();
        let length = file.and_then(|file| {
            // Not pread(2), which tests count as a read of a file for a client.
            rustix::io::preadv(file, &mut [IoSliceMut::new(&mut text)], 0).ok()
        });
        // Nanoseconds on a processor, nanoseconds without one, and how often it got one.
        let text = str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
        let waited = text.split(' ').nth(1).and_then(|field| field.parse().ok());
        waited.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_nothing_has_a_processor_or_waits_for_one() {
        let times = ProcessorTimes::default();
        times.next_second();
        let begun = crate::clock::thread_now();
        while crate::clock::thread_now() - begun < 30_000_000 {}
        let took = crate::clock::thread_now() - begun;
        let (had, waited) = (times.had(), times.waited());
        assert!(had > 0);
        if !matches!(times.waits.get(), Some(Some(_))) {
            return;
        }
        // What the thread waits between the readings of two clocks is in one of them only.
        assert!(had <= crate::clock::thread_now() - begun);
        assert!(
            waited > 0 || had >= took / 2,
            "{had} and {waited} of {took}"
        );
    }
}
