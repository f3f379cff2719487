//! The client of an LDAP server: searches, and binds that say whether a password is right.
//!
//! A bind changes what a connection may do. So there are two pools: connections of the first are bound as the
//! service and search. Connections of the second are bound as users and do nothing else.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::ldap::{
    LdapDecoder, LdapError, LdapReply, LdapResult, MESSAGE_ID_MAX, Search, write_bind,
    write_search, write_start_tls,
};
use petrel_engine::tls::{TlsName, TlsServer};

use super::address::StoreAddress;
use super::error::{Kind, OperationStage, StoreError, readable};
use super::link::Replies;
use super::pool::{Login, LoginReplies, Operation, Pool};

/// The address of a server, and how to talk to it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LdapOptions {
    pub(crate) address: StoreAddress,
    pub(crate) tls: Option<LdapTls>,
    /// The name that searches are done as; empty: anonymously.
    pub(crate) bind_name: Vec<u8>,
    pub(crate) bind_password: Vec<u8>,
    /// The time limit of each operation, including the wait for a connection.
    pub(crate) timeout: Duration,
}

/// How TLS begins, and which name the server has to prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LdapTls {
    pub(crate) start: TlsStart,
    pub(crate) name: TlsName,
    /// The file with the authorities that count; `None`: those of the system.
    pub(crate) ca_file: Option<PathBuf>,
}

/// When TLS begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsStart {
    /// As soon as the connection is there (ldaps).
    AtOnce,
    /// After the server has agreed (StartTLS).
    Agreed,
}

/// A server. The worker has the connections, so a second `Ldap` for the same server uses the same ones.
pub(crate) struct Ldap {
    searching: Rc<Pool>,
    binding: Rc<Pool>,
    timeout: Duration,
    ids: Rc<MessageIds>,
}

/// The numbers of a worker's requests. None is used again on a connection, so that a reply to an earlier
/// request, which a broken proxy may send late or twice, never counts for another one.
pub(super) struct MessageIds(Cell<u32>);

impl Default for MessageIds {
    fn default() -> MessageIds {
        MessageIds(Cell::new(LOGIN_ID))
    }
}

impl MessageIds {
    fn next(&self) -> u32 {
        let last = self.0.get();
        let next = if last < MESSAGE_ID_MAX {
            last + 1
        } else {
            LOGIN_ID + 1
        };
        self.0.set(next);
        next
    }
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundNames {
    /// Distinguished names, [`NAMES_MAX`] at most.
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) result: LdapResult,
}

impl LdapOptions {
    /// The requests that begin a connection for searches.
    pub(super) fn login(&self) -> Login {
        let mut commands = Vec::new();
        write_bind(
            LOGIN_ID,
            &self.bind_name,
            &self.bind_password,
            &mut commands,
        );
        Login {
            commands,
            replies: || Box::new(LdapReplies::to(Request::Bind, LOGIN_ID)),
        }
    }
}

/// The request that comes before TLS.
pub(super) fn start_tls() -> Login {
    let mut commands = Vec::new();
    write_start_tls(START_TLS_ID, &mut commands);
    Login {
        commands,
        replies: || Box::new(LdapReplies::to(Request::StartTls, START_TLS_ID)),
    }
}

/// How the connections of a pool are protected.
pub(super) struct PoolTls {
    pub(super) start: TlsStart,
    pub(super) server: TlsServer,
}

impl Ldap {
    pub(super) fn new(
        searching: Rc<Pool>,
        binding: Rc<Pool>,
        timeout: Duration,
        ids: Rc<MessageIds>,
    ) -> Ldap {
        Ldap {
            searching,
            binding,
            timeout,
            ids,
        }
    }

    /// The server's name for messages.
    pub(crate) fn peer(&self) -> &str {
        self.searching.peer()
    }

    /// Searches as the service.
    ///
    /// # Errors
    /// There is no complete reply.
    pub(crate) async fn find(&self, search: &Search<'_>) -> Result<FoundNames, StoreError> {
        let (id, mut commands) = (self.ids.next(), Vec::new());
        write_search(id, search, &mut commands);
        let replies = || LdapReplies::to(Request::Search, id);
        let replies = self.searching.perform(self.operation(&commands), replies);
        let LdapReplies { names, result, .. } = replies.await?;
        let result = result.ok_or_else(|| self.without_result())?;
        Ok(FoundNames { names, result })
    }

    /// Binds as `name`. The result says whether the password is right.
    ///
    /// # Errors
    /// There is no complete reply.
    pub(crate) async fn bind(
        &self,
        name: &[u8],
        password: &[u8],
    ) -> Result<LdapResult, StoreError> {
        let (id, mut commands) = (self.ids.next(), Vec::new());
        write_bind(id, name, password, &mut commands);
        let replies = || LdapReplies::to(Request::Bind, id);
        let operation = Operation {
            // A server counts wrong passwords, so a bind is never sent twice, and it may pause before it
            // refuses one.
            is_repeatable: false,
            may_block: true,
            ..self.operation(&commands)
        };
        let replies = self.binding.perform(operation, replies);
        let result = replies.await?.result;
        result.ok_or_else(|| self.without_result())
    }

