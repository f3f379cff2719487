//! Ports for servers. They are below the range from which the kernel takes client ports, and each is used
//! once, so that tests running in parallel do not collide.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A free TCP port.
///
/// # Panics
/// Hundreds of ports in a row are in use.
pub fn free_port() -> u16 {
    for _ in 0..500 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Each test program starts elsewhere in the range.
        let offset = std::process::id().wrapping_mul(97) % u32::from(PORTS);
        let port = FIRST + (offset + u32::from(step)).wrapping_rem(u32::from(PORTS)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port between {FIRST} and {} is free", FIRST + PORTS);
}

static NEXT: AtomicU16 = AtomicU16::new(0);
const FIRST: u16 = 21_000;
const PORTS: u16 = 10_000;
