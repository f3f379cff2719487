//! Bounds of everything in the clients that could grow, with the reason for each value.

/// Connections of one worker to one Redis, unless the options say otherwise. A command may wait in Redis
/// (BLPOP, a slow script) and occupies its connection meanwhile. Redis accepts 10,000 connections from all
/// clients together.
pub(crate) const REDIS_CONNECTIONS_MAX: usize = 1024;

/// Connections of one worker to one memcached, where no command waits. memcached accepts 1024 connections
/// from all clients together.
pub(crate) const MEMCACHED_CONNECTIONS_MAX: usize = 64;

/// Connections of one worker to one LDAP server for searches, and as many more for checking passwords. Each
/// is used for about a millisecond at a time.
pub(crate) const LDAP_CONNECTIONS_MAX: usize = 16;

/// Operations of one worker that may wait for a connection to one server. Further ones fail at once.
pub(crate) const WAITING_MAX: usize = 4096;

/// Idle connections of one worker to one server that are kept.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 64;

/// Milliseconds after which an idle connection is closed.
pub(crate) const IDLE_MS_MAX: u64 = 60_000;

/// Pools of one worker, each for a server and a login. The number is limited because scripts can choose
/// addresses. A pool that no client uses is dropped for a new one.
pub(crate) const POOLS_MAX: usize = 256;

/// Servers that have counters of their own. Further ones are counted together as `others`.
pub(crate) const COUNTED_SERVERS_MAX: usize = 256;

/// Milliseconds to connect and log in, unless the options say otherwise.
pub(crate) const CONNECT_TIMEOUT_MS: u64 = 1000;

/// Milliseconds for a whole operation, including the wait for a connection, unless the options say otherwise.
pub(crate) const TIMEOUT_MS: u64 = 3000;

/// Milliseconds until a server that could not be connected to is tried again, after the first failure.
/// Doubled with each further failure.
pub(crate) const DOWN_PAUSE_MS_MIN: u64 = 250;

/// See [`DOWN_PAUSE_MS_MIN`].
pub(crate) const DOWN_PAUSE_MS_MAX: u64 = 5000;

/// Operations in a row that time out before the server counts as down.
pub(crate) const TIMEOUTS_IN_A_ROW_MAX: u32 = 4;

/// Bytes that are read at once. All clients of a worker share the buffer.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Reads on one connection before other connections have their turn.
pub(crate) const READS_AT_ONCE_MAX: u32 = 16;

/// Bytes of one string in a reply.
pub(crate) const BULK_BYTES_MAX: usize = 16 << 20;

/// Bytes of all replies to one operation, as they are stored.
pub(crate) const REPLY_BYTES_MAX: usize = 32 << 20;

/// Depth of nested arrays in a reply.
pub(crate) const REPLY_DEPTH_MAX: usize = 32;

/// Bytes of the commands of one operation.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Commands in one pipeline.
pub(crate) const PIPELINE_COMMANDS_MAX: usize = 10_000;

/// Keys in one request for several values.
pub(crate) const KEYS_AT_ONCE_MAX: usize = 10_000;

/// Bytes of a value for memcached, unless the options say otherwise. It is the default limit of its servers,
/// which includes their overhead.
pub(crate) const MEMCACHED_VALUE_BYTES_MAX: usize = 1 << 20;

/// Servers among which one memcached client distributes its keys.
pub(crate) const MEMCACHED_SERVERS_MAX: usize = 128;

/// Bytes of the text of a server's error that are put into messages.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 512;
