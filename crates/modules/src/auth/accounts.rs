//! Parses files with users and files with groups.
//!
//! A thread parses the whole file when a request first needs it and after each change. Lines that make no
//! sense are left out and counted for the log, so a user whose line is half written cannot log in.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use petrel_engine::shared::lock;

use super::digest::HashFunction;

/// The users in one file.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Sorted by name; lines with the same name keep the order of the file.
    accounts: Vec<Account>,
    userhashes: Mutex<Vec<Userhashes>>,
}

/// The names of users by their hashes, for one realm.
#[derive(Debug)]
struct Userhashes {
    hash: HashFunction,
    realm: Box<[u8]>,
    names: HashMap<Vec<u8>, Box<[u8]>>,
}

/// One line of a file with users.
#[derive(Debug)]
pub(super) struct Account {
    /// The user's name; `user:realm` in a file for Digest.
    name: Box<[u8]>,
    /// The password or its hash.
    pub(super) stored: Box<[u8]>,
}

/// How many lines were left out, and the number of the first one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LeftOut {
    count: usize,
    first: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftOut { count, first } = self;
        write!(f, "{count} lines are left out, line {first} first")
    }
}

impl Accounts {
    /// Parses lines `user:stored`, or with `parts` 2 `user:realm:stored`. Empty lines and lines with `#` are
    /// comments.
    pub(super) fn parse(content: &[u8], parts: usize) -> (Accounts, Option<LeftOut>) {
        let mut accounts = Vec::new();
        let left_out = for_lines(content, |line| {
            let end = memchr::memchr_iter(b':', line).nth(parts - 1)?;
            let (name, stored) = (line.get(..end)?, line.get(end + 1..)?);
            let is_name = !name.is_empty() && name.first() != Some(&b':');
            is_name.then(|| {
                accounts.push(Account {
                    name: name.into(),
                    stored: stored.into(),
                });
            })
        });
        accounts.sort_by(|one, other| one.name.cmp(&other.name));
        let accounts = Accounts {
            accounts,
            ..Accounts::default()
        };
        (accounts, left_out)
    }

    /// The user whose name and `realm` have this `userhash` (RFC 7616 section 3.4.4). All names are hashed once,
    /// when the first client sends one. `user_of` is the user's part of a name of the file.
    pub(super) fn by_userhash(
        &self,
        hash: HashFunction,
        realm: &[u8],
        userhash: &[u8],
        user_of: impl Fn(&[u8]) -> Option<&[u8]>,
    ) -> Option<Vec<u8>> {
        let mut known = lock(&self.userhashes);
        let place = known
            .iter()
            .position(|known| known.hash == hash && *known.realm == *realm);
        let place = place.unwrap_or_else(|| {
            let users = self.accounts.iter().filter_map(|one| user_of(&one.name));
            let users = users.take(USERHASHES_MAX);
            known.push(Userhashes {
                hash,
                realm: realm.into(),
                names: users
                    .map(|user| (hash.of(&[user, realm]), user.into()))
                    .collect(),
            });
            known.len() - 1
        });
        let names = &known.get(place)?.names;
        names
            .get(&userhash.to_ascii_lowercase())
            .map(|name| name.to_vec())
    }

    /// The stored passwords of `name`, in the order of the file.
    pub(super) fn find(&self, name: &[u8]) -> impl Iterator<Item = &[u8]> {
        let first = self
            .accounts
            .partition_point(|account| *account.name < *name);
        let behind = self.accounts.get(first..).unwrap_or_default().iter();
        behind
            .take_while(move |account| *account.name == *name)
            .map(|account| &*account.stored)
    }

    /// The stored password of some account, always the same one for a number. The password of an unknown user
    /// is compared with it, so that the answer takes as long as for a known user.
    pub(super) fn any(&self, number: u64) -> Option<&[u8]> {
        let count = u64::try_from(self.accounts.len()).ok()?;
        let place = usize::try_from(number.checked_rem(count)?).ok()?;
        Some(&self.accounts.get(place)?.stored)
    }
}

/// How many users of a file may hide their names: 10,000 hashes take a worker about 5 ms.
const USERHASHES_MAX: usize = 10_000;

/// The members of all groups.
#[derive(Debug, Default)]
pub(super) struct Groups(Vec<Membership>);

/// A group and one of its users.
type Membership = (Box<[u8]>, Box<[u8]>);

impl Groups {
    /// Parses lines `group: user user`. A group may have several lines.
    pub(super) fn parse(content: &[u8]) -> (Groups, Option<LeftOut>) {
        let mut members = Vec::new();
        let left_out = for_lines(content, |line| {
            let colon = memchr::memchr(b':', line)?;
            let group = line.get(..colon)?.trim_ascii();
            let users = line.get(colon + 1..)?.split(u8::is_ascii_whitespace);
            let users = users.filter(|user| !user.is_empty());
            members.extend(users.map(|user| (group.into(), user.into())));
            (!group.is_empty()).then_some(())
        });
        members.sort();
        (Groups(members), left_out)
    }

