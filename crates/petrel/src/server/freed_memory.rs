//! Returns memory to the system that a burst of requests has left in the C library's heap.
//!
//! Each worker allocates from a heap of its own. The C library returns only the free memory at the end of a
//! heap. One small allocation there that is still in use keeps everything before it, such as the buffers of
//! 300 clients that did not read. So the main thread calls malloc_trim() after a burst: when the process had
//! grown, and when the workers have next to nothing to do, because they wait for their heaps during the call.
//! A server that is always idle or always busy never makes the call. A server process that begins to drain
//! makes it once, however little it has grown.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use engine::server::Server;

/// When to return memory, and how to measure what is in use.
pub(crate) struct FreedMemory {
    /// /proc/self/statm, kept open because a chroot hides /proc. Without it no memory is returned.
    statm: Option<File>,
    looked: Instant,
    seen: Activity,
    trigger: Trigger,
}

/// The activity of the server: requests so far, and open connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Activity {
    requests: u64,
    connections: usize,
}

/// Decides when a call is worth while.
#[derive(Debug, Default)]
struct Trigger {
    /// Bytes in use after the last call, or at the start.
    level: u64,
    /// The lowest value that `level` ever had.
    lowest: u64,
    /// Connections at the time of the last call.
    connections: usize,
    /// A call is due as soon as the server is calm.
    is_due: bool,
    /// How many looks in a row saw next to no requests.
    calm: u32,
}

impl FreedMemory {
    /// Call this in the server process itself, before a chroot and before the first request.
    pub(crate) fn new() -> FreedMemory {
        let statm = File::open("/proc/self/statm").ok();
        let bytes = statm.as_ref().and_then(bytes_in_use).unwrap_or(0);
        FreedMemory {
            statm,
            looked: Instant::now(),
            seen: Activity::default(),
            trigger: Trigger::starting_at(bytes),
        }
    }

    /// The process begins to drain: its caches and idle connections free memory, however little it has grown.
    /// Memory is returned as soon as the server is calm.
    pub(crate) fn drains(&mut self) {
        self.trigger.drains();
    }

    /// Looks at the memory at most once a second, and returns memory if it is time to.
    pub(crate) fn look(&mut self, server: &Server, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOK_EVERY {
            return;
        }
        self.looked = now;
        let shared = server.shared();
        let activity = Activity {
            requests: shared.requests(),
            connections: shared.connections(),
        };
        let before = std::mem::replace(&mut self.seen, activity);
        let Some(statm) = &self.statm else { return };
        // While the server does nothing, memory in use is not read either.
        if activity != before
            && let Some(bytes) = bytes_in_use(statm)
        {
            self.trigger.saw(bytes, activity.connections);
        }
        if self.trigger.may_fire(activity.requests - before.requests) {
            sys::allocator::give_back_now();
            if let Some(bytes) = bytes_in_use(statm) {
                self.trigger.fired(bytes, activity.connections);
            }
        }
    }
}

/// Bytes of this process's resident memory that do not come from files.
fn bytes_in_use(statm: &File) -> Option<u64> {
    let mut text = [0; 128];
    let length = statm.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(text.get(..length)?).ok()?;
    let mut pages = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, of_files) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(of_files) * rustix::param::page_size() as u64)
}

impl Trigger {
    fn starting_at(bytes: u64) -> Trigger {
        Trigger {
            level: bytes,
            lowest: bytes,
            ..Trigger::default()
        }
    }

    /// Notes the bytes in use after some activity.
    fn saw(&mut self, bytes: u64, connections: usize) {
        let has_grown = bytes >= self.level + WORTH_BYTES;
        // Memory that clients held during the last call may be free now that they have left.
        let has_held = self.level >= self.lowest + WORTH_BYTES;
        let clients_went = connections < self.connections / 2 || connections == 0;
        self.is_due |= has_grown || (has_held && self.connections > 0 && clients_went);
    }

    fn drains(&mut self) {
        self.is_due = true;
        self.calm = 0;
    }

