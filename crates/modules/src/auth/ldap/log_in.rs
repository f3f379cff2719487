//! One log-in: the search for the user, the bind with its password, the search for its groups.

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::ldap::{LdapResult, Scope, Search, escape_in_filter, read_filter};

use super::super::rules::Rule;
use super::options::{LdapUsers, Wanted};
use crate::remote_store::ldap::{said, shown_result};
use crate::remote_store::{Ldap, OperationStage, StoreError};

/// Tells for an entry whether its log-ins are locked out.
pub(super) type IsLocked = dyn Fn(&[u8]) -> bool;

/// A log-in that a server is asked about.
pub(super) struct LdapQuestion {
    pub(super) users: Rc<LdapUsers>,
    pub(super) servers: Vec<Rc<Ldap>>,
    pub(super) rule: Rc<Rule>,
    pub(super) user: Vec<u8>,
    pub(super) password: Vec<u8>,
    /// Whether log-ins that are counted as an entry are locked out.
    pub(super) is_locked: Box<IsLocked>,
}

/// The server's answer about a log-in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct LdapVerdict {
    /// The password is the user's.
    pub(super) is_right: bool,
    /// The entry that the search has found, in the form that failures are counted under.
    pub(super) entry: Option<Vec<u8>>,
    /// The entry is locked out. The server has not seen the password.
    pub(super) is_locked: bool,
    /// The group of the rule that has the user, if the rule needs one.
    pub(super) group: Option<Box<[u8]>>,
    /// A line for the log.
    pub(super) note: Option<String>,
}

impl LdapVerdict {
    fn refusal(note: String) -> LdapVerdict {
        LdapVerdict {
            note: Some(note),
            ..LdapVerdict::default()
        }
    }
}

/// Why a server has not answered.
enum NoVerdict {
    /// The server has not got the password. The next server may be asked.
    HereNot(String),
    /// The server may have got the password. No other server gets it: each one counts wrong passwords, so one
    /// wrong password could count several times.
    Anywhere(String),
}

impl From<StoreError> for NoVerdict {
    fn from(error: StoreError) -> NoVerdict {
        NoVerdict::HereNot(error.to_string())
    }
}

impl LdapQuestion {
    /// Asks one server after the other until one gets the password.
    ///
    /// # Errors
    /// No server has answered; the reasons in one line.
    pub(super) async fn verdict(self) -> Result<LdapVerdict, String> {
        let mut failures = Vec::new();
        for server in &self.servers {
            let time = self.users.timeout * OPERATIONS_AT_MOST;
            match tokio::time::timeout(time, self.ask(server)).await {
                Ok(Ok(verdict)) => return Ok(verdict),
                Ok(Err(NoVerdict::HereNot(why))) => failures.push(why),
                Ok(Err(NoVerdict::Anywhere(why))) => {
                    failures.push(why);
                    break;
                }
                Err(_) => {
                    // Search and bind have timeouts of their own, so the group was being looked up.
                    failures.push(format!("{}: no answer in time", server.peer()));
                    break;
                }
            }
        }
        Err(failures.join("; "))
    }

    async fn ask(&self, server: &Ldap) -> Result<LdapVerdict, NoVerdict> {
        let (name, entry) = match self.users.lookup(&self.user) {
            Ok(Wanted::Name(name)) => (name, None),
            Ok(Wanted::Search(filter)) => {
                let search = self.search(&self.users.base, &filter);
                let found = server.find(&search).await?;
                if !matches!(found.result.code, SUCCESS | SIZE_LIMIT_EXCEEDED) {
                    return Err(said(server, &found.result).into());
                }
                if found.names.len() > 1 || found.result.code == SIZE_LIMIT_EXCEEDED {
                    // The user could be any of them. One of them may have chosen the value that the filter
                    // compares.
                    let peer = server.peer();
                    return Ok(LdapVerdict::refusal(format!(
                        "{peer}: auth.backend.ldap.filter finds more than one entry for a user, which is refused"
                    )));
                }
                // A bind with an empty name is anonymous, so that every password would be right.
                let mut names = found.names.into_iter().filter(|name| !name.is_empty());
                let Some(name) = names.next() else {
                    return Ok(LdapVerdict::default());
                };
                let entry = counted_as(&name);
                (name, Some(entry))
            }
            // No filter and no name can be made of this user, so there is no such user.
            Err(_) => return Ok(LdapVerdict::default()),
        };
        // A server counts wrong passwords, too: it would lock the account for all if Petrel passed them on.
        if entry
            .as_deref()
            .is_some_and(|entry| (self.is_locked)(entry))
        {
            return Ok(LdapVerdict {
                entry,
                is_locked: true,
                ..LdapVerdict::default()
            });
        }
        let bound = server.bind(&name, &self.password).await;
        let bound = bound.map_err(|error| match error.stage {
            OperationStage::Write | OperationStage::Read => NoVerdict::Anywhere(error.to_string()),
            _ => NoVerdict::HereNot(error.to_string()),
        })?;
        if bound.code != SUCCESS {
            let behind_bind = |error: StoreError| NoVerdict::Anywhere(error.to_string());
            let verdict = refused(server, &bound).map_err(behind_bind)?;
            return Ok(LdapVerdict { entry, ..verdict });
        }
        let who = &self.rule.who;
        let (mut group, mut note) = (None, None);
        if !who.includes(&self.user, |_| false) && !who.groups.is_empty() {
            (group, note) = self
                .group(server, &name)
                .await
                .map_err(|error| NoVerdict::Anywhere(error.to_string()))?;
        }
        Ok(LdapVerdict {
            is_right: true,
            entry,
            is_locked: false,
            group,
            note,
        })
    }

