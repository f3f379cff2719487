//! Subrequests of a client's request.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

/// Where an exchange stands among the subrequests of a client's request.
#[derive(Default)]
pub(crate) struct Lineage {
    /// 0 for a client's request.
    pub(crate) depth: u8,
    /// Subrequests that were made for the client's request, theirs included. Made with the first.
    pub(crate) made: OnceCell<Rc<Cell<u32>>>,
}
