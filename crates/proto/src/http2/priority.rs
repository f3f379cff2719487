//! Priorities of streams (RFC 9218).

use crate::syntax::list;

/// A priority. The default is urgency 3 and not incremental.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub(super) urgency: u8,
    /// Whether the client can use parts of the answer before it is complete. Several such answers share the
    /// connection.
    pub(super) is_incremental: bool,
}

impl Default for Priority {
    fn default() -> Priority {
        Priority {
            urgency: 3,
            is_incremental: false,
        }
    }
}

impl Priority {
    /// The priority of a stream when the client sends none. It is incremental, so that a long answer does not
    /// hold up the others (RFC 9218 10).
    pub(super) const NOT_TOLD: Priority = Priority {
        urgency: 3,
        is_incremental: true,
    };

    /// A priority. An urgency above 7 counts as 7.
    pub const fn new(urgency: u8, is_incremental: bool) -> Priority {
        Priority {
            urgency: if urgency > URGENCY_MAX {
                URGENCY_MAX
            } else {
                urgency
            },
            is_incremental,
        }
    }

    /// The urgency, from 0, the most urgent, to 7.
    pub const fn urgency(self) -> u8 {
        self.urgency
    }

    /// Whether the client can use parts of the answer.
    pub const fn is_incremental(self) -> bool {
        self.is_incremental
    }

    /// This priority, changed by the value of a Priority field. Unknown parameters and values out of bounds
    /// are ignored (RFC 9218 4).
    pub fn updated_by(mut self, value: &[u8]) -> Priority {
        for item in list(value) {
            let item = item.split(|&byte| byte == b';').next().unwrap_or_default();
            match item.trim_ascii_end() {
                [b'u', b'=', digit @ b'0'..=b'7'] => self.urgency = digit - b'0',
                b"i" | b"i=?1" => self.is_incremental = true,
                b"i=?0" => self.is_incremental = false,
                _ => {}
            }
        }
        self
    }
}

const URGENCY_MAX: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_value_names_urgency_and_increment() {
        for (value, urgency, is_incremental) in [
            ("", 3, false),
            ("u=0", 0, false),
            ("u=7, i", 7, true),
            ("i=?1,u=5", 5, true),
            ("i;x=1 , u=2;y", 2, true),
            ("u=1, i, i=?0", 1, false),
            ("u=8, i=1, urgency=1, u=, =, u=-1", 3, false),
        ] {
            let priority = Priority::default().updated_by(value.as_bytes());
            assert_eq!(priority, Priority::new(urgency, is_incremental), "{value}");
        }
        assert_eq!(Priority::new(9, true).urgency(), 7);
    }
}
