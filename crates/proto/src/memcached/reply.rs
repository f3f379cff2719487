//! What a memcached answers, whichever protocol it speaks.

/// A reply, or a part of that to [`super::Command::Get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A key that is there. More follow, or [`Reply::End`].
    Value(Item),
    /// These were all that are there.
    End,
    /// Written.
    Stored,
    /// Not written: the condition is not met.
    NotStored,
    /// Not written: somebody else has written it, or, in the binary protocol, it is there.
    Exists,
    /// No such key.
    NotFound,
    /// Removed.
    Deleted,
    /// It has another time to live.
    Touched,
    /// Done.
    Ok,
    /// What a number has become.
    Number(u64),
    /// The name of a release.
    Version(Vec<u8>),
    /// It does not know this command.
    Unsupported,
    /// It says that we are wrong.
    ClientError(Vec<u8>),
    /// It says that it cannot.
    ServerError(Vec<u8>),
}

/// A value with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Under which it was stored.
    pub key: Vec<u8>,
    /// That it was stored with.
    pub flags: u32,
    /// Another one whenever somebody has written it. `None` if nobody asked for it.
    pub cas: Option<u64>,
    /// The value.
    pub data: Vec<u8>,
}

/// What became of some input.
#[derive(Debug, PartialEq, Eq)]
pub struct MemcachedProgress {
    /// Bytes of the input that were used. All of them, unless a reply is complete.
    pub consumed: usize,
    /// A complete reply; what follows in the input belongs to the next one.
    pub reply: Option<Reply>,
}