    fn without_result(&self) -> StoreError {
        let text = "its reply has no result";
        StoreError::new(
            self.searching.peer(),
            OperationStage::Read,
            Kind::Protocol,
            text,
        )
    }

    fn operation<'c>(&self, commands: &'c [u8]) -> Operation<'c> {
        Operation {
            commands,
            is_repeatable: true,
            may_block: false,
            changes_connection: false,
            timeout: self.timeout,
        }
    }
}

/// The kind of request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Bind,
    StartTls,
    Search,
}

/// The replies to one request.
struct LdapReplies {
    request: Request,
    decoder: LdapDecoder,
    names: Vec<Vec<u8>>,
    messages: usize,
    result: Option<LdapResult>,
    /// The result as text for the log; used if it is no success.
    refusal: Vec<u8>,
}

impl LdapReplies {
    fn to(request: Request, id: u32) -> LdapReplies {
        LdapReplies {
            request,
            decoder: LdapDecoder::for_request(id),
            names: Vec::new(),
            messages: 0,
            result: None,
            refusal: Vec::new(),
        }
    }

    fn take(&mut self, reply: LdapReply) -> Result<(), &'static str> {
        self.messages += 1;
        if self.messages > MESSAGES_MAX {
            return Err("it finds more than it was asked for");
        }
        match (self.request, reply) {
            (Request::Bind, LdapReply::Bind(result))
            | (Request::StartTls, LdapReply::Extended(result))
            | (Request::Search, LdapReply::Done(result)) => {
                self.refusal = shown_result(&result).into_bytes();
                self.result = Some(result);
            }
            (Request::Search, LdapReply::Entry(name)) => {
                if self.names.len() < NAMES_MAX {
                    self.names.push(name);
                }
            }
            (Request::Search, LdapReply::Reference) => {}
            (_, LdapReply::Disconnection(_)) => return Err("it ends the connection"),
            _ => return Err(LdapError::Unasked.text()),
        }
        Ok(())
    }
}

impl Replies for LdapReplies {
    fn feed(&mut self, input: &[u8]) -> Result<usize, &'static str> {
        let mut used = 0;
        while !self.is_complete() && used < input.len() {
            let rest = input.get(used..).unwrap_or_default();
            let fed = self.decoder.feed(rest).map_err(LdapError::text)?;
            used += fed.consumed;
            if let Some(reply) = fed.reply {
                self.take(reply)?;
            }
        }
        Ok(used)
    }

    fn is_complete(&self) -> bool {
        self.result.is_some()
    }
}

impl LoginReplies for LdapReplies {
    fn refusal(&self) -> Option<&[u8]> {
        let result = self.result.as_ref()?;
        (result.code != 0).then_some(&self.refusal)
    }
}

/// A result for one line of a log: `49 (invalid credentials): what the server says`.
pub(crate) fn shown_result(result: &LdapResult) -> String {
    let known = RESULTS.iter().find(|(code, _)| *code == result.code);
    let name = known.map_or("another result", |(_, name)| name);
    let text = readable(&result.text);
    match text.is_empty() {
        true => format!("{} ({name})", result.code),
        false => format!("{} ({name}): {text}", result.code),
    }
}

/// Makes an error of a result that says nothing about the user.
pub(crate) fn said(ldap: &Ldap, result: &LdapResult) -> StoreError {
    StoreError::said(
        ldap.searching.peer(),
        OperationStage::Read,
        shown_result(result).as_bytes(),
    )
}

/// RFC 4511 section 4.1.9.
const RESULTS: &[(u32, &str)] = &[
    (0, "success"),
    (1, "operations error"),
    (2, "protocol error"),
    (3, "time limit exceeded"),
    (4, "size limit exceeded"),
    (7, "method not supported"),
    (8, "stronger authentication required"),
    (10, "referral"),
    (11, "administrative limit exceeded"),
    (13, "confidentiality required"),
    (19, "constraint violation"),
    (32, "no such object"),
    (34, "invalid name"),
    (48, "inappropriate authentication"),
    (49, "invalid credentials"),
    (50, "insufficient access"),
    (51, "busy"),
    (52, "unavailable"),
    (53, "unwilling to perform"),
    (80, "other error"),
];

/// The numbers of the requests that begin a connection.
const START_TLS_ID: u32 = 1;
const LOGIN_ID: u32 = 2;

/// How many names of a search are kept: a second one tells that the filter is not exact.
const NAMES_MAX: usize = 2;

/// How many messages may answer one request. Servers add referrals to the entries.
const MESSAGES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_requests_grow_and_begin_again_behind_those_of_logins() {
        let ids = MessageIds::default();
        assert_eq!([ids.next(), ids.next()], [LOGIN_ID + 1, LOGIN_ID + 2]);
        ids.0.set(MESSAGE_ID_MAX - 1);
        assert_eq!([ids.next(), ids.next()], [MESSAGE_ID_MAX, LOGIN_ID + 1]);
    }
}
