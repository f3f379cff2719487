//! Ports for servers. They are below the range from which the kernel takes client ports. Each test program claims
//! blocks of them, and uses each port once, so that neither tests nor test programs collide.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

/// A free TCP port.
///
/// # Panics
/// Other test programs have all ports.
pub fn free_port() -> u16 {
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match claimed.last_mut() {
            Some(block) if block.used < BLOCK_PORTS => {
                let port = block.first + block.used;
                block.used += 1;
                if is_free(port) {
                    return port;
                }
            }
            _ => {
                let block = Block::claim().expect("other test programs have all ports");
                claimed.push(block);
            }
        }
    }
}

/// Whether no program has bound the port. The socket does not listen: a child that another thread has just forked may
/// hold it for a while, and would take connections that are for the server.
fn is_free(port: u16) -> bool {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.expect("a socket");
    set_socket_reuseaddr(&socket, true).expect("an option of every socket");
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Ports that belong to this test program for as long as it runs.
struct Block {
    first: u16,
    /// How many of them were tried.
    used: u16,
    /// A name that one program at a time can have.
    _claim: UnixListener,
}

impl Block {
    /// A block that no program has.
    fn claim() -> Option<Block> {
        (0..BLOCKS).find_map(|number| {
            let name = format!("petrel-test-ports-{number}");
            let name = SocketAddr::from_abstract_name(name).expect("a short name");
            Some(Block {
                first: FIRST + number * BLOCK_PORTS,
                used: 0,
                _claim: UnixListener::bind_addr(&name).ok()?,
            })
        })
    }
}

static CLAIMED: Mutex<Vec<Block>> = Mutex::new(Vec::new());
const FIRST: u16 = 21_000;
const BLOCKS: u16 = 40;
const BLOCK_PORTS: u16 = 250;
