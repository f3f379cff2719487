//! A recorded request in words: where its time went, and what held it up.

use std::fmt::Write;

use crate::ledger::{Nanos, Stage};
use crate::waits::Time;

/// The stages that took most of `total`, the longest one first, each with what held the request up if that is known:
/// `94 % of 2.2 s was backend-queue: pool "www" full (8 of 8); 5 % was backend-first-byte`.
pub fn where_time_went<'a>(
    total: Nanos,
    stages: impl Iterator<Item = (Stage, Nanos)>,
    waits: impl Iterator<Item = (Stage, Nanos, &'a str)> + Clone,
) -> String {
    let mut stages: Vec<_> = stages.filter(|(_, nanos)| *nanos > 0).collect();
    stages.sort_by_key(|(_, nanos)| std::cmp::Reverse(*nanos));
    let mut text = String::new();
    for (stage, nanos) in stages.into_iter().take(STAGES_SHOWN) {
        let percent = percent_of(nanos, total);
        if percent < PERCENT_SHOWN && !text.is_empty() {
            break;
        }
        let is_first = text.is_empty();
        // Writing to a string cannot fail.
        let _ = match is_first {
            true => write!(text, "{percent} % of {} was {}", Time(total), stage.name()),
            false => write!(text, "; {percent} % was {}", stage.name()),
        };
        let of_stage = waits.clone().filter(|(of, ..)| *of == stage);
        if let Some((_, waited, holder)) = of_stage.max_by_key(|(_, nanos, _)| *nanos) {
            let _ = match waited < nanos / 10 * 9 {
                true => write!(text, ": {} of it {holder}", Time(waited)),
                false => write!(text, ": {holder}"),
            };
        }
    }
    match text.is_empty() {
        true => format!("{} in all, and no stage has any of it", Time(total)),
        false => text,
    }
}

/// `nanos` in per cent of `total`, rounded.
pub fn percent_of(nanos: Nanos, total: Nanos) -> u64 {
    let percent = (u128::from(nanos) * 100 + u128::from(total) / 2) / u128::from(total.max(1));
    percent.min(100) as u64
}

/// Further stages are not named.
const STAGES_SHOWN: usize = 3;
/// A further stage with less is not named.
const PERCENT_SHOWN: u64 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_stage_comes_first_with_its_holder() {
        let stages = [
            (Stage::Parse, 10_000),
            (Stage::BackendQueue, 2_068_000_000),
            (Stage::BackendFirstByte, 120_000_000),
        ];
        let waits = [
            (Stage::BackendQueue, 1_000, "shorter"),
            (
                Stage::BackendQueue,
                2_060_000_000,
                "pool \"www\" full (8 of 8)",
            ),
        ];
        let shown = |total, waits: &[(Stage, Nanos, &str)]| {
            where_time_went(total, stages.into_iter(), waits.iter().copied())
        };
        assert_eq!(
            shown(2_200_000_000, &waits),
            "94 % of 2.2 s was backend-queue: pool \"www\" full (8 of 8); 5 % was backend-first-byte"
        );
        let part = [(Stage::BackendQueue, 1_000_000_000, "the disk")];
        assert!(shown(2_200_000_000, &part).contains("backend-queue: 1.0 s of it the disk;"));
        assert!(shown(2_200_000_000, &[]).starts_with("94 % of 2.2 s was backend-queue; 5 %"));
        let nothing = where_time_went(0, std::iter::empty(), [].iter().copied());
        assert_eq!(nothing, "0 us in all, and no stage has any of it");
    }
}
