//! What all operations have in common: finding the key's server, sending a command, reading its reply.

use std::collections::HashSet;
use std::rc::Rc;

use petrel_engine::proto::memcached::{Command, Item, Key, Reply, Write, binary, text};

use super::keys::SentKey;
use super::replies::{ExpectedReplies, MemcachedReplies};
use super::{Memcached, StoredValue, Wire};
use crate::remote_store::error::{Kind, OperationStage, StoreError};
use crate::remote_store::pool::Operation;

impl Memcached {
    pub(super) async fn get_one(
        &self,
        key: &[u8],
        with_cas: bool,
    ) -> Result<Option<StoredValue>, StoreError> {
        let (server, sent) = self.locate(key)?;
        let items = self.fetch(server, &[sent.key()], with_cas).await?;
        Ok(items.into_iter().next().map(StoredValue::from))
    }

    /// The values of keys that are all on one server, in any order.
    pub(super) async fn fetch(
        &self,
        server: usize,
        keys: &[Key<'_>],
        with_cas: bool,
    ) -> Result<Vec<Item>, StoreError> {
        let replies = self
            .perform(server, &Command::Get { keys, with_cas })
            .await?;
        if let Some(reply) = replies.reply {
            return Err(self.unexpected(server, &reply));
        }
        let asked: HashSet<&[u8]> = keys.iter().map(|key| key.bytes()).collect();
        match replies
            .items
            .iter()
            .all(|item| asked.contains(&item.key[..]))
        {
            true => Ok(replies.items),
            false => {
                let text = "a value for a key that was not requested";
                Err(self.no_answer(server, text))
            }
        }
    }

    pub(super) async fn store(
        &self,
        how: Write,
        key: &[u8],
        data: &[u8],
        flags: u32,
        ttl_s: u64,
    ) -> Result<(usize, Reply), StoreError> {
        let (server, sent) = self.locate(key)?;
        if data.len() > self.value_bytes_max {
            return Err(self.refused(server, "the value is longer than allowed"));
        }
        let command = Command::Store {
            how,
            key: sent.key(),
            flags,
            expiry_s: self.expiry_s(ttl_s),
            data,
        };
        Ok((server, self.one(server, &command).await?))
    }

    /// Sends a command that has a single reply.
    pub(super) async fn one(
        &self,
        server: usize,
        command: &Command<'_>,
    ) -> Result<Reply, StoreError> {
        let replies = self.perform(server, command).await?;
        let reply = replies.reply;
        reply.ok_or_else(|| self.refused(server, "the command has no reply"))
    }

    async fn perform(
        &self,
        server: usize,
        command: &Command<'_>,
    ) -> Result<MemcachedReplies, StoreError> {
        let mut commands = Vec::new();
        let opaque = match self.wire {
            Wire::Text => {
                text::write(&mut commands, command);
                None
            }
            Wire::Binary => {
                let opaque = self.opaque.get().wrapping_add(1);
                self.opaque.set(opaque);
                binary::write(&mut commands, command, opaque);
                Some(opaque)
            }
        };
        let operation = Operation {
            commands: &commands,
            is_repeatable: is_repeatable(command),
            may_block: false,
            changes_connection: false,
            timeout: self.timeout,
        };
        let expected = match command {
            Command::Get { keys, .. } => ExpectedReplies::Values(keys.len()),
            _ => ExpectedReplies::One,
        };
        let pool = self.servers.get(server);
        let pool = pool.expect("the ring knows as many servers as there are pools");
        let replies = || MemcachedReplies::new(expected, opaque);
        pool.perform(operation, replies).await
    }

    /// The server that has `key`, and the key as it is sent to it.
    pub(super) fn locate(&self, key: &[u8]) -> Result<(usize, SentKey), StoreError> {
        let sent = self.sent(key)?;
        Ok((self.ring.server_of(sent.without_namespace()), sent))
    }

    pub(super) fn sent(&self, key: &[u8]) -> Result<SentKey, StoreError> {
        let sent = self.keys.apply(key);
        sent.map_err(|error| self.refused(0, &error.to_string()))
    }

    fn peer_rc(&self, server: usize) -> Rc<str> {
        let pool = self.servers.get(server);
        pool.map_or_else(|| Rc::from("memcached"), |pool| Rc::clone(pool.peer()))
    }

    #[cfg(test)]
    pub(super) fn peer(&self, server: usize) -> &str {
        self.servers
            .get(server)
            .map_or("memcached", |pool| pool.peer())
    }

    pub(super) fn refused(&self, server: usize, text: &str) -> StoreError {
        StoreError::refused(&self.peer_rc(server), text)
    }

    /// The error for a reply that does not belong to the command.
    fn no_answer(&self, server: usize, text: &str) -> StoreError {
        let peer = self.peer_rc(server);
        StoreError::new(&peer, OperationStage::Read, Kind::Protocol, text)
    }

    /// The error for a reply that is none of the expected ones.
    pub(super) fn unexpected(&self, server: usize, reply: &Reply) -> StoreError {
        let text: &[u8] = match reply {
            Reply::ServerError(text) | Reply::ClientError(text) => text,
            Reply::Unsupported => b"it does not know the command",
            Reply::NotStored | Reply::Exists | Reply::NotFound => b"not stored",
            _ => {
                return self.no_answer(server, "a reply to something else");
            }
        };
        StoreError::said(&self.peer_rc(server), OperationStage::Read, text)
    }
}

/// Whether a command has the same effect and the same reply if it is carried out twice.
fn is_repeatable(command: &Command<'_>) -> bool {
    match command {
        Command::Store { how, .. } => *how == Write::Set,
        Command::Get { .. } | Command::Touch { .. } | Command::Version => true,
        Command::FlushAll { delay_s } => *delay_s == 0,
        Command::Delete { .. } | Command::Count { .. } => false,
    }
}
