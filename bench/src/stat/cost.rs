//! Example 11-3 of the article: what one stat() costs while other processes want the same core.

use crate::stage::apart;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The example's three lines.
pub fn text(calls: u32) -> Result<String, String> {
    let told = |errno: rustix::io::Errno| errno.to_string();
    let (_, core) = apart(sched_getaffinity(None).map_err(told)?);
    // Children inherit this.
    sched_setaffinity(None, &core).map_err(told)?;
    let mut out = format!(
        "\nOne stat() of a file that does not exist (example 11-3), {calls} calls on one core; the article's\n\
         machine took 4.2, 8.8 and 20.9 µs.\n"
    );
    for (processes, words) in [
        (0, "idle"),
        (1, "beside a busy process"),
        (4, "beside four"),
    ] {
        let busy = (0..processes).map(|_| Busy::start());
        let busy: Vec<_> = busy.collect::<Result<_, _>>()?;
        let us = microseconds(calls);
        drop(busy);
        let _infallible = writeln!(out, "  {words:<24}{us:>6.2} µs");
    }
    Ok(out)
}

/// The mean time of a call.
fn microseconds(calls: u32) -> f64 {
    let begin = Instant::now();
    for _ in 0..calls {
        let _absent = rustix::fs::stat(ABSENT);
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
}

/// A process that computes until it is dropped, or has used a minute of CPU time.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self, String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -t 60; while :; do :; done"])
            .stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("sh: {error}"))?;
        Ok(Self(child))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// As in the article.
pub const CALLS: u32 = 1_000_000;
const ABSENT: &str = "/foo-that-does-not-exist";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::process::Stat;

    #[test]
    fn a_busy_process_computes_and_ends_when_it_is_dropped() {
        let busy = Busy::start().unwrap();
        let pid = busy.0.id() as i32;
        let begin = Instant::now();
        while Stat::of(pid).unwrap().user_ticks < 2 {
            assert!(begin.elapsed().as_secs() < 60, "it does not compute");
        }
        drop(busy);
        assert_eq!(Stat::of(pid), None);
    }
}
