//! Tests of the looks, with a pretend disk that hangs until a test releases it.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex};
use std::task::Waker;

use super::*;

/// A pretend disk. It hangs for files whose names begin with `hang` until a test releases them.
struct Disk {
    pool: Rc<Looks>,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    begun: Mutex<Vec<Vec<u8>>>,
    freed: Mutex<HashSet<Vec<u8>>>,
    changed: Condvar,
}

impl Disk {
    fn new() -> Disk {
        let inner = Arc::new(Inner::default());
        let disk = Arc::clone(&inner);
        let look = move |target: &Target| {
            disk.begun.lock().expect("whole").push(target.path());
            let mut freed = disk.freed.lock().expect("whole");
            let hangs = || target.relative.starts_with(b"hang");
            while hangs() && !freed.contains(&target.path()) && !freed.contains(&b""[..]) {
                freed = disk.changed.wait(freed).expect("whole");
            }
            match target.relative.ends_with(b"bad") {
                true => Err(Refusal::new(Status(500), "bad".to_owned())),
                false => Ok(()),
            }
        };
        Disk {
            pool: Rc::new(Looks::new(PATIENCE, Arc::new(look))),
            inner,
        }
    }

    /// Asks for a file on the file system `device`. Each test uses a device number of its own.
    fn submit(&self, device: u64, path: &str, now: Instant) -> Result<Ticket, Refusal> {
        let (root, relative) = path.rsplit_once('/').expect("absolute");
        let target = Target {
            root: root.as_bytes().into(),
            relative: relative.as_bytes().into(),
        };
        self.pool.submit(target, device, now)
    }

    /// Makes so many files of one file system hang that no thread begins another one.
    fn fill(&self, device: u64, now: Instant) -> Vec<Ticket> {
        let tickets = (0..engine::limits::DEVICE_JOBS_MAX).map(|number| {
            let path = format!("/full/hang{number}");
            self.submit(device, &path, now).expect("taken")
        });
        let tickets = tickets.collect::<Vec<_>>();
        let has_begun = || self.inner.begun.lock().expect("whole").len() >= tickets.len();
        eventually(has_begun);
        tickets
    }

    /// Releases one path, or all if it is empty.
    fn free(&self, path: &str) {
        self.inner.freed.lock().expect("whole").insert(path.into());
        self.inner.changed.notify_all();
    }

    fn times_begun(&self, path: &str) -> usize {
        let begun = self.inner.begun.lock().expect("whole");
        begun.iter().filter(|one| *one == path.as_bytes()).count()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.free("");
    }
}

