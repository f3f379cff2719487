//! What Redis commands do to a shared connection.
//!
//! The table has the commands that are special. All others, also those of modules and of future releases, are
//! sent unchanged, have one reply, and are not repeated.

/// The effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// No special effect.
    Ordinary,
    /// The server may carry it out twice without harm.
    Repeatable,
    /// The server may wait before it replies.
    Blocks,
    /// It changes the state of the connection.
    ChangesConnection,
    /// The replies to the following commands depend on EXEC.
    BeginsTransaction,
    /// The connection is back in its normal state.
    EndsTransaction,
    /// It has no reply, or more than one, so that later replies could not be assigned to their commands.
    TakesConnection,
}

use Effect::{
    BeginsTransaction, Blocks, ChangesConnection, EndsTransaction, Ordinary, Repeatable,
    TakesConnection,
};

/// The effect of the command `arguments`, which begins with its name.
pub(super) fn effect_of<A: AsRef<[u8]>>(arguments: &[A]) -> Effect {
    let argument = |index: usize| arguments.get(index).map_or(&b""[..], AsRef::as_ref);
    let name = argument(0).to_ascii_uppercase();
    match &name[..] {
        b"SET" if !has_condition(arguments) => Repeatable,
        b"CLIENT" if argument(1).eq_ignore_ascii_case(b"REPLY") => TakesConnection,
        name => {
            let known = SPECIAL.iter().find(|(_, names)| names.contains(&name));
            known.map_or(Ordinary, |(effect, _)| *effect)
        }
    }
}

/// Whether a SET depends on the present value, or returns it.
fn has_condition<A: AsRef<[u8]>>(arguments: &[A]) -> bool {
    let options = arguments.get(3..).unwrap_or_default();
    options.iter().any(|option| {
        let option = option.as_ref();
        let conditions: &[&[u8]] = &[b"NX", b"XX", b"GET"];
        let is = |name: &&[u8]| option.eq_ignore_ascii_case(name);
        conditions.iter().any(is)
            || option
                .get(..2)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"IF"))
    })
}

static SPECIAL: &[(Effect, &[&[u8]])] = &[
    (
        Repeatable,
        &[
            b"BITCOUNT",
            b"BITPOS",
            b"DBSIZE",
            b"DUMP",
            b"ECHO",
            b"EVAL_RO",
            b"EVALSHA_RO",
            b"EXISTS",
            b"EXPIRETIME",
            b"FCALL_RO",
            b"GEODIST",
            b"GEOHASH",
            b"GEOPOS",
            b"GEOSEARCH",
            b"GET",
            b"GETBIT",
            b"GETRANGE",
            b"HEXISTS",
            b"HGET",
            b"HGETALL",
            b"HKEYS",
            b"HLEN",
            b"HMGET",
            b"HRANDFIELD",
            b"HSCAN",
            b"HSTRLEN",
            b"HVALS",
            b"KEYS",
            b"LINDEX",
            b"LLEN",
            b"LPOS",
            b"LRANGE",
            b"MGET",
            b"MSET",
            b"PEXPIRETIME",
            b"PING",
            b"PSETEX",
            b"PTTL",
            b"RANDOMKEY",
            b"SCAN",
            b"SCARD",
            b"SDIFF",
            b"SETEX",
            b"SINTER",
            b"SISMEMBER",
            b"SMEMBERS",
            b"SMISMEMBER",
            b"SRANDMEMBER",
            b"SSCAN",
            b"STRLEN",
            b"SUNION",
            b"TIME",
            b"TTL",
            b"TYPE",
            b"XLEN",
            b"XRANGE",
            b"XREVRANGE",
            b"ZCARD",
            b"ZCOUNT",
            b"ZLEXCOUNT",
            b"ZMSCORE",
            b"ZRANGE",
            b"ZRANGEBYLEX",
            b"ZRANGEBYSCORE",
            b"ZRANK",
            b"ZREVRANGE",
            b"ZREVRANGEBYSCORE",
            b"ZREVRANK",
            b"ZSCAN",
            b"ZSCORE",
        ],
    ),
    (
        Blocks,
        &[
            b"BLMOVE",
            b"BLMPOP",
            b"BLPOP",
            b"BRPOP",
            b"BRPOPLPUSH",
            b"BZMPOP",
            b"BZPOPMAX",
            b"BZPOPMIN",
            b"WAIT",
            b"WAITAOF",
            b"XREAD",
            b"XREADGROUP",
        ],
    ),
    (
        ChangesConnection,
        &[
            b"ASKING",
            b"AUTH",
            b"CLIENT",
            b"HELLO",
            b"QUIT",
            b"READONLY",
            b"READWRITE",
            b"RESET",
            b"SELECT",
        ],
    ),
    (BeginsTransaction, &[b"MULTI", b"WATCH"]),
    (EndsTransaction, &[b"DISCARD", b"EXEC", b"UNWATCH"]),
    (
        TakesConnection,
        &[
            b"MONITOR",
            b"PSUBSCRIBE",
            b"PSYNC",
            b"PUNSUBSCRIBE",
            b"REPLCONF",
            b"SSUBSCRIBE",
            b"SUBSCRIBE",
            b"SUNSUBSCRIBE",
            b"SYNC",
            b"UNSUBSCRIBE",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(command: &str) -> Effect {
        let arguments: Vec<&str> = command.split(' ').collect();
        effect_of(&arguments)
    }

    #[test]
    fn commands_are_known_by_their_name_in_any_case() {
        for (command, expected) in [
            ("get a", Repeatable),
            ("GET a", Repeatable),
            ("INCR a", Ordinary),
            ("DEL a", Ordinary),
            ("JSON.SET a", Ordinary),
            ("", Ordinary),
            ("set a b", Repeatable),
            ("set a b EX 10", Repeatable),
            ("set NX XX px 10", Repeatable),
            ("set a b PX 10 nx", Ordinary),
            ("set a b XX", Ordinary),
            ("set a b GET", Ordinary),
            ("set a b IFEQ c", Ordinary),
            ("BLPOP a 0", Blocks),
            ("Select 3", ChangesConnection),
            ("CLIENT ID", ChangesConnection),
            ("client reply off", TakesConnection),
            ("subscribe a", TakesConnection),
            ("MULTI", BeginsTransaction),
            ("exec", EndsTransaction),
        ] {
            assert_eq!(effect(command), expected, "{command:?}");
        }
    }

    #[test]
    fn each_name_stands_once_and_in_capitals() {
        let names: Vec<&[u8]> = SPECIAL
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        for name in &names {
            assert_eq!(name.to_ascii_uppercase(), *name);
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1);
        }
    }
}
