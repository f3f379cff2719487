//! Accept-Encoding.

/// A content coding the server may apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Coding {
    /// br
    Brotli,
    /// zstd
    Zstd,
    /// gzip (and x-gzip)
    Gzip,
    /// deflate
    Deflate,
    /// identity: no coding
    Identity,
}

/// Chooses among `offered` (the server's order of preference) what the field likes best;
/// `None` when nothing offered is acceptable. `Identity` counts as offered only when listed.
#[allow(unused_variables)]
pub fn choose_coding(accept_encoding: Option<&[u8]>, offered: &[Coding]) -> Option<Coding> {
    todo!()
}
