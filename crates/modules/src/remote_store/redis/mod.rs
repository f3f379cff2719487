//! The client of a Redis.

mod commands;
mod replies;

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::proto::resp::{Value, write_command};

use super::address::StoreAddress;
use super::error::{OperationStage, StoreError};
use super::limits;
use super::pool::{Login, LoginReplies, Operation, Pool};

use commands::Effect;
use replies::RedisReplies;

/// Where a Redis is, and how it is used.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisOptions {
    /// Its address.
    pub(crate) address: StoreAddress,
    /// The number of the database; a new connection uses 0.
    pub(crate) database: u32,
    /// The user name (since Redis 6); empty: the default user.
    pub(crate) user: Vec<u8>,
    /// The password; empty: none is sent.
    pub(crate) password: Vec<u8>,
    /// Milliseconds to connect and log in.
    pub(crate) connect_timeout_ms: u64,
    /// Milliseconds for a whole operation, including the wait for a connection.
    pub(crate) timeout_ms: u64,
    /// The largest number of connections of one worker.
    pub(crate) connections_max: usize,
}

/// A Redis client. It is cheap to create, because the connections belong to the worker.
pub(crate) struct Redis {
    pool: Rc<Pool>,
    timeout: Duration,
}

/// Commands that are sent together; their replies come in the same order. Commands of other clients may run
/// in between, unless `MULTI` and `EXEC` make them a transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipeline {
    wire: Vec<u8>,
    commands: usize,
    has_unrepeatable: bool,
    may_block: bool,
    changes_connection: bool,
    is_in_transaction: bool,
}

impl RedisOptions {
    /// Redis's default port.
    pub(crate) const PORT_DEFAULT: u16 = 6379;

    /// Options for the Redis at `address`; all others have their defaults.
    pub(crate) fn new(address: StoreAddress) -> RedisOptions {
        RedisOptions {
            address,
            database: 0,
            user: Vec::new(),
            password: Vec::new(),
            connect_timeout_ms: limits::CONNECT_TIMEOUT_MS,
            timeout_ms: limits::TIMEOUT_MS,
            connections_max: limits::REDIS_CONNECTIONS_MAX,
        }
    }

    /// What is sent first on a new connection.
    pub(super) fn login(&self) -> Option<Login> {
        let mut commands = Vec::new();
        let has_credentials = !(self.user.is_empty() && self.password.is_empty());
        match (has_credentials, self.user.is_empty()) {
            (false, _) => {}
            (true, true) => write_command(&mut commands, &[&b"AUTH"[..], &self.password]),
            (true, false) => {
                write_command(&mut commands, &[&b"AUTH"[..], &self.user, &self.password]);
            }
        }
        if self.database != 0 {
            let database = self.database.to_string();
            write_command(&mut commands, &[&b"SELECT"[..], database.as_bytes()]);
        }
        let replies: fn() -> Box<dyn LoginReplies> = match (has_credentials, self.database != 0) {
            (false, false) => return None,
            (true, true) => || Box::new(RedisReplies::to(2)),
            _ => || Box::new(RedisReplies::to(1)),
        };
        Some(Login { commands, replies })
    }
}

/// Does not show the password.
impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("address", &self.address)
            .field("database", &self.database)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("timeout_ms", &self.timeout_ms)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}

impl Redis {
    pub(super) fn new(pool: Rc<Pool>, timeout_ms: u64) -> Redis {
        Redis {
            pool,
            timeout: Duration::from_millis(timeout_ms),
        }
    }

    /// Sends a command, which begins with its name, and returns the reply.
    ///
    /// # Errors
    /// There is no reply, or it is an error ([`super::error::Kind::Said`]); or the command cannot be used on
    /// a shared connection, such as SUBSCRIBE.
    pub(crate) async fn command<A: AsRef<[u8]>>(
        &self,
        arguments: &[A],
    ) -> Result<Value, StoreError> {
        self.perform(arguments, Repeat::AsKnown).await
    }

    /// As [`Redis::command`], for a command that may be repeated although the table does not say so.
    pub(super) async fn command_repeatable<A: AsRef<[u8]>>(
        &self,
        arguments: &[A],
    ) -> Result<Value, StoreError> {
        self.perform(arguments, Repeat::Always).await
    }

    /// The error for a request that cannot be sent.
    pub(super) fn refused(&self, text: &str) -> StoreError {
        StoreError::refused(self.pool.peer(), text)
    }

    async fn perform<A: AsRef<[u8]>>(
        &self,
        arguments: &[A],
        repeat: Repeat,
    ) -> Result<Value, StoreError> {
        let mut single = Pipeline::default();
        let added = single.add(arguments);
        added.map_err(|text| self.refused(text))?;
        single.has_unrepeatable &= repeat == Repeat::AsKnown;
        match self.pipeline(&single).await?.pop() {
            Some(Value::Error(text)) => Err(StoreError::said(
                self.pool.peer(),
                OperationStage::Read,
                &text,
            )),
            Some(value) => Ok(value),
            None => Err(self.refused("there is no command")),
        }
    }

    /// Sends all commands together and returns the replies in the same order. A command that fails has a
    /// [`Value::Error`] as its reply. Without commands nothing is sent.
    ///
    /// # Errors
    /// Not all replies have arrived. It is not known which commands the server has carried out.
    pub(crate) async fn pipeline(&self, pipeline: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if pipeline.commands == 0 {
            return Ok(Vec::new());
        }
        let operation = Operation {
            commands: &pipeline.wire,
            is_repeatable: !pipeline.has_unrepeatable,
            may_block: pipeline.may_block,
            changes_connection: pipeline.changes_connection || pipeline.is_in_transaction,
            timeout: self.timeout,
        };
        let replies = || RedisReplies::to(pipeline.commands);
        let replies = self.pool.perform(operation, replies).await?;
        Ok(replies.into_values())
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }
}

impl Pipeline {
    /// An empty pipeline.
    pub(crate) fn new() -> Pipeline {
        Pipeline::default()
    }

    /// Adds a command, which begins with its name.
    ///
    /// # Errors
    /// It is empty, or cannot be used on a shared connection, or there are too many commands: a sentence
    /// without its full stop. The command is not added.
    pub(crate) fn add<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<(), &'static str> {
        let name_bytes = arguments.first().map_or(0, |name| name.as_ref().len());
        if name_bytes == 0 {
            return Err("the command has no name");
        }
        let effect = commands::effect_of(arguments);
        if effect == Effect::TakesConnection {
            return Err("the command cannot be used on a shared connection");
        }
        let bytes: usize = arguments.iter().map(|part| part.as_ref().len()).sum();
        if self.commands >= limits::PIPELINE_COMMANDS_MAX
            || self.wire.len().saturating_add(bytes) > limits::REQUEST_BYTES_MAX
        {
            return Err("there are too many commands to send them at once");
        }
        write_command(&mut self.wire, arguments);
        self.commands += 1;
        self.note(effect);
        Ok(())
    }

    fn note(&mut self, effect: Effect) {
        self.has_unrepeatable |= effect != Effect::Repeatable;
        match effect {
            Effect::Blocks => self.may_block = true,
            Effect::ChangesConnection => self.changes_connection = true,
            Effect::BeginsTransaction => self.is_in_transaction = true,
            Effect::EndsTransaction => self.is_in_transaction = false,
            Effect::Ordinary | Effect::Repeatable | Effect::TakesConnection => {}
        }
    }
}

/// Whether a command may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// As the table of commands says.
    AsKnown,
    /// Yes.
    Always,
}
