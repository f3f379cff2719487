//! The groups that a regular expression has captured.

/// The positions of groups 0 to 9 in the value that was matched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures {
    ranges: [(u32, u32); GROUPS_MAX],
    count: u8,
}

impl Captures {
    /// No groups.
    #[must_use]
    pub fn new() -> Captures {
        Captures::default()
    }

    /// Group `number` in `value`, which must be the value that was matched.
    /// Empty if the group does not exist or took no part in the match.
    #[must_use]
    pub fn group<'v>(&self, number: usize, value: &'v [u8]) -> &'v [u8] {
        if number >= usize::from(self.count) {
            return b"";
        }
        let (start, end) = self.ranges.get(number).copied().unwrap_or((0, 0));
        value.get(start as usize..end as usize).unwrap_or(b"")
    }

    /// Forgets all groups.
    pub(crate) fn clear(&mut self) {
        *self = Captures::new();
    }

    /// Adds the next group. Groups after the first [`GROUPS_MAX`] are dropped.
    pub(crate) fn push(&mut self, start: usize, end: usize) {
        if let Some(range) = self.ranges.get_mut(usize::from(self.count)) {
            *range = (start as u32, end as u32);
            self.count += 1;
        }
    }
}

/// The groups that a substitution can name; `0` is the whole match.
pub(crate) const GROUPS_MAX: usize = 10;
