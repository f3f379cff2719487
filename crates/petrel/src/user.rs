//! The user and groups of a process. They are looked up while user names can be resolved; the process
//! switches to them before it starts its first thread, or before it becomes another program.

use std::ffi::CString;
use std::io::{self, Read, Write};

use engine::log::FileOwner;
use engine::settings::ProcessSettings;
use nix::sys::wait::waitpid;
use nix::unistd::{
    Gid, Pid, ResGid, ResUid, Uid, User, getegid, geteuid, getgrouplist, getgroups, getresgid,
    getresuid, setgid, setgroups, setresgid, setresuid, setuid,
};
use sys::process::{Forked, fork};

/// The user and groups that `server.username` and `server.groupname` name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    user: Option<Uid>,
    group: Option<Gid>,
    /// The user's supplementary groups. They are looked up before a chroot: otherwise a user who can write to
    /// etc/group inside it could choose them.
    supplementary: Vec<Gid>,
}

impl Identity {
    /// Looks the names up. For a process that is not root the result is to change nothing.
    ///
    /// # Errors
    /// A name does not exist, or stands for root; as a sentence.
    pub(crate) fn find(process: &ProcessSettings) -> Result<Identity, String> {
        let (user, group) = (process.username.as_deref(), process.groupname.as_deref());
        Identity::named(
            user.map(|name| ("server.username", name)),
            group.map(|name| ("server.groupname", name)),
        )
    }

    /// Looks up a user and a group, each given with the setting that names it. Without a group the user's
    /// primary one is taken. For a process that is not root the result is to change nothing.
    ///
    /// # Errors
    /// A name does not exist, or stands for root; as a sentence.
    pub(crate) fn named(
        user: Option<(&str, &str)>,
        group: Option<(&str, &str)>,
    ) -> Result<Identity, String> {
        if !geteuid().is_root() {
            return Ok(Identity::unchanged());
        }
        let user = user
            .map(|(setting, name)| find_user(setting, name))
            .transpose()?;
        let group = match (group, &user) {
            (Some((setting, name)), _) => Some(find_group(setting, name)?),
            (None, Some(user)) => Some(not_root_group(&user.name, user.gid)?),
            (None, None) => None,
        };
        Identity::new(user.as_ref(), group)
    }

    /// A user with all its groups, and a group that replaces its primary one.
    ///
    /// # Errors
    /// The user's groups cannot be looked up; as a sentence.
    pub(crate) fn new(user: Option<&User>, group: Option<Gid>) -> Result<Identity, String> {
        let supplementary = match (user, group) {
            (Some(user), Some(group)) => groups_of(&user.name, group)?,
            _ => Vec::new(),
        };
        Ok(Identity {
            user: user.map(|user| user.uid),
            group,
            supplementary,
        })
    }

    /// The name of the user that the server process runs as, or its number if it has none.
    pub(crate) fn user_name(&self) -> String {
        let id = self.user.unwrap_or_else(geteuid);
        match User::from_uid(id) {
            Ok(Some(user)) => user.name,
            _ => id.to_string(),
        }
    }

    /// A user id without a user, and a group.
    pub(crate) fn unnamed(user: Uid, group: Gid) -> Identity {
        Identity {
            user: Some(user),
            group: Some(group),
            supplementary: Vec::new(),
        }
    }

    /// Keep the user and groups of this process.
    pub(crate) fn unchanged() -> Identity {
        Identity {
            user: None,
            group: None,
            supplementary: Vec::new(),
        }
    }

    /// The user to switch to; `None` if it does not change.
    pub(crate) fn user(&self) -> Option<Uid> {
        self.user
    }

    /// The group to switch to; `None` if it does not change.
    pub(crate) fn group(&self) -> Option<Gid> {
        self.group
    }

    /// The owner of log files that are created for this user.
    pub(crate) fn file_owner(&self) -> FileOwner {
        FileOwner {
            user: self.user.map(Uid::as_raw),
            group: self.group.map(Gid::as_raw),
        }
    }

    /// Switches to this identity for good. Looks up no names, since the process may be in a chroot. The
    /// process must have only one thread; threads that are started later inherit the new identity.
    ///
    /// # Errors
    /// Those of the kernel, or the old identity could be regained. The process must not continue then.
    pub(crate) fn assume(&self) -> io::Result<()> {
        // The groups come first: after setuid the process may not change them any more.
        if let Some(group) = self.group {
            setgroups(&self.supplementary)?;
            setgid(group)?;
            setresgid(group, group, group)?;
        }
        if let Some(user) = self.user {
            setuid(user)?;
            setresuid(user, user, user)?;
        }
        self.verify()
    }

