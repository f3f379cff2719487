//! Entity tags.

/// Strong comparison.
#[allow(unused_variables)]
pub fn strong_eq(left: &[u8], right: &[u8]) -> bool {
    todo!()
}

/// Weak comparison.
#[allow(unused_variables)]
pub fn weak_eq(left: &[u8], right: &[u8]) -> bool {
    todo!()
}

/// Whether an If-Match list selects a representation with this entity tag.
#[allow(unused_variables)]
pub fn if_match(list: &[u8], etag: Option<&[u8]>) -> bool {
    todo!()
}

/// Whether an If-None-Match list names this entity tag.
#[allow(unused_variables)]
pub fn if_none_match(list: &[u8], etag: Option<&[u8]>) -> bool {
    todo!()
}
