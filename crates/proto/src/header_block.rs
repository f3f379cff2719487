//! Response header fields in wire form.

/// Header fields as they go out.
#[derive(Clone, Debug, Default)]
pub struct HeaderBlock {
    bytes: Vec<u8>,
}

#[allow(missing_docs, unused_variables)]
impl HeaderBlock {
    pub const fn new() -> HeaderBlock {
        HeaderBlock { bytes: Vec::new() }
    }
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
    pub fn append(&mut self, name: &str, value: &[u8]) {
        todo!()
    }
    pub fn set(&mut self, name: &str, value: &[u8]) {
        todo!()
    }
    /// Removes every field of that name; says whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        todo!()
    }
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        todo!()
    }
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        std::iter::empty()
    }
    pub fn extend_from_wire(&mut self, fields: &[u8]) {
        self.bytes.extend_from_slice(fields);
    }
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}
