//! The addresses to listen on, with their options.
//!
//! As in lighttpd, every `$SERVER["socket"] ==` block adds an address, whatever blocks are around it, and may
//! set the options of that listener. All blocks for one address make one listener, also if it is the main
//! address.

use petrel_config::{
    BlockId, Condition, Config, Diagnostic, ListenAddress, ListenDefaults, Op, Schema, Span,
    Subject,
};

use super::super::Values;

/// An address to listen on, with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// The address. Its port is never 0.
    pub address: ListenAddress,
    /// Whether this is the address of `server.bind` and `server.port`.
    pub is_default: bool,
    /// `server.listen-backlog`: how many connections may wait in the kernel's queue.
    pub backlog: u32,
    /// `server.socket-perms`: the mode of a unix socket.
    pub socket_perms: Option<u32>,
    /// `server.socket-user`: the owner of a unix socket.
    pub socket_user: Option<String>,
    /// `server.socket-group`: the group of a unix socket.
    pub socket_group: Option<String>,
    /// `server.defer-accept`: TCP_DEFER_ACCEPT.
    pub defer_accept: bool,
    /// IPV6_V6ONLY of an IPv6 listener: `server.set-v6only`, unless `server.v4mapped` is on.
    pub v6only: bool,
    /// `server.use-ipv6`: a host name means its IPv6 address.
    pub use_ipv6: bool,
    /// `server.ip-transparent`: IP_TRANSPARENT.
    pub ip_transparent: bool,
    /// The place in the configuration that asks for this address, for errors of bind(2).
    pub span: Option<Span>,
}

/// The listeners of `config`; `global` are its global values.
pub(super) fn read(
    config: &Config,
    global: &Values<'_>,
) -> Result<Vec<ListenerSettings>, Diagnostic> {
    let port = match global.unsigned("server.port", DEFAULT_PORT) {
        0 => DEFAULT_PORT,
        port => port,
    };
    let port = u16::try_from(port)
        .map_err(|_| global.error("server.port", "a port is a number from 1 to 65535"))?;
    let mut found = vec![AddressBlocks {
        address: main_address(global, port)?,
        blocks: vec![BlockId::GLOBAL],
        span: global
            .span("server.bind")
            .or_else(|| global.span("server.port")),
    }];
    for block in &config.blocks {
        let Some(condition) = block.condition.as_ref().filter(|condition| adds(condition)) else {
            continue;
        };
        let blocks = with_parents(config, block.id);
        let values = Values::merge(config, &Schema::default(), blocks.iter().copied());
        let address = parse(&condition.pattern, defaults(&values, port))
            .map_err(|message| Diagnostic::error(message, condition.pattern_span))?;
        match found.iter_mut().find(|known| known.address == address) {
            Some(known) => known.blocks.extend(blocks),
            None => found.push(AddressBlocks {
                address,
                blocks,
                span: Some(condition.pattern_span),
            }),
        }
    }
    let listeners = found.into_iter().enumerate();
    listeners
        .map(|(index, found)| listener(config, found, index == 0))
        .collect()
}

/// An address and all blocks that may set its options.
struct AddressBlocks {
    address: ListenAddress,
    blocks: Vec<BlockId>,
    span: Option<Span>,
}

fn adds(condition: &Condition) -> bool {
    condition.subject == Subject::SocketAddress && condition.op == Op::Eq
}

/// `block` and all blocks around it, in the order of the text.
fn with_parents(config: &Config, block: BlockId) -> Vec<BlockId> {
    let around = |id: &BlockId| config.block(*id).and_then(|block| block.parent);
    let mut blocks: Vec<_> = std::iter::successors(Some(block), around).collect();
    blocks.sort_unstable();
    blocks
}

fn listener(
    config: &Config,
    found: AddressBlocks,
    is_default: bool,
) -> Result<ListenerSettings, Diagnostic> {
    let AddressBlocks {
        address,
        mut blocks,
        span,
    } = found;
    blocks.sort_unstable();
    blocks.dedup();
    let values = Values::merge(config, &Schema::default(), blocks.into_iter());
    let switch = |name: &str, default: bool| values.bool(name).unwrap_or(default);
    Ok(ListenerSettings {
        address,
        is_default,
        backlog: values.unsigned("server.listen-backlog", 1024),
        socket_perms: socket_perms(&values)?,
        socket_user: values.string("server.socket-user").map(str::to_owned),
        socket_group: values.string("server.socket-group").map(str::to_owned),
        defer_accept: switch("server.defer-accept", false),
        v6only: switch("server.set-v6only", true) && !switch("server.v4mapped", false),
        use_ipv6: switch("server.use-ipv6", false),
        ip_transparent: switch("server.ip-transparent", false),
        span,
    })
}

fn defaults(values: &Values<'_>, port: u16) -> ListenDefaults {
    ListenDefaults {
        port,
        ipv6: values.bool("server.use-ipv6").unwrap_or(false),
    }
}

fn main_address(values: &Values<'_>, port: u16) -> Result<ListenAddress, Diagnostic> {
    let text = values.string("server.bind").unwrap_or_default();
    let at = |port: u16| parse(text, defaults(values, port));
    let address = at(port).map_err(|message| values.error("server.bind", message))?;
    // If the address does not depend on the default port, the text has a port of its own.
    let other_port = port % 2 + 1;
    if !matches!(address, ListenAddress::Unix(_)) && at(other_port).as_ref() == Ok(&address) {
        let error = values.error("server.bind", "server.bind takes an address without a port");
        return Err(error.with_hint("set the port by server.port"));
    }
    Ok(address)
}

fn parse(text: &str, defaults: ListenDefaults) -> Result<ListenAddress, String> {
    let address = ListenAddress::parse(text, defaults).map_err(|error| error.message)?;
    let port = match &address {
        ListenAddress::Ip(address) => address.port(),
        ListenAddress::Name { port, .. } => *port,
        ListenAddress::Unix(_) => return Ok(address),
    };
    if port == 0 {
        return Err("the port of a listener is a number from 1 to 65535".to_owned());
    }
    Ok(address)
}

fn socket_perms(values: &Values<'_>) -> Result<Option<u32>, Diagnostic> {
    const NAME: &str = "server.socket-perms";
    let Some(text) = values.string(NAME) else {
        return Ok(None);
    };
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(Some(mode)),
        _ => Err(values
            .error(NAME, format!("{NAME} takes a file mode in octal"))
            .with_hint("for example \"0660\"")),
    }
}

/// The value of `server.port` if it is not set.
const DEFAULT_PORT: u32 = 80;
