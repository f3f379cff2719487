//! The process that asks PAM about passwords, for all server processes.
//!
//! It has the rights of the keeper: pam_unix must read /etc/shadow. It forks one process for each password,
//! because a module may hang or crash, and many are not made for threads. A check that takes too long is
//! killed with the programs that it has started. The keeper starts the helper with the first configuration
//! that needs it, and another one when it has ended; questions wait in the socket meanwhile.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use modules::auth::{CHECK_TIME, PamAsker, PamDoor, PamInbox, PamQuestion, PamReply, pam_pair};
use nix::sys::signal::{SigSet, Signal as Death};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::pam::{Pam, PamAnswer, PamLogin};
use sys::process::{Forked, fork};

use super::signals::Signals;
use crate::stdio;

/// The helper, as the keeper sees it. The keeper has both ends of the socket, so that a helper that ends
/// loses no question.
pub(crate) struct PamHelper {
    keeper: u32,
    door: PamDoor,
    inbox: PamInbox,
    /// The names in /etc/pam.d that the configurations name.
    services: BTreeSet<Vec<u8>>,
    pid: Option<Pid>,
    /// No configuration needs the process any more, or one needs another service, so the keeper has sent it
    /// SIGTERM.
    is_told_to_end: bool,
    /// Not before this time another one is started.
    start_at: Instant,
}

/// The helper, as it sees itself.
pub(crate) struct PamAsking {
    keeper: u32,
    inbox: PamInbox,
    services: BTreeSet<Vec<u8>>,
}

/// What comes of starting it, in each of the two processes.
pub(crate) enum StartedPamHelper {
    /// In the keeper.
    Keeper,
    /// In the helper.
    Helper(Box<PamAsking>),
}

impl PamHelper {
    /// Makes the socket; no process is started.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn open() -> io::Result<PamHelper> {
        let (door, inbox) = pam_pair()?;
        Ok(PamHelper {
            keeper: std::process::id(),
            door,
            inbox,
            services: BTreeSet::new(),
            pid: None,
            is_told_to_end: false,
            start_at: Instant::now(),
        })
    }

    /// Has the helper answer for `services`, too. A helper that runs and does not know one of them ends, and
    /// another one begins.
    pub(crate) fn serve(&mut self, mut services: BTreeSet<Vec<u8>>) {
        if !services.is_subset(&self.services) {
            self.services.append(&mut services);
            self.end();
        }
    }

    /// What a server process sends its questions into.
    ///
    /// # Errors
    /// Descriptors have run out.
    pub(crate) fn door(&self) -> io::Result<PamDoor> {
        self.door.copy()
    }

    /// When the process is to be started; `None`: it runs.
    pub(crate) fn start_at(&self) -> Option<Instant> {
        self.pid.is_none().then_some(self.start_at)
    }

    /// Forks the process.
    ///
    /// # Errors
    /// Processes, descriptors or memory have run out. It is to be tried again later.
    pub(crate) fn start(&mut self) -> io::Result<StartedPamHelper> {
        let keeper = self.keeper;
        self.start_at = Instant::now() + START_PAUSE;
        let inbox = self.inbox.copy()?;
        match fork()? {
            Forked::Parent(id) => {
                self.pid = Pid::from_raw(id);
                Ok(StartedPamHelper::Keeper)
            }
            Forked::Child => Ok(StartedPamHelper::Helper(Box::new(PamAsking {
                keeper,
                inbox,
                services: self.services.clone(),
            }))),
        }
    }

    /// Tells the process to end. It first kills what it has started. [`PamHelper::wait`] says when it has ended.
    pub(crate) fn end(&mut self) {
        if let Some(pid) = self.pid
            && !self.is_told_to_end
        {
            self.is_told_to_end = kill_process(pid, Signal::TERM).is_ok();
        }
    }

    /// Whether there is a process.
    pub(crate) fn runs(&self) -> bool {
        self.pid.is_some()
    }

    /// How the process ended, once it has ended without being told to.
    pub(crate) fn wait(&mut self) -> Option<WaitStatus> {
        let pid = self.pid?;
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok().flatten()?;
        self.pid = None;
        let was_told = std::mem::take(&mut self.is_told_to_end);
        (!was_told).then_some(status)
    }
}

