//! Buckets of times. A bound is one nanosecond less than a power of two of them, so that finding the bucket of
//! a time is counting its binary digits and one look into a table.

use crate::ledger::Nanos;

/// The upper bounds of the buckets for whole requests: 8 us to 69 s, each twice the one before.
pub const LATENCY_BOUNDS: [Nanos; 24] = bounds(13, 1);

/// The upper bounds of the buckets for stages: 16 us to 4.3 s, each four times the one before. There are many
/// more of these histograms, so they are coarser.
pub const STAGE_BOUNDS: [Nanos; 10] = bounds(14, 2);

/// Buckets for whole requests: one more than there are bounds, for times above the last.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// Buckets for stages.
pub const STAGE_BUCKETS: usize = STAGE_BOUNDS.len() + 1;

/// The bucket of the time of a whole request.
#[inline]
pub(super) fn latency_bucket(nanos: Nanos) -> usize {
    OF_LATENCY[bits(nanos)] as usize
}

/// The bucket of the time of a stage.
#[inline]
pub(super) fn stage_bucket(nanos: Nanos) -> usize {
    OF_STAGE[bits(nanos)] as usize
}

/// How many binary digits `nanos` has, minus one.
#[inline]
fn bits(nanos: Nanos) -> usize {
    (nanos | 1).ilog2() as usize
}

const OF_LATENCY: [u8; 64] = buckets(13, 1, LATENCY_BUCKETS);
const OF_STAGE: [u8; 64] = buckets(14, 2, STAGE_BUCKETS);

const fn bounds<const COUNT: usize>(first: u32, step: u32) -> [Nanos; COUNT] {
    let mut all = [0; COUNT];
    let mut bucket = 0;
    while bucket < COUNT {
        all[bucket] = (1 << (first + step * bucket as u32)) - 1;
        bucket += 1;
    }
    all
}

/// The bucket of each number of binary digits.
const fn buckets(first: usize, step: usize, count: usize) -> [u8; 64] {
    let mut all = [0; 64];
    let mut bits = 0;
    while bits < 64 {
        let above = (bits + step).saturating_sub(first) / step;
        all[bits] = if above < count { above } else { count - 1 } as u8;
        bits += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bucket by comparing with every bound.
    fn by_bounds(bounds: &[Nanos], nanos: Nanos) -> usize {
        bounds.iter().filter(|bound| nanos > **bound).count()
    }

    #[test]
    fn a_time_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() {
        let powers = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power - 1, power, power + 1, power + power / 3]
        });
        for nanos in powers.chain([0, u64::MAX]) {
            assert_eq!(
                latency_bucket(nanos),
                by_bounds(&LATENCY_BOUNDS, nanos),
                "{nanos}"
            );
            assert_eq!(
                stage_bucket(nanos),
                by_bounds(&STAGE_BOUNDS, nanos),
                "{nanos}"
            );
        }
    }
}