    /// Whether to make the call now, given the number of requests since the last look.
    fn may_fire(&mut self, requests: u64) -> bool {
        self.calm = match requests < CALM_REQUESTS {
            true => self.calm + 1,
            false => 0,
        };
        self.is_due && self.calm >= CALM_LOOKS
    }

    /// Notes the bytes in use after a call.
    fn fired(&mut self, bytes: u64, connections: usize) {
        self.level = bytes;
        self.lowest = self.lowest.min(bytes);
        self.connections = connections;
        self.is_due = false;
        self.calm = 0;
    }
}

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Fewer requests than this between two looks count as next to none.
const CALM_REQUESTS: u64 = 20;
/// How many calm looks in a row are needed.
const CALM_LOOKS: u32 = 3;
/// Growth by less is not worth a call: a server that has just started uses 2 MiB, and 7 MiB of its program
/// and libraries.
const WORTH_BYTES: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Feeds looks to a trigger: the bytes in use, connections, and requests since the last look. Returns the
    /// numbers of the looks that made a call. After each call the next value of `left` is in use.
    fn fired(looks: &[(u64, usize, u64)], left: &[u64]) -> Vec<usize> {
        let (mut trigger, mut left) = (Trigger::starting_at(2 * MIB), left.iter());
        let mut fired = Vec::new();
        for (number, (bytes, connections, requests)) in looks.iter().enumerate() {
            trigger.saw(*bytes, *connections);
            if trigger.may_fire(*requests) {
                fired.push(number);
                trigger.fired(*left.next().expect("no more are expected"), *connections);
            }
        }
        fired
    }

    #[test]
    fn a_burst_is_followed_by_one_search_when_it_is_over() {
        let (idle, burst) = ((100 * MIB, 0, 0), (100 * MIB, 300, 300));
        let after = (2 * MIB, 0, 0);
        let mut looks = vec![after, burst, burst, burst, idle, idle, idle];
        looks.extend([after; 100]);
        assert_eq!(fired(&looks, &[2 * MIB]), [6]);
    }

    #[test]
    fn a_burst_may_begin_with_the_server() {
        let idle = (100 * MIB, 0, 0);
        let looks = [(100 * MIB, 300, 300), idle, idle, idle];
        assert_eq!(fired(&looks, &[2 * MIB]), [3]);
    }

    #[test]
    fn neither_idle_nor_busy_servers_are_searched() {
        assert!(fired(&[(2 * MIB, 0, 0); 100], &[]).is_empty());
        let mut busy = vec![(2 * MIB, 0, 0)];
        busy.extend([(100 * MIB, 50, 5000); 100]);
        assert!(fired(&busy, &[]).is_empty());
        // Memory that stays in use causes a single call.
        let mut quiet = vec![(2 * MIB, 0, 0)];
        quiet.extend([(100 * MIB, 1, 1); 100]);
        assert_eq!(fired(&quiet, &[100 * MIB]).len(), 1);
    }

    #[test]
    fn what_clients_held_is_given_back_when_they_went() {
        let mut looks = vec![(2 * MIB, 0, 0)];
        looks.extend([(100 * MIB, 300, 0); 50]);
        looks.push((100 * MIB, 0, 0));
        looks.extend([(2 * MIB, 0, 0); 50]);
        assert_eq!(fired(&looks, &[99 * MIB, 2 * MIB]), [2, 51]);
    }

    #[test]
    fn a_process_that_drains_is_searched_when_it_is_calm_although_it_has_not_grown() {
        let mut trigger = Trigger::starting_at(2 * MIB);
        trigger.saw(2 * MIB, 10);
        trigger.drains();
        let fired = [100, 5, 5, 5].map(|requests| trigger.may_fire(requests));
        assert_eq!(fired, [false, false, false, true]);
    }

    #[test]
    fn this_process_uses_memory() {
        let bytes = FreedMemory::new().trigger.level;
        assert!((MIB / 16..1024 * MIB).contains(&bytes), "{bytes}");
    }
}