    /// Groups that have `user` as their only member.
    pub(super) fn of(groups: &[Box<[u8]>], user: &[u8]) -> Groups {
        let groups = groups.iter().cloned();
        let mut members: Vec<_> = groups.map(|group| (group, user.into())).collect();
        members.sort();
        Groups(members)
    }

    /// Whether `user` is in `group`.
    pub(super) fn has(&self, group: &[u8], user: &[u8]) -> bool {
        let wanted = (group, user);
        let of = |(group, user): &Membership| (&**group, &**user).cmp(&wanted);
        self.0.binary_search_by(of).is_ok()
    }
}

/// Calls `take` for each line but empty ones and comments. A line for which it answers `None` is left out.
fn for_lines(content: &[u8], mut take: impl FnMut(&[u8]) -> Option<()>) -> Option<LeftOut> {
    let mut left_out: Option<LeftOut> = None;
    for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.first() == Some(&b'#') {
            continue;
        }
        let has_nul = memchr::memchr(0, line).is_some();
        if has_nul || take(line).is_none() {
            let first = number + 1;
            left_out.get_or_insert(LeftOut { count: 0, first }).count += 1;
        }
    }
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(content: &str, parts: usize, name: &str) -> Vec<String> {
        let (accounts, _) = Accounts::parse(content.as_bytes(), parts);
        let found = accounts.find(name.as_bytes());
        found
            .map(|stored| String::from_utf8_lossy(stored).into_owned())
            .collect()
    }

    #[test]
    fn users_are_found_by_the_hash_of_each_realm() {
        let (accounts, _) = Accounts::parse(b"anna:secret\nbob:other\n", 1);
        for realm in [&b"one"[..], b"two", b"one"] {
            for user in [&b"anna"[..], b"bob"] {
                let userhash = HashFunction::Sha256.of(&[user, realm]);
                let find = |hash: &[u8]| {
                    accounts.by_userhash(HashFunction::Sha256, realm, hash, |name| Some(name))
                };
                assert_eq!(find(&userhash).as_deref(), Some(user));
                assert_eq!(find(&userhash.to_ascii_uppercase()).as_deref(), Some(user));
                assert_eq!(find(&HashFunction::Md5.of(&[user, realm])), None);
            }
        }
        assert_eq!(lock(&accounts.userhashes).len(), 2, "one table a realm");
    }

    #[test]
    fn users_are_found_by_their_whole_names() {
        let content = "bob:x:y\r\nanna:pw\n\n#c:x\nempty:\nbob:2\nlast:z";
        assert_eq!(stored(content, 1, "bob"), ["x:y", "2"]);
        assert_eq!(stored(content, 1, "empty"), [""]);
        assert_eq!(stored(content, 1, "last"), ["z"]);
        for name in ["bo", "bobb", "BOB", "", "#c", "c", "zz"] {
            assert!(stored(content, 1, name).is_empty(), "{name}");
        }
        let digests = "anna:R:1\nanna:S:2\nanna:R:3";
        assert_eq!(stored(digests, 2, "anna:R"), ["1", "3"]);
        assert!(stored(digests, 2, "anna").is_empty());
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        let left_out = |content: &[u8], parts| Accounts::parse(content, parts).1;
        assert_eq!(left_out(b"a:b\n# x\n", 1), None);
        let told = left_out(b"a:b\nno colon\n:pw\nb:c\0d\n", 1).expect("three");
        assert_eq!(told.to_string(), "3 lines are left out, line 2 first");
        assert!(left_out(b"anna:only", 2).is_some());
        assert!(left_out(&[0; 1000], 1).is_some());
    }

    #[test]
    fn an_unknown_user_is_compared_with_one_of_the_others() {
        let (accounts, _) = Accounts::parse(b"a:1\nb:2\n", 1);
        assert_eq!(accounts.any(7), accounts.any(7));
        assert_ne!(accounts.any(0), accounts.any(1));
        assert_eq!(Accounts::default().any(7), None);
    }

    #[test]
    fn groups_have_members() {
        let (groups, left_out) =
            Groups::parse(b"staff: anna  bob\nempty:\nstaff:\tcarl\nno group\n");
        assert_eq!(left_out, Some(LeftOut { count: 1, first: 4 }));
        for user in ["anna", "bob", "carl"] {
            assert!(groups.has(b"staff", user.as_bytes()), "{user}");
        }
        assert!(!groups.has(b"staff", b"ann") && !groups.has(b"empty", b"anna"));
        assert!(!groups.has(b"", b"") && !groups.has(b"no group", b""));
    }
}
