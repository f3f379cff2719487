//! The pool with looks that end when a test says so.

use std::collections::HashSet;
use std::task::Waker;

use super::*;

/// A disk that hangs for the files whose names begin with `hang`, until it is told to go on.
struct Disk {
    pool: Pool,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    begun: Mutex<Vec<Vec<u8>>>,
    freed: Mutex<HashSet<Vec<u8>>>,
    changed: Condvar,
}

impl Disk {
    fn new(threads: usize) -> Disk {
        let inner = Arc::new(Inner::default());
        let disk = Arc::clone(&inner);
        let look = move |target: &Target, _: &mut Vec<u8>| {
            disk.begun.lock().expect("whole").push(target.path());
            let mut freed = disk.freed.lock().expect("whole");
            while target.relative.starts_with(b"hang") && !freed.contains(&target.path()) {
                freed = disk.changed.wait(freed).expect("whole");
            }
            match target.relative.ends_with(b"bad") {
                true => Err(Refusal::new(Status(500), "bad".to_owned())),
                false => Ok(()),
            }
        };
        Disk {
            pool: Pool::new(threads, PATIENCE, Box::new(look)),
            inner,
        }
    }

    fn submit(&self, path: &str, now: Instant) -> Result<Ticket, Refusal> {
        self.submit_on(1, path, now)
    }

    fn submit_on(&self, device: u64, path: &str, now: Instant) -> Result<Ticket, Refusal> {
        let (root, relative) = path.rsplit_once('/').expect("absolute");
        let target = Target {
            root: root.as_bytes().into(),
            relative: relative.as_bytes().into(),
        };
        self.pool.submit(target, device, now)
    }

    fn free(&self, path: &str) {
        self.inner.freed.lock().expect("whole").insert(path.into());
        self.inner.changed.notify_all();
    }

    fn has_begun(&self, path: &str) -> bool {
        self.times_begun(path) > 0
    }

    fn times_begun(&self, path: &str) -> usize {
        let begun = self.inner.begun.lock().expect("whole");
        begun.iter().filter(|one| *one == path.as_bytes()).count()
    }

    /// Until `threads` are with a file and nothing is queued.
    fn settle(&self, count: usize) {
        eventually(|| self.inner.begun.lock().expect("whole").len() >= count);
    }

    fn threads(&self) -> (usize, usize) {
        let state = self.pool.shared.state();
        (state.active, state.stuck)
    }
}

fn eventually(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "it does not come to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait(ticket: &mut Ticket) -> Found {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(found) = ticket.poll(&mut Context::from_waker(Waker::noop())) {
            return found;
        }
        assert!(Instant::now() < end, "nobody answers");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn files_are_looked_at_and_everybody_is_told_but_one_logs() {
    let disk = Disk::new(2);
    let now = Instant::now();
    assert_eq!(wait(&mut disk.submit("/r/a", now).expect("taken")), Ok(()));
    let mut waiting: Vec<Ticket> = (0..50)
        .map(|_| disk.submit("/r/hang-bad", now).expect("taken"))
        .collect();
    disk.settle(2);
    disk.free("/r/hang-bad");
    let told: Vec<Refusal> = waiting
        .iter_mut()
        .map(|ticket| wait(ticket).expect_err("bad"))
        .collect();
    assert!(told.iter().all(|refusal| refusal.status == Status(500)));
    assert_eq!(
        told.iter()
            .filter(|refusal| refusal.words.is_some())
            .count(),
        1
    );
    // All of them by one look.
    assert_eq!(disk.inner.begun.lock().expect("whole").len(), 2);
    assert!(disk.pool.shared.state().jobs.is_empty());
}

#[test]
fn threads_are_started_as_they_are_needed_and_no_more() {
    let disk = Disk::new(3);
    let now = Instant::now();
    let mut waiting: Vec<Ticket> = (0..10)
        .map(|number| {
            disk.submit(&format!("/r/hang{number}"), now)
                .expect("taken")
        })
        .collect();
    disk.settle(3);
    assert_eq!(disk.threads(), (3, 0));
    assert!(!disk.has_begun("/r/hang3"));
    for number in 0..10 {
        disk.free(&format!("/r/hang{number}"));
    }
    assert!(waiting.iter_mut().all(|ticket| wait(ticket).is_ok()));
    assert_eq!(disk.threads(), (3, 0));
}

#[test]
fn a_thread_that_hangs_is_replaced_and_goes_when_it_comes_back() {
    let disk = Disk::new(1);
    let now = Instant::now();
    let mut hangs = disk.submit("/r/hang", now).expect("taken");
    disk.settle(1);
    let mut other = disk.submit("/r/a", now).expect("taken");
    disk.pool.replace_stuck(now);
    assert_eq!(disk.threads(), (1, 0), "it may still come back in time");
    disk.pool.replace_stuck(Instant::now() + STUCK_AFTER);
    assert_eq!(disk.threads(), (1, 1));
    assert_eq!(wait(&mut other), Ok(()));
    disk.free("/r/hang");
    assert_eq!(wait(&mut hangs), Ok(()));
    eventually(|| disk.threads() == (1, 0));
    assert!(disk.pool.shared.state().stuck_below.is_empty());
    assert_eq!(wait(&mut disk.submit("/r/b", now).expect("taken")), Ok(()));
}

