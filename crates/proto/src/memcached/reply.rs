//! The replies of memcached, the same for both protocols.

/// A reply, or a part of the reply to [`super::Command::Get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A key that exists. More follow, or [`Reply::End`].
    Value(Item),
    /// There are no more values.
    End,
    /// The value was written.
    Stored,
    /// The value was not written, because the condition is not met.
    NotStored,
    /// The value was not written: another client has changed it or, in the binary protocol, the key exists.
    Exists,
    /// The key does not exist.
    NotFound,
    /// The key was removed.
    Deleted,
    /// The key has its new time to live.
    Touched,
    /// The command was carried out.
    Ok,
    /// The new value of a number.
    Number(u64),
    /// The version of the server.
    Version(Vec<u8>),
    /// The server does not know this command.
    Unsupported,
    /// The server says that the request is wrong.
    ClientError(Vec<u8>),
    /// The server could not carry out the command.
    ServerError(Vec<u8>),
}

/// A value with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Vec<u8>,
    /// The number that was stored with the value.
    pub flags: u32,
    /// A number that changes with every write. `None` if the command did not ask for it.
    pub cas: Option<u64>,
    /// The value.
    pub data: Vec<u8>,
}

/// The result of feeding some input.
#[derive(Debug, PartialEq, Eq)]
pub struct MemcachedProgress {
    /// How many bytes of the input were used: all of them, unless a reply is complete.
    pub consumed: usize,
    /// A complete reply. The rest of the input belongs to the next one.
    pub reply: Option<Reply>,
}
