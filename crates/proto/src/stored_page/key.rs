//! The key of a stored answer: components, each with a mark and its length in front, so that different requests never
//! have the same key. The first ones are the *base*, which names the page, and an end mark is behind them.

/// Appends a component. The cache chooses the marks.
pub fn component(out: &mut Vec<u8>, mark: u8, value: &[u8]) {
    out.push(mark);
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(value);
}

/// The base of a whole key.
pub fn base(key: &[u8]) -> &[u8] {
    let mut at = 0;
    while let Some(&mark) = key.get(at) {
        if mark == END_OF_BASE {
            return key.get(..=at).unwrap_or(key);
        }
        let length = key
            .get(at + 1..at + 5)
            .and_then(|bytes| bytes.try_into().ok());
        let length = length.map_or(0, u32::from_le_bytes);
        at = at.saturating_add(5).saturating_add(length as usize);
    }
    key
}

/// The mark at the end of the base; it is not a component.
pub const END_OF_BASE: u8 = 0;
