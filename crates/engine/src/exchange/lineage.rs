//! Which client's request a subrequest belongs to.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use petrel_proto::method::Method;

/// The place of an exchange in the tree of subrequests below a client's request.
#[derive(Default)]
pub(crate) struct Lineage {
    /// 0 for a client's request.
    pub(crate) depth: u8,
    /// The method of the client's request. `None`: this is the client's request.
    pub(crate) client_method: Option<Method>,
    /// How many subrequests were made for the client's request, with the ones that they made. Created with
    /// the first.
    pub(crate) made: OnceCell<Rc<Cell<u32>>>,
}
