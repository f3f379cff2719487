//! Tells the processor which memory will be read soon.

/// Asks the processor to bring `bytes` into its cache. This is a hint: on a processor without such an
/// instruction it does nothing.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    // A group has a constant number of cache lines, so the compiler unrolls the loop over them.
    let (groups, rest) = bytes.as_chunks::<GROUP_BYTES>();
    groups.iter().for_each(|group| prefetch_lines(group));
    prefetch_lines(rest);
}

#[inline]
fn prefetch_lines(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch cannot fault and changes nothing, whatever the address; this one is the address
        // of a byte of `bytes`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// The size of a cache line.
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