    /// Finds the first group of the rule that has an entry with the user as a member.
    async fn group(
        &self,
        server: &Ldap,
        name: &[u8],
    ) -> Result<(Option<Box<[u8]>>, Option<String>), StoreError> {
        let attribute = &*self.users.group_member;
        let names_entries = ["member", "uniqueMember"]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(attribute));
        let member = match names_entries {
            true => name,
            false => &self.user,
        };
        let text = [
            b"(",
            attribute.as_bytes(),
            b"=",
            &*escape_in_filter(member),
            b")",
        ]
        .concat();
        let Ok(filter) = read_filter(&text) else {
            let note = "auth.backend.ldap.groupmember is no attribute";
            return Ok((None, Some(note.to_owned())));
        };
        let mut note = None;
        for group in &self.rule.who.groups {
            let found = server.find(&self.search(group, &filter)).await?;
            match found.result.code {
                SUCCESS | SIZE_LIMIT_EXCEEDED if !found.names.is_empty() => {
                    return Ok((Some(group.clone()), note));
                }
                SUCCESS => {}
                _ => {
                    let group = String::from_utf8_lossy(group);
                    let error = said(server, &found.result);
                    note = Some(format!("the group {group:?} cannot be looked up: {error}"));
                }
            }
        }
        Ok((None, note))
    }

    fn search<'a>(
        &self,
        base: &'a [u8],
        filter: &'a petrel_engine::proto::ldap::EncodedFilter,
    ) -> Search<'a> {
        Search {
            base,
            scope: Scope::Subtree,
            filter,
            entries_max: ENTRIES_MAX,
            seconds_max: self.users.timeout.max(Duration::from_secs(1)).as_secs() as u32,
        }
    }
}

/// What failures of an entry are counted under. No client can name a user so: the NUL makes it another text
/// than any name.
fn counted_as(name: &[u8]) -> Vec<u8> {
    [b"\0", name].concat()
}

/// What a refused bind means: the password is wrong, or the server has a problem.
fn refused(server: &Ldap, bound: &LdapResult) -> Result<LdapVerdict, StoreError> {
    match bound.code {
        INVALID_CREDENTIALS => Ok(LdapVerdict::default()),
        code if OF_THE_USER.contains(&code) => {
            let note = format!("{}: bind: {}", server.peer(), shown_result(bound));
            Ok(LdapVerdict::refusal(note))
        }
        _ => Err(said(server, bound)),
    }
}

// RFC 4511 appendix A.
const SUCCESS: u32 = 0;
const SIZE_LIMIT_EXCEEDED: u32 = 4;
const INVALID_CREDENTIALS: u32 = 49;

/// Constraint violation (a locked account), no such object, invalid name, inappropriate authentication (no
/// password), insufficient access, unwilling to perform (an expired account): the server does not let this
/// user bind.
const OF_THE_USER: [u32; 6] = [19, 32, 34, 48, 50, 53];

/// Two are enough: a second entry tells that the filter is not exact.
const ENTRIES_MAX: u32 = 2;

/// A log-in may take the time of so many operations, also with many groups.
const OPERATIONS_AT_MOST: u32 = 3;
