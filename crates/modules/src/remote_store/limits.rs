//! Everything of the clients that could grow, its limit and why that much.

/// Connections of one worker to one Redis, unless the options say otherwise. A Redis may be made to wait
/// (BLPOP, a slow script), and who waits holds a connection; it takes 10,000 of all clients together.
pub(crate) const REDIS_CONNECTIONS_MAX: usize = 1024;

/// The same for one memcached, where nothing waits and which takes 1024 of all clients together.
pub(crate) const MEMCACHED_CONNECTIONS_MAX: usize = 64;

/// The same for one LDAP server, to search; as many more ask it for passwords. Each is used for a millisecond.
pub(crate) const LDAP_CONNECTIONS_MAX: usize = 16;

/// Requests of one worker that wait for a connection to one server. More are refused at once.
pub(crate) const WAITING_MAX: usize = 4096;

/// Connections of one worker to one server that are kept for later operations.
pub(crate) const IDLE_CONNECTIONS_MAX: usize = 64;

/// Milliseconds after which a connection that was not used is closed.
pub(crate) const IDLE_MS_MAX: u64 = 60_000;

/// Pools that one worker has, each for a server and a login. Addresses may come from a script, so there
/// must be an end: one that no client uses is given up for another.
pub(crate) const POOLS_MAX: usize = 256;

/// Servers whose counters stand by themselves; what is beyond is counted as `others`.
pub(crate) const COUNTED_SERVERS_MAX: usize = 256;

/// Milliseconds to connect and log in, unless the options say otherwise.
pub(crate) const CONNECT_TIMEOUT_MS: u64 = 1000;

/// Milliseconds for a whole operation, the wait for a connection included, unless the options say
/// otherwise.
pub(crate) const TIMEOUT_MS: u64 = 3000;

/// Milliseconds for which a server that could not be connected to is not tried again, the first time.
/// Doubled each time it still cannot.
pub(crate) const DOWN_PAUSE_MS_MIN: u64 = 250;

/// See [`DOWN_PAUSE_MS_MIN`].
pub(crate) const DOWN_PAUSE_MS_MAX: u64 = 5000;

/// Operations in a row that end by time-out before the server is taken for down.
pub(crate) const TIMEOUTS_IN_A_ROW_MAX: u32 = 4;

/// Bytes that are read at once, into a buffer that a worker's clients share.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Reads on one connection before others get their turn.
pub(crate) const READS_AT_ONCE_MAX: u32 = 16;

/// Bytes of one string in a reply.
pub(crate) const BULK_BYTES_MAX: usize = 16 << 20;

/// Bytes of the replies to one operation, as they are kept.
pub(crate) const REPLY_BYTES_MAX: usize = 32 << 20;

/// Arrays within each other in a reply.
pub(crate) const REPLY_DEPTH_MAX: usize = 32;

/// Bytes of one operation's commands.
pub(crate) const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Commands that are sent at once.
pub(crate) const PIPELINE_COMMANDS_MAX: usize = 10_000;

/// Keys that are asked for at once.
pub(crate) const KEYS_AT_ONCE_MAX: usize = 10_000;

/// Bytes of a value for memcached, unless the options say otherwise: what its servers take unless told
/// otherwise, their own overhead included.
pub(crate) const MEMCACHED_VALUE_BYTES_MAX: usize = 1 << 20;

/// Servers that one memcached client spreads its keys over.
pub(crate) const MEMCACHED_SERVERS_MAX: usize = 128;

/// Bytes of a text that a server sends with an error and that gets into messages.
pub(crate) const ERROR_TEXT_BYTES_MAX: usize = 512;