    /// What `ask` finds out in a child process that has this identity.
    ///
    /// # Errors
    /// There can be no child.
    pub(crate) fn ask(&self, ask: impl FnOnce() -> String) -> io::Result<String> {
        let (mut told, mut tells) = io::pipe()?;
        match fork()? {
            Forked::Child => {
                let done = self
                    .assume()
                    .and_then(|()| tells.write_all(ask().as_bytes()));
                std::process::exit(done.is_err().into())
            }
            Forked::Parent(child) => {
                drop(tells);
                let mut text = String::new();
                told.read_to_string(&mut text)?;
                waitpid(Pid::from_raw(child), None).map_err(io::Error::from)?;
                Ok(text)
            }
        }
    }

    /// Checks that the process cannot regain its old identity.
    fn verify(&self) -> io::Result<()> {
        if let Some(group) = self.group {
            let ResGid {
                real,
                effective,
                saved,
            } = getresgid()?;
            let is_gone = [real, effective, saved].iter().all(|is| *is == group);
            assert_dropped(is_gone && getegid() == group, "the group")?;
        }
        if let Some(user) = self.user {
            let ResUid {
                real,
                effective,
                saved,
            } = getresuid()?;
            assert_dropped(
                [real, effective, saved].iter().all(|is| *is == user),
                "the user",
            )?;
            assert_dropped(setuid(Uid::from_raw(0)).is_err(), "root")?;
            assert_dropped(setgid(Gid::from_raw(0)).is_err(), "the group of root")?;
            let groups = getgroups()?;
            assert_dropped(
                !groups.contains(&Gid::from_raw(0)),
                "a membership in root's group",
            )?;
        }
        Ok(())
    }
}

/// The warning about the server process's user: that it stays root, or that `server.username` cannot be
/// obeyed.
pub(crate) fn warning(process: &ProcessSettings) -> Option<&'static str> {
    match (geteuid().is_root(), &process.username) {
        (true, None) => Some(
            "the server process runs as root, because server.username is not set: an error in it, or in a script or \
             module, gives away the whole machine. Set server.username (and server.groupname) to a user without \
             privileges, such as \"www-data\", or start the server as such a user",
        ),
        (false, Some(_)) => Some("server.username has no effect: only root can change it"),
        _ => None,
    }
}

fn assert_dropped(is_dropped: bool, what: &str) -> io::Result<()> {
    match is_dropped {
        true => Ok(()),
        false => Err(io::Error::other(format!("{what} was not given up"))),
    }
}

fn find_user(setting: &str, name: &str) -> Result<User, String> {
    let found =
        User::from_name(name).map_err(|error| format!("looking up user {name}: {error}"))?;
    let user = found.ok_or_else(|| format!("{setting}: there is no user \"{name}\""))?;
    match user.uid.is_root() {
        true => Err(format!(
            "{setting}: root is not accepted; to run as root, leave the setting out"
        )),
        false => Ok(user),
    }
}

fn groups_of(user: &str, group: Gid) -> Result<Vec<Gid>, String> {
    let name = CString::new(user).map_err(|_| "a user name with a NUL".to_owned())?;
    getgrouplist(&name, group).map_err(|error| format!("looking up the groups of {user}: {error}"))
}

fn find_group(setting: &str, name: &str) -> Result<Gid, String> {
    let found = nix::unistd::Group::from_name(name)
        .map_err(|error| format!("looking up group {name}: {error}"))?;
    let group = found.ok_or_else(|| format!("{setting}: there is no group \"{name}\""))?;
    not_root_group(name, group.gid)
}

fn not_root_group(name: &str, group: Gid) -> Result<Gid, String> {
    match group.as_raw() {
        0 => Err(format!("{name}: the server does not run with root's group")),
        _ => Ok(group),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_strangers_are_refused() {
        assert!(
            find_user("server.username", "root")
                .expect_err("root")
                .contains("root is not accepted")
        );
        assert!(
            find_user("server.username", "no-such-user")
                .expect_err("nobody")
                .contains("no user")
        );
        assert!(
            find_group("server.groupname", "no-such-group")
                .expect_err("nobody")
                .contains("no group")
        );
        assert!(
            find_group("server.groupname", "root")
                .expect_err("root")
                .contains("root's group")
        );
    }
}
