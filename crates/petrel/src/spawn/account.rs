//! The users and groups of `petrel spawn`, for the program and for its socket.

use nix::unistd::{Gid, Group, Uid, User};

use crate::cli;
use crate::user::Identity;

/// The users and groups, looked up.
pub(super) struct Accounts {
    /// The user and groups of the program.
    pub(crate) identity: Identity,
    /// The owner of the socket.
    pub(crate) socket_user: Option<Uid>,
    /// The group of the socket.
    pub(crate) socket_group: Option<Gid>,
}

impl Accounts {
    /// Looks up `-u`, `-g`, `-U` and `-G`, each a name or a number.
    ///
    /// # Errors
    /// A name does not exist, or stands for root; as a sentence.
    pub(super) fn find(options: &cli::Spawn) -> Result<Accounts, String> {
        let user = options.user.as_deref().map(find_user).transpose()?;
        let group = options.group.as_deref().map(find_group).transpose()?;
        let identity = match &user {
            Some(Found::Number(id)) => match group {
                Some(group) => Identity::unnamed(*id, group),
                None => {
                    return Err(format!("there is no user {id}, so it needs a group (-g)"));
                }
            },
            Some(Found::Account(user)) => {
                Identity::new(Some(user), Some(group.map_or_else(|| group_of(user), Ok)?))?
            }
            None => Identity::new(None, group)?,
        };
        let owner = options.socket_user.as_deref().map(find_user).transpose()?;
        let owners = options
            .socket_group
            .as_deref()
            .map(find_group)
            .transpose()?;
        let socket_group = match (owners, &owner) {
            (Some(group), _) => Some(group),
            (None, Some(Found::Account(owner))) => Some(group_of(owner)?),
            (None, _) => identity.group(),
        };
        let socket_user = owner.as_ref().map(Found::id).or(identity.user());
        Ok(Accounts {
            identity,
            socket_user,
            socket_group,
        })
    }

    /// For a caller that is not root: nothing changes.
    pub(super) fn unchanged() -> Accounts {
        Accounts {
            identity: Identity::unchanged(),
            socket_user: None,
            socket_group: None,
        }
    }
}

enum Found {
    Account(User),
    /// A number without a user of that id.
    Number(Uid),
}

impl Found {
    fn id(&self) -> Uid {
        match self {
            Found::Account(user) => user.uid,
            Found::Number(id) => *id,
        }
    }
}

fn find_user(name: &str) -> Result<Found, String> {
    let number = number(name).map(Uid::from_raw);
    let found = match number {
        Some(id) => User::from_uid(id),
        None => User::from_name(name),
    };
    let user = found.map_err(|error| format!("can't find user name {name}: {error}"))?;
    let found = match (user, number) {
        (Some(user), _) => Found::Account(user),
        (None, Some(id)) => Found::Number(id),
        (None, None) => return Err(format!("can't find user name {name}")),
    };
    match found.id().is_root() {
        true => Err("I will not set uid to 0".to_owned()),
        false => Ok(found),
    }
}

fn find_group(name: &str) -> Result<Gid, String> {
    let found = match number(name) {
        Some(id) => Some(Gid::from_raw(id)),
        None => Group::from_name(name)
            .map_err(|error| format!("can't find group name {name}: {error}"))?
            .map(|group| group.gid),
    };
    not_root(found.ok_or_else(|| format!("can't find group name {name}"))?)
}

fn group_of(user: &User) -> Result<Gid, String> {
    not_root(user.gid)
}

fn not_root(group: Gid) -> Result<Gid, String> {
    match group.as_raw() {
        0 => Err("I will not set gid to 0".to_owned()),
        _ => Ok(group),
    }
}

fn number(name: &str) -> Option<u32> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn find(arguments: &[&str]) -> Result<Accounts, String> {
        let arguments = ["spawn-fcgi"].iter().chain(arguments);
        Accounts::find(
            &cli::SpawnFcgi::try_parse_from(arguments)
                .expect("options")
                .spawn,
        )
    }

    #[test]
    fn root_and_strangers_are_refused() {
        for (arguments, message) in [
            (&["-u", "root"][..], "I will not set uid to 0"),
            (&["-u", "0"], "I will not set uid to 0"),
            (&["-U", "root"], "I will not set uid to 0"),
            (&["-g", "root"], "I will not set gid to 0"),
            (&["-G", "0"], "I will not set gid to 0"),
            (&["-u", "no-such-user"], "can't find user name no-such-user"),
            (
                &["-g", "no-such-group"],
                "can't find group name no-such-group",
            ),
            (
                &["-u", "4242424"],
                "there is no user 4242424, so it needs a group (-g)",
            ),
        ] {
            assert_eq!(
                find(arguments).err().as_deref(),
                Some(message),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn the_socket_belongs_to_the_program_unless_told() {
        let ids = |arguments: &[&str]| {
            let found = find(arguments).expect("found");
            let user = found.socket_user.map(Uid::as_raw);
            (user, found.socket_group.map(Gid::as_raw))
        };
        assert_eq!(
            ids(&["-u", "4242424", "-g", "7"]),
            (Some(4_242_424), Some(7))
        );
        assert_eq!(ids(&["-g", "7"]), (None, Some(7)));
        assert_eq!(
            ids(&["-u", "4242424", "-g", "7", "-G", "8"]),
            (Some(4_242_424), Some(8))
        );
        assert_eq!(ids(&["-U", "4242424"]), (Some(4_242_424), None));
    }
}
