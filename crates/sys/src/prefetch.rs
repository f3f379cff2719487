//! Telling the processor which memory will be read soon.

/// Asks for `bytes` to be brought into the cache. A hint: nothing is read, and nothing happens where
/// the processor offers no such hint.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    // The compiler unrolls the loop over the lines of a group, whose number it knows.
    let (groups, rest) = bytes.as_chunks::<GROUP_BYTES>();
    groups.iter().for_each(|group| prefetch_lines(group));
    prefetch_lines(rest);
}

#[inline]
fn prefetch_lines(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch cannot fault and changes nothing, whatever the address; this one is
        // that of a byte of `bytes`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// What the processor fetches at a time.
const LINE_BYTES: usize = 64;

const GROUP_BYTES: usize = 8 * LINE_BYTES;

#[cfg(test)]
mod tests {
    #[test]
    fn any_slice_may_be_prefetched() {
        super::prefetch(b"");
        super::prefetch(&[0; 10_000]);
    }
}
