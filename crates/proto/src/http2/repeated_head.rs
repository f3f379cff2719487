//! The last request head of a connection, for clients that send the same one again.
//!
//! Clients that poll, health checks, gRPC and load balancers send the same header block many times. As long
//! as the dynamic table does not change, the same block means the same head. Copying that costs a tenth of
//! decoding the block and checking its fields. A head is kept when its block comes for the second time in a
//! row, so that clients whose requests differ pay for a comparison and a copy of the block only.

use super::frame::AfterFrame;
use super::priority::Priority;
use crate::request_head::{HeadOptions, RequestHead};

/// The last header block that began a request and, if it has come twice, its head.
#[derive(Debug, Default)]
pub(super) struct RepeatedHead {
    block: Vec<u8>,
    basis: Option<HeadBasis>,
    head: Option<Box<(RequestHead, Option<Priority>)>>,
}

/// What a head depends on beside its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadBasis {
    /// [`HpackDecoder::table_changes`](crate::hpack::HpackDecoder::table_changes) before the block.
    pub(super) table_changes: u64,
    pub(super) after: AfterFrame,
    pub(super) options: HeadOptions,
}

impl RepeatedHead {
    /// Writes the head of `block` into `head`, if it is kept, and returns the priority that the block asks
    /// for.
    #[inline]
    pub(super) fn copy(
        &self,
        block: &[u8],
        basis: &HeadBasis,
        head: &mut RequestHead,
    ) -> Option<Option<Priority>> {
        let (known, priority) = self.head.as_deref()?;
        if !self.is(block, basis) {
            return None;
        }
        head.copy_from(known);
        Some(*priority)
    }

    /// Notes that `block` is valid, adds nothing to the table, and has this head and priority.
    pub(super) fn note(
        &mut self,
        block: &[u8],
        basis: HeadBasis,
        head: &RequestHead,
        priority: Option<Priority>,
    ) {
        if block.len() > BLOCK_BYTES_MAX || head.head_length() > HEAD_BYTES_MAX {
            return;
        }
        if self.is(block, &basis) {
            self.head = Some(Box::new((head.clone(), priority)));
            return;
        }
        self.head = None;
        self.block.clear();
        self.block.extend_from_slice(block);
        self.basis = Some(basis);
    }

    /// Whether a head is kept, for tests.
    #[cfg(test)]
    pub(super) fn is_kept(&self) -> bool {
        self.head.is_some()
    }

    /// Whether this is the last block.
    #[inline]
    fn is(&self, block: &[u8], basis: &HeadBasis) -> bool {
        self.block == block && self.basis.as_ref() == Some(basis)
    }
}

/// Bytes of a block that is kept. Blocks that repeat are short, because their fields are in the table.
const BLOCK_BYTES_MAX: usize = 256;

/// Bytes of a head that is kept. A short block can stand for a very long head.
const HEAD_BYTES_MAX: usize = 2048;