impl Drop for PamHelper {
    /// Ends the process, which first kills what it has started. A child of the keeper drops its copy: then
    /// the process is not its to end.
    fn drop(&mut self) {
        if let Some(pid) = self.pid.filter(|_| std::process::id() == self.keeper) {
            // It exists until it is waited for, so this cannot hit another process.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Asks PAM until the keeper ends the process. The answer is the exit code, also of the processes that it
/// forks.
pub(crate) fn run(asking: PamAsking) -> u8 {
    match asking.serve() {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

/// One password that a process of its own checks.
struct Check {
    pid: Pid,
    asker: PamAsker,
    network: Vec<u8>,
    deadline: Instant,
    is_late: bool,
}

impl PamAsking {
    fn serve(self) -> io::Result<()> {
        stdio::let_go()?;
        // SIGTERM comes when the keeper ends, whichever way: then there are processes to kill first.
        nix::sys::prctl::set_pdeathsig(Death::SIGTERM)?;
        let signals = Signals::open()?;
        // A check takes up to 50 ms of a processor. A flood of passwords must not take the processors from
        // the workers.
        let _ = rustix::process::nice(NICE);
        let pam = Pam::open().map_err(io::Error::other)?;
        let mut checks = Vec::new();
        let mut waiting = VecDeque::new();
        while std::os::unix::process::parent_id() == self.keeper {
            self.wait(&signals, &checks, waiting.len());
            let mut is_over = false;
            while let Some(received) = signals.next() {
                is_over |= received.signal == Death::SIGTERM;
            }
            if is_over {
                break;
            }
            tend(&mut checks, Instant::now());
            if let Err(error) = self.receive(&mut waiting) {
                checks.iter().for_each(Check::kill);
                return Err(error);
            }
            while let Some(next) = take_next(&mut waiting, &checks) {
                if let Begun::Checker = begin(&mut checks, next, &pam) {
                    return Ok(());
                }
            }
        }
        checks.iter().for_each(Check::kill);
        Ok(())
    }

    /// Takes questions out of the socket, so that those of one network hold up no others there.
    fn receive(&self, waiting: &mut VecDeque<WaitingQuestion>) -> io::Result<()> {
        while waiting.len() < WAITING_MAX
            && let Some((question, asker)) = self.inbox.next()?
        {
            // A server process that an attacker has taken over may ask for the password of root at "login".
            if !self.services.contains(&question.service) {
                let text = "the configuration names no such service".to_owned();
                asker.tell(&PamReply::Unavailable(text));
                continue;
            }
            let network = network_of(&question.host);
            let same = waiting.iter().filter(|other| other.network == network);
            if !network.is_empty() && same.count() >= WAITING_OF_NETWORK_MAX {
                let text = format!("{WAITING_OF_NETWORK_MAX} passwords of this address wait");
                asker.tell(&PamReply::Unavailable(text));
                continue;
            }
            waiting.push_back(WaitingQuestion {
                question,
                asker,
                network,
            });
        }
        Ok(())
    }

    /// Waits for a question, the end of a check, or its deadline.
    fn wait(&self, signals: &Signals, checks: &[Check], waiting: usize) {
        let now = Instant::now();
        let limit = checks
            .iter()
            .filter(|check| !check.is_late)
            .map(|check| check.deadline.saturating_duration_since(now))
            .min()
            .map(|time| time + Duration::from_millis(1));
        let limit = limit.map(|time| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
        // Further questions stay in the socket.
        if waiting < WAITING_MAX {
            polled.push(PollFd::new(&self.inbox, PollFlags::IN));
        }
        let _ = poll(&mut polled, limit.as_ref());
    }
}

/// Which process this is after a question.
enum Begun {
    /// The helper.
    Helper,
    /// The process that has checked the password: it ends.
    Checker,
}

/// A question that no process has begun to check.
struct WaitingQuestion {
    question: PamQuestion,
    asker: PamAsker,
    network: Vec<u8>,
}

/// The first question whose check may begin now.
fn take_next(waiting: &mut VecDeque<WaitingQuestion>, checks: &[Check]) -> Option<WaitingQuestion> {
    if checks.len() >= CHECKS_MAX {
        return None;
    }
    let place = waiting.iter().position(|question| {
        let same = checks
            .iter()
            .filter(|check| check.network == question.network);
        question.network.is_empty() || same.count() < CHECKS_OF_NETWORK_MAX
    })?;
    waiting.remove(place)
}

/// What stands for a client where its checks are counted: the address, or the /64 of an IPv6 address, because a
/// client there can use every address of it. Empty for a client on a unix socket.
fn network_of(host: &[u8]) -> Vec<u8> {
    let address = std::str::from_utf8(host).ok();
    match address.and_then(|address| address.parse::<IpAddr>().ok()) {
        Some(IpAddr::V6(address)) if address.to_ipv4_mapped().is_none() => {
            address.octets()[..8].to_vec()
        }
        _ => host.to_vec(),
    }
}

/// Has a process of its own check a password. If the request does not wait any more, nothing is checked.
fn begin(checks: &mut Vec<Check>, next: WaitingQuestion, pam: &Pam) -> Begun {
    let WaitingQuestion {
        question,
        asker,
        network,
    } = next;
    if !asker.waits() {
        return Begun::Helper;
    }
    let helper = std::process::id();
    match fork() {
        Ok(Forked::Child) => {
            check(helper, &question, &asker, pam);
            return Begun::Checker;
        }
        Ok(Forked::Parent(id)) => checks.push(Check {
            pid: Pid::from_raw(id).expect("fork answers the id of a process"),
            asker,
            network,
            deadline: Instant::now() + CHECK_TIME,
            is_late: false,
        }),
        Err(error) => asker.tell(&PamReply::Unavailable(error.to_string())),
    }
    Begun::Helper
}

/// In the process that checks one password.
fn check(helper: u32, question: &PamQuestion, asker: &PamAsker, pam: &Pam) {
    let _ = nix::sys::prctl::set_pdeathsig(Death::SIGKILL);
    if std::os::unix::process::parent_id() != helper {
        return;
    }
    // Modules start programs, which inherit both.
    sys::child::default_signals();
    let _ = SigSet::empty().thread_set_mask();
    let text = |bytes: &[u8]| PamLogin::text(bytes);
    let (Some(service), Some(user), Some(password), Some(host)) = (
        text(&question.service),
        text(&question.user),
        text(&question.password),
        text(&question.host),
    ) else {
        return;
    };
    let host = (!host.is_empty()).then_some(&*host);
    let answer = pam.ask(&PamLogin {
        service: &service,
        user: &user,
        password: &password,
        host,
    });
    asker.tell(&match answer {
        Ok(PamAnswer::Right) => PamReply::Right,
        Ok(PamAnswer::Refused(why)) => PamReply::Refused(why),
        Ok(PamAnswer::Unavailable(why)) => PamReply::Unavailable(why),
        Err(error) => PamReply::Unavailable(error.to_string()),
    });
}

/// Forgets the checks that have ended, and kills those that take too long.
fn tend(checks: &mut Vec<Check>, now: Instant) {
    for check in checks.iter_mut() {
        if !check.is_late && check.deadline <= now {
            let text = format!(
                "a PAM module has not answered in {} s",
                CHECK_TIME.as_secs()
            );
            check.asker.tell(&PamReply::Unavailable(text));
            check.kill();
            check.is_late = true;
        }
    }
    checks.retain(|check| {
        let waited = waitpid(Some(check.pid), WaitOptions::NOHANG).ok().flatten();
        if let Some((_, status)) = waited
            && !check.is_late
            && status.exit_status() != Some(0)
        {
            let text = format!("the process that asks PAM {}", super::describe(status));
            check.asker.tell(&PamReply::Unavailable(text));
        }
        waited.is_none()
    });
}

impl Check {
    /// Kills the process, and the programs that its modules have started: pam_exec gives its program a
    /// session of its own, so that no process group has both.
    fn kill(&self) {
        // Stopped, it starts no other one meanwhile. Both exist until they are waited for by their parents,
        // which are stopped or this process.
        let _ = kill_process(self.pid, Signal::STOP);
        kill_children(self.pid, DEPTH_MAX);
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// Kills all that `parent`, which is stopped, has started.
fn kill_children(parent: Pid, depth: u32) {
    let id = parent.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    for child in children.unwrap_or_default().split_whitespace() {
        let child = child.parse().ok().and_then(Pid::from_raw);
        let Some(child) = child.filter(|_| depth > 0) else {
            continue;
        };
        let _ = kill_process(child, Signal::STOP);
        kill_children(child, depth - 1);
        let _ = kill_process(child, Signal::KILL);
    }
}

/// The pause before another helper is started, after one has ended.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Passwords that are checked at the same time. The others wait in the socket.
const CHECKS_MAX: usize = 16;
/// Passwords of one network among them: a client that floods leaves room for others.
const CHECKS_OF_NETWORK_MAX: usize = 8;
/// Questions that wait for a check. Further ones stay in the socket.
const WAITING_MAX: usize = 256;
/// Questions of one network among them. Further ones are answered 503.
const WAITING_OF_NETWORK_MAX: usize = 32;
/// The kernel gives such a process a ninth of the time of a worker that shares its processor.
const NICE: i32 = 10;
/// Programs that start programs, of one check.
const DEPTH_MAX: u32 = 8;
/// Exit code of a helper that cannot go on.
const FAILED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_counts_by_its_network() {
        let same = network_of(b"2001:db8:1:2::1");
        assert_eq!(network_of(b"2001:db8:1:2:ffff::7"), same);
        assert_ne!(network_of(b"2001:db8:1:3::1"), same);
        assert_eq!(network_of(b"192.0.2.7"), b"192.0.2.7");
        assert_eq!(network_of(b"::ffff:192.0.2.7"), b"::ffff:192.0.2.7");
        assert!(network_of(b"").is_empty());
    }
}