/// Waits until `condition` holds. Meanwhile hanging threads are replaced, as a program with requests would
/// do.
fn eventually(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        blocking::look_after();
        assert!(Instant::now() < end, "it does not come to that");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn wait(ticket: &mut Ticket) -> LookResult {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Poll::Ready(found) = ticket.poll(&mut Context::from_waker(Waker::noop())) {
            return found;
        }
        blocking::look_after();
        assert!(Instant::now() < end, "no answer comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn files_are_looked_at_and_all_requests_are_told_but_one_logs() {
    let disk = Disk::new();
    let now = Instant::now();
    assert_eq!(
        wait(&mut disk.submit(101, "/r/a", now).expect("taken")),
        Ok(())
    );
    let mut waiting: Vec<Ticket> = (0..50)
        .map(|_| disk.submit(101, "/r/hang-bad", now).expect("taken"))
        .collect();
    eventually(|| disk.times_begun("/r/hang-bad") == 1);
    disk.free("/r/hang-bad");
    let told: Vec<Refusal> = waiting
        .iter_mut()
        .map(|ticket| wait(ticket).expect_err("bad"))
        .collect();
    assert!(told.iter().all(|refusal| refusal.status == Status(500)));
    let logged = told.iter().filter(|refusal| refusal.words.is_some());
    assert_eq!(logged.count(), 1);
    // One look served all of them.
    assert_eq!(disk.times_begun("/r/hang-bad"), 1);
    drop(waiting);
    assert!(disk.pool.jobs.borrow().is_empty());
    // The next request starts a new look.
    let again = wait(&mut disk.submit(101, "/r/hang-bad", now).expect("taken"));
    assert!(again.is_err_and(|refusal| refusal.words.is_some()));
}

#[test]
fn what_hangs_is_looked_at_again_on_another_file_system() {
    let disk = Disk::new();
    let now = Instant::now();
    let mut hanging = disk.fill(102, now);
    let mut queued = disk.submit(102, "/r/a", now).expect("taken");
    let late = Instant::now() + PATIENCE;
    let known = disk.submit(102, "/full/hang0", late).err();
    assert_eq!(known, Some(Refusal::silent(Status::GATEWAY_TIMEOUT)));
    // Another file system has been mounted there.
    let mut other = disk.submit(103, "/r/a", late).expect("taken");
    assert_eq!(wait(&mut other), Ok(()));
    let mut again = disk.submit(103, "/full/hang0", late).expect("taken");
    eventually(|| disk.times_begun("/full/hang0") == 2);
    assert_eq!(
        disk.times_begun("/r/a"),
        1,
        "too many hang on the first one"
    );
    disk.free("");
    for ticket in hanging.iter_mut().chain([&mut again, &mut queued]) {
        assert_eq!(wait(ticket), Ok(()));
    }
}

#[test]
fn the_queue_has_an_end_and_a_request_that_leaves_makes_room() {
    let disk = Disk::new();
    let now = Instant::now();
    let hanging = disk.fill(104, now);
    let waiting: Vec<Ticket> = (0..QUEUED_PER_ROOT_MAX)
        .map(|number| {
            disk.submit(104, &format!("/r/{number}"), now)
                .expect("taken")
        })
        .collect();
    let refusal = disk.submit(104, "/r/more", now).err().expect("refused");
    assert_eq!(refusal.status, Status::SERVICE_UNAVAILABLE);
    assert!(refusal.words.is_some_and(|words| words.contains("\"/r\"")));
    let again = disk.submit(104, "/r/more", now).err();
    let silent = Refusal::silent(Status::SERVICE_UNAVAILABLE);
    assert_eq!(again, Some(silent), "told once");
    // A file that a request is waiting for already takes no room of its own.
    disk.submit(104, "/r/7", now).expect("taken");
    let elsewhere: Vec<Ticket> = (QUEUED_PER_ROOT_MAX..QUEUED_MAX)
        .map(|number| {
            let path = format!("/other/{number}");
            disk.submit(104, &path, now).expect("taken")
        })
        .collect();
    let refusal = disk.submit(104, "/third/more", now).err().expect("refused");
    assert_eq!(refusal.status, Status::SERVICE_UNAVAILABLE);
    drop((waiting, elsewhere));
    let mut more = disk.submit(104, "/r/more", now).expect("there is room");
    disk.free("");
    assert_eq!(wait(&mut more), Ok(()));
    assert_eq!(disk.times_begun("/r/5"), 0, "no request waits for it");
    drop(hanging);
}

#[test]
fn waiting_has_an_end() {
    let disk = Disk::new();
    let now = Instant::now();
    let _full = disk.fill(105, now);
    let first = disk.submit(105, "/full/hang0", now).expect("taken");
    let second = disk.submit(105, "/full/hang0", now).expect("taken");
    let queued = disk.submit(105, "/r/a", now).expect("taken");
    let refusal = first.give_up();
    assert_eq!(refusal.status, Status::GATEWAY_TIMEOUT);
    let words = refusal.words.expect("it is told");
    assert_eq!(
        words,
        "open, stat or read: no answer in 60 s: \"/full/hang0\""
    );
    assert_eq!(second.give_up(), Refusal::silent(Status::GATEWAY_TIMEOUT));
    assert_eq!(queued.give_up().status, Status::SERVICE_UNAVAILABLE);
}

#[test]
fn what_hangs_stays_known_when_all_requests_have_left() {
    let disk = Disk::new();
    let now = Instant::now();
    let first = disk.submit(106, "/r/hang", now).expect("taken");
    eventually(|| disk.times_begun("/r/hang") == 1);
    drop(first);
    let mut second = disk.submit(106, "/r/hang", now).expect("taken");
    disk.free("/r/hang");
    assert_eq!(wait(&mut second), Ok(()));
    assert_eq!(disk.times_begun("/r/hang"), 1);
}
