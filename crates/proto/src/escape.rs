//! Escaping.

/// HTML text and attribute values.
#[allow(unused_variables)]
pub fn html(out: &mut Vec<u8>, text: &[u8]) {
    todo!()
}
/// The inside of a JSON string.
#[allow(unused_variables)]
pub fn json(out: &mut Vec<u8>, text: &[u8]) {
    todo!()
}
/// A URL path.
#[allow(unused_variables)]
pub fn percent_encode_path(out: &mut Vec<u8>, path: &[u8]) {
    todo!()
}
/// A log field, as lighttpd writes it (`\xHH`).
#[allow(unused_variables)]
pub fn log(out: &mut Vec<u8>, text: &[u8]) {
    todo!()
}
