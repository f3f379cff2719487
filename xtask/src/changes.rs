//! Which files have changed since the work on them began, by git.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{Workspace, output_of};

/// The files that differ from where the work began, by their paths from the root of the work tree: committed, not
/// committed, and not known to git. `None`: the history does not go back to where the work began.
///
/// # Errors
/// When git is missing, or this is no work tree of git.
pub fn changed_files(workspace: &Workspace) -> Result<Option<Vec<String>>, String> {
    let git = Git(workspace.root.clone());
    let Some(base) = git.beginning()? else {
        return Ok(None);
    };
    let mut files = git.names(&["diff", "--name-only", "--no-renames", "-z", &base])?;
    files.extend(git.names(&["ls-files", "--others", "--exclude-standard", "-z"])?);
    Ok(Some(files))
}

/// Git in the work tree.
struct Git(PathBuf);

impl Git {
    /// The commit from which the work began: where it left the main branch of the origin. CI clones the main branch
    /// itself with the work on it; then it is the last commit that is [`WORK_SECONDS`] older than the newest one.
    fn beginning(&self) -> Result<Option<String>, String> {
        let head = self.line(&["rev-parse", "HEAD"])?;
        // Without an origin there is no such branch.
        if self
            .line(&["rev-parse", "--verify", "--quiet", "origin/main"])
            .is_ok()
            && let Ok(base) = self.line(&["merge-base", "HEAD", "origin/main"])
            && base != head
        {
            return Ok(Some(base));
        }
        let committed = self.line(&["show", "--no-patch", "--format=%ct", "HEAD"])?;
        let committed: u64 = committed
            .parse()
            .map_err(|_| format!("git tells no time but {committed:?}"))?;
        let before = format!("--before={}", committed.saturating_sub(WORK_SECONDS));
        let base = self.line(&["rev-list", "--max-count=1", &before, "HEAD"])?;
        Ok(Some(base).filter(|base| !base.is_empty()))
    }

    /// What a command prints, which is one line.
    fn line(&self, arguments: &[&str]) -> Result<String, String> {
        Ok(self.text(arguments)?.trim().to_owned())
    }

    /// The names that a command prints with a zero behind each.
    fn names(&self, arguments: &[&str]) -> Result<Vec<String>, String> {
        let text = self.text(arguments)?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    fn text(&self, arguments: &[&str]) -> Result<String, String> {
        let output = output_of(Command::new("git").args(arguments).current_dir(&self.0))?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }
}

/// Commits that are made within this time belong to one piece of work.
const WORK_SECONDS: u64 = 3 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with commits at these times, each of which adds a file that is called as its time.
    fn repository(name: &str, times: &[u64]) -> Repository {
        let folder = format!("xtask-changes-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        let repository = Repository(Git(folder));
        let git = &repository.0;
        git.text(&["init", "--quiet"]).expect("git is there");
        for time in times {
            repository.write(&time.to_string());
            git.text(&["add", "."]).expect("it is added");
            let mut commit = Command::new("git");
            commit
                .current_dir(&git.0)
                .args([
                    "-c",
                    "user.name=a",
                    "-c",
                    "user.email=a@b",
                    "commit",
                    "--quiet",
                ])
                .args(["--message", "x"])
                .env("GIT_COMMITTER_DATE", format!("@{time} +0000"));
            output_of(&mut commit).expect("it is committed");
        }
        repository
    }

    /// A repository that is removed in the end.
    struct Repository(Git);

    impl Repository {
        fn write(&self, name: &str) {
            std::fs::write(self.0.0.join(name), name).expect("a file");
        }

        fn changed(&self) -> Option<Vec<String>> {
            let root = self.0.0.clone();
            let target = root.join("target");
            changed_files(&Workspace { root, target }).expect("git answers")
        }
    }

    impl Drop for Repository {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0.0);
        }
    }

    const DAY: u64 = 1_700_000_000;

    #[test]
    fn work_begins_hours_before_the_last_commit() {
        let work = repository("hours", &[DAY, DAY + 100_000, DAY + 101_000, DAY + 102_000]);
        let since = |time: u64| (DAY + time).to_string();
        let committed = vec![since(100_000), since(101_000), since(102_000)];
        assert_eq!(work.changed(), Some(committed));
        work.write("new");
        assert!(
            work.changed()
                .is_some_and(|files| files.contains(&"new".into()))
        );
        let short = repository("short", &[DAY, DAY + 60]);
        assert_eq!(short.changed(), None);
    }

    #[test]
    fn work_begins_where_it_left_the_main_branch() {
        let work = repository("branch", &[DAY, DAY + 100_000, DAY + 101_000]);
        let git = &work.0;
        git.text(&["update-ref", "refs/remotes/origin/main", "HEAD~1"])
            .expect("there is one");
        assert_eq!(work.changed(), Some(vec![(DAY + 101_000).to_string()]));
    }
}
