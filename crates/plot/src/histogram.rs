//! Percentiles of durations in bounded memory.

/// Counts of durations. A duration is known to one part in 32.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Grows to the largest duration.
    counts: Vec<u64>,
    count: u64,
    sum: u64,
    max: u64,
}

/// How many buckets each power of two has.
const STEPS: u32 = 32;

impl Histogram {
    /// Counts `value`.
    pub fn add(&mut self, value: u64) {
        let bucket = bucket(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value below which `per_mille` thousandths of `of` values lie. Values that were not counted, up to
    /// `of`, are 0.
    pub fn percentile(&self, per_mille: u64, of: u64) -> u64 {
        let zeros = of.saturating_sub(self.count);
        let wanted = (u128::from(of) * u128::from(per_mille)).div_ceil(1000) as u64;
        let mut seen = zeros;
        if wanted <= seen {
            return 0;
        }
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }
}

/// Values below [`STEPS`] have buckets of their own.
fn bucket(value: u64) -> usize {
    let power = value.max(1).ilog2().saturating_sub(STEPS.ilog2());
    (power as usize) * STEPS as usize + (value >> power) as usize
}

/// The largest value of `bucket`.
fn upper(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    let power = (bucket / steps).saturating_sub(1);
    let step = (bucket - power * steps) as u64;
    ((step + 1) << power).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_in_the_bucket_that_ends_above_it() {
        for value in [
            0,
            1,
            31,
            32,
            33,
            63,
            64,
            65,
            1_000,
            123_456_789,
            u64::MAX / 2,
            u64::MAX,
        ] {
            let upper = upper(bucket(value));
            assert!(upper >= value, "{value}: {upper}");
            assert!(upper - value <= value / 32, "{value}: {upper}");
        }
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        for value in 1..=1000 {
            histogram.add(value * 100);
        }
        let near = |per_mille, expected: u64| {
            let found = histogram.percentile(per_mille, 1000);
            assert!(
                found >= expected && found - expected <= expected / 32,
                "{found}"
            );
        };
        near(500, 50_000);
        near(990, 99_000);
        assert_eq!(histogram.percentile(1000, 1000), 100_000);
        assert_eq!((histogram.max(), histogram.sum()), (100_000, 50_050_000));
    }

    #[test]
    fn requests_without_the_stage_count_as_zero() {
        let mut histogram = Histogram::default();
        histogram.add(10);
        assert_eq!(histogram.percentile(500, 100), 0);
        assert_eq!(histogram.percentile(999, 100), 10);
        assert_eq!(Histogram::default().percentile(500, 0), 0);
    }
}
