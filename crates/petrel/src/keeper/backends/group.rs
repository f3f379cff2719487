//! Finds the processes that a backend program has started itself: the members of its process group.

use std::fs;

/// Whether the process group of `leader` has other members that have not ended. False if /proc cannot be
/// read.
pub(super) fn has_others(leader: i32) -> bool {
    let Ok(entries) = fs::read_dir("/proc") else {
        return false;
    };
    let ids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id: &i32| *id != leader).any(|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        group_of(&stat) == Some(leader)
    })
}

/// The process group in the text of /proc/PID/stat; `None` if the process has ended. The program's name, in
/// parentheses, may contain any character.
fn group_of(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_read_behind_any_name() {
        assert_eq!(group_of("12 (a b) S) R 1 99 99 0 -1"), Some(99));
        assert_eq!(group_of("12 (sh) Z 1 99 99 0 -1"), None);
        assert_eq!(group_of(""), None);
        assert_eq!(group_of("12 (sh) S 1"), None);
    }

    #[test]
    fn a_process_without_children_is_alone_in_its_group() {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "read x; sleep 100 & echo; wait"]);
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut shell = command.process_group(0).spawn().expect("started");
        let id = shell.id().cast_signed();
        assert!(!has_others(id));
        drop(shell.stdin.take());
        let mut out = std::io::BufReader::new(shell.stdout.take().expect("piped"));
        std::io::BufRead::read_line(&mut out, &mut String::new()).expect("told");
        assert!(has_others(id));
        sys::child::signal_group(id, 9).expect("signalled");
        shell.wait().expect("ended");
    }
}
