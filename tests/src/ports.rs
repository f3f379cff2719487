//! Ports for servers: below the range the kernel takes client ports from, one after the other, so
//! that tests that run beside each other do not meet.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A TCP port on which nobody listens now.
///
/// # Panics
/// When hundreds of ports in a row are taken.
pub fn free_port() -> u16 {
    for _ in 0..500 {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Other test programs start elsewhere in the range.
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
