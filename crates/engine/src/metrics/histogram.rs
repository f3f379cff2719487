//! Buckets of times. A bound is one nanosecond less than a power of two of them, so that finding the bucket of
//! a time is counting its binary digits.
//!
//! For the percentiles of the status page each bucket of whole requests is divided into fine ones of equal
//! width, as HdrHistogram does it: from 8 us to 4.9 h a fine bucket is at most 1/32 wide.

use crate::ledger::Nanos;

/// The upper bounds of the exported buckets for whole requests: 8 us to 69 s, each twice the one before.
pub const LATENCY_BOUNDS: [Nanos; 24] = bounds(13, 1);

/// The upper bounds of the buckets for stages: 16 us to 4.3 s, each four times the one before. There are many
/// more of these histograms, so they are coarser.
pub const STAGE_BOUNDS: [Nanos; 10] = bounds(14, 2);

/// Exported buckets for whole requests: one more than there are bounds, for times above the last.
pub const LATENCY_BUCKETS: usize = LATENCY_BOUNDS.len() + 1;

/// Buckets for stages.
pub const STAGE_BUCKETS: usize = STAGE_BOUNDS.len() + 1;

/// Fine buckets of an octave.
pub(super) const STEPS: usize = 32;

/// Octaves of fine buckets: times up to 8 us, then one octave for each power of two. The longest times, from
/// the last exported bound on, have several.
pub(super) const OCTAVES: usize = 32;

/// The fine bucket of the time of a whole request: [`STEPS`] times its octave, plus its step.
#[inline]
pub(super) fn fine_bucket(nanos: Nanos) -> usize {
    let octave = (nanos | 1 << FIRST_BITS).ilog2() - FIRST_BITS;
    let bucket = octave as usize * STEPS + (nanos >> (octave + STEP_BITS)) as usize;
    bucket.min(OCTAVES * STEPS - 1)
}

/// The first and the last time of a fine bucket.
pub(super) fn fine_bounds(bucket: usize) -> (Nanos, Nanos) {
    let octave = (bucket / STEPS).saturating_sub(1);
    let begin = |bucket: usize| ((bucket - octave * STEPS) as u64) << (octave as u32 + STEP_BITS);
    let last = match bucket + 1 < OCTAVES * STEPS {
        true => begin(bucket + 1) - 1,
        false => Nanos::MAX,
    };
    (begin(bucket), last)
}

/// The exported bucket in which an octave is.
#[inline]
pub(super) fn exported_bucket(octave: usize) -> usize {
    octave.min(LATENCY_BUCKETS - 1)
}

/// The bucket of the time of a stage.
#[inline]
pub(super) fn stage_bucket(nanos: Nanos) -> usize {
    OF_STAGE[(nanos | 1).ilog2() as usize] as usize
}

/// Times below this power of two are in the first octave.
const FIRST_BITS: u32 = 13;

/// The power of two that is the width of the narrowest fine buckets.
const STEP_BITS: u32 = FIRST_BITS - STEPS.ilog2();

/// The bucket of each number of binary digits, less one.
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

    fn times() -> impl Iterator<Item = Nanos> {
        let powers = (0..64).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power - 1, power, power + 1, power + power / 3]
        });
        powers.chain([0, u64::MAX])
    }

    #[test]
    fn a_time_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed() {
        for nanos in times() {
            assert_eq!(
                exported_bucket(fine_bucket(nanos) / STEPS),
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

    #[test]
    fn fine_buckets_are_narrow_and_without_gaps() {
        let mut next = 0;
        for bucket in 0..OCTAVES * STEPS {
            let (first, last) = fine_bounds(bucket);
            assert_eq!(first, next);
            assert_eq!((fine_bucket(first), fine_bucket(last)), (bucket, bucket));
            next = last.wrapping_add(1);
            let is_last = last == Nanos::MAX;
            if first > LATENCY_BOUNDS[0] && !is_last {
                assert!((last - first) * 20 < first, "5 %: {first} to {last}");
            }
        }
        assert_eq!(next, 0, "no time is above the last one");
        for nanos in times() {
            let (first, last) = fine_bounds(fine_bucket(nanos));
            assert!((first..=last).contains(&nanos), "{nanos}");
        }
    }

    /// Every exported bucket is a sum of fine ones.
    #[test]
    fn exported_bounds_are_bounds_of_fine_buckets() {
        for bound in LATENCY_BOUNDS {
            let bucket = fine_bucket(bound);
            assert_eq!(fine_bounds(bucket).1, bound);
            assert_eq!(bucket % STEPS, STEPS - 1, "the octave ends, too");
        }
    }
}
