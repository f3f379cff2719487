//! Subrequests of a client's request.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use petrel_proto::method::Method;

/// Where an exchange stands among the subrequests of a client's request.
#[derive(Default)]
pub(crate) struct Lineage {
    /// 0 for a client's request.
    pub(crate) depth: u8,
    /// The method of the client's request. `None`: this is the client's request.
    pub(crate) client_method: Option<Method>,
    /// Subrequests that were made for the client's request, theirs included. Made with the first.
    pub(crate) made: OnceCell<Rc<Cell<u32>>>,
}