#[test]
fn a_root_that_hangs_leaves_threads_and_room_for_others() {
    let disk = Disk::new(4);
    let mut now = Instant::now();
    let mut hanging = Vec::new();
    let refused = loop {
        now += STUCK_AFTER;
        match disk.submit(&format!("/bad/hang{}", hanging.len()), now) {
            Ok(ticket) => hanging.push(ticket),
            Err(refusal) => break refusal,
        }
        disk.settle(hanging.len().min(STUCK_PER_ROOT_MAX));
        assert!(hanging.len() < 10_000, "there is no limit");
    };
    assert_eq!(hanging.len(), STUCK_PER_ROOT_MAX + QUEUED_PER_ROOT_MAX);
    assert_eq!(refused.status, Status::SERVICE_UNAVAILABLE);
    assert!(
        refused
            .words
            .is_some_and(|words| words.contains("\"/bad\""))
    );
    let again = disk.submit("/bad/a", now).err();
    assert_eq!(
        again,
        Some(Refusal::silent(Status::SERVICE_UNAVAILABLE)),
        "told once"
    );
    assert_eq!(disk.threads().1, STUCK_PER_ROOT_MAX);
    let mut other = disk.submit("/good/a", now).expect("there is room");
    assert_eq!(wait(&mut other), Ok(()));
    for number in 0..hanging.len() {
        disk.free(&format!("/bad/hang{number}"));
    }
    assert!(hanging.iter_mut().all(|ticket| wait(ticket).is_ok()));
    eventually(|| disk.threads() == (4, 0));
}

#[test]
fn what_hangs_is_looked_at_again_on_another_file_system() {
    let disk = Disk::new(4);
    let mut now = Instant::now();
    let mut hanging = Vec::new();
    for number in 0..STUCK_PER_ROOT_MAX {
        now += STUCK_AFTER;
        hanging.push(
            disk.submit(&format!("/r/hang{number}"), now)
                .expect("taken"),
        );
        disk.settle(number + 1);
    }
    now += PATIENCE;
    let mut queued = disk.submit("/r/a", now).expect("taken");
    let known = disk.submit("/r/hang0", now).err();
    assert_eq!(known, Some(Refusal::silent(Status::GATEWAY_TIMEOUT)));
    // Something else has been mounted there.
    let mut other = disk.submit_on(2, "/r/a", now).expect("taken");
    assert_eq!(wait(&mut other), Ok(()));
    let mut again = disk.submit_on(2, "/r/hang0", now).expect("taken");
    eventually(|| disk.times_begun("/r/hang0") == 2);
    assert_eq!(
        disk.times_begun("/r/a"),
        1,
        "too many hang on the first one"
    );
    for number in 0..STUCK_PER_ROOT_MAX {
        disk.free(&format!("/r/hang{number}"));
    }
    assert_eq!(wait(&mut again), Ok(()));
    assert_eq!(wait(&mut queued), Ok(()));
    assert!(hanging.iter_mut().all(|ticket| wait(ticket).is_ok()));
    eventually(|| disk.threads() == (4, 0));
    assert!(disk.pool.shared.state().stuck_below.is_empty());
}

#[test]
fn the_queue_has_an_end_and_who_has_left_makes_room() {
    let disk = Disk::new(1);
    let now = Instant::now();
    let _hangs = disk.submit("/r/hang", now).expect("taken");
    disk.settle(1);
    let waiting: Vec<Ticket> = (0..QUEUED_PER_ROOT_MAX)
        .map(|number| disk.submit(&format!("/r/{number}"), now).expect("taken"))
        .collect();
    let refusal = disk.submit("/r/more", now).err().expect("refused");
    assert_eq!(refusal.status, Status::SERVICE_UNAVAILABLE);
    // A file that is waited for already takes no room.
    disk.submit("/r/7", now).expect("taken");
    let elsewhere: Vec<Ticket> = (QUEUED_PER_ROOT_MAX..QUEUED_MAX)
        .map(|number| {
            disk.submit(&format!("/other/{number}"), now)
                .expect("taken")
        })
        .collect();
    let refusal = disk.submit("/third/more", now).err().expect("refused");
    assert_eq!(refusal.status, Status::SERVICE_UNAVAILABLE);
    drop((waiting, elsewhere));
    let mut more = disk.submit("/r/more", now).expect("there is room");
    disk.free("/r/hang");
    assert_eq!(wait(&mut more), Ok(()));
    assert!(!disk.has_begun("/r/5"), "nobody waits for it");
}

#[test]
fn waiting_has_an_end() {
    let disk = Disk::new(1);
    let now = Instant::now();
    let first = disk.submit("/r/hang", now).expect("taken");
    let second = disk.submit("/r/hang", now).expect("taken");
    disk.settle(1);
    let queued = disk.submit("/r/a", now).expect("taken");
    let refusal = first.give_up();
    assert_eq!(refusal.status, Status::GATEWAY_TIMEOUT);
    let words = refusal.words.expect("it is told");
    assert_eq!(words, "open, stat or read: no answer in 60 s: \"/r/hang\"");
    assert_eq!(second.give_up(), Refusal::silent(Status::GATEWAY_TIMEOUT));
    assert_eq!(queued.give_up().status, Status::SERVICE_UNAVAILABLE);
    // Whoever asks now is not made to wait for as long.
    let late = disk.submit("/r/hang", Instant::now() + PATIENCE);
    assert_eq!(late.err(), Some(Refusal::silent(Status::GATEWAY_TIMEOUT)));
    drop(queued);
    disk.free("/r/hang");
}

#[test]
fn those_who_have_left_are_forgotten() {
    let disk = Disk::new(1);
    let now = Instant::now();
    let mut stays = disk.submit("/r/hang", now).expect("taken");
    for _ in 0..10_000 {
        drop(disk.submit("/r/hang", now).expect("taken"));
    }
    let waiters = {
        let state = disk.pool.shared.state();
        state
            .jobs
            .values()
            .map(|job| job.waiters.len())
            .sum::<usize>()
    };
    assert!(waiters < 100, "{waiters}");
    disk.free("/r/hang");
    assert_eq!(wait(&mut stays), Ok(()));
}
