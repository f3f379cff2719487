//! Flow-control windows (RFC 9113 5.2), in both directions.

use super::WINDOW_BYTES_MAX;

/// The initial window of every stream and connection.
pub(super) const WINDOW_AT_FIRST: u32 = 65_535;

/// The bytes by which the window of a stream is widened when the owner consumes its body. With 64 KiB each
/// round trip, uploads of clients far away would be slow.
pub const WIDER_BYTES: u32 = 192 << 10;

/// Room in a window for which a DATA frame is worth sending, unless less is ready to be sent. A client that
/// opens its windows by what it reads would otherwise get many frames of a few bytes.
pub const USEFUL_BYTES: u16 = 1024;

/// Bytes that the client may still send.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveWindow {
    /// Below 0 when SETTINGS have made the window smaller than what the client has sent.
    left: i32,
    /// Consumed bytes for which WINDOW_UPDATE was not sent yet.
    credit: u32,
}

impl ReceiveWindow {
    pub(super) fn new(bytes: u32) -> ReceiveWindow {
        ReceiveWindow {
            left: signed(bytes),
            credit: 0,
        }
    }

    /// Bytes have come. Returns false if they exceed the window.
    pub(super) fn take(&mut self, bytes: u32) -> bool {
        let is_within = i64::from(bytes) <= i64::from(self.left);
        if is_within {
            self.left -= signed(bytes);
        }
        is_within
    }

    /// Bytes are consumed. A later call of `give_back` counts them.
    pub(super) fn owe(&mut self, bytes: u32) {
        self.credit += bytes;
    }

    /// Bytes are consumed. Returns the increment for WINDOW_UPDATE when it has become worth a frame, that is
    /// half of the window, which is `size` bytes wide.
    pub(super) fn give_back(&mut self, bytes: u32, size: u32) -> Option<u32> {
        self.owe(bytes);
        // The client may not have seen our SETTINGS yet. Then its window is the initial one, so half of that
        // counts.
        if self.credit < size.min(WINDOW_AT_FIRST).div_ceil(2) {
            return None;
        }
        let credit = std::mem::take(&mut self.credit);
        self.left = self.left.saturating_add(signed(credit));
        (credit > 0).then_some(credit)
    }

    /// The client has acknowledged SETTINGS with another initial window.
    pub(super) fn shift(&mut self, by: i32) {
        self.left = self.left.saturating_add(by);
    }

    /// Whether the client can send `bytes` more without WINDOW_UPDATE.
    pub(super) fn has(&self, bytes: u64) -> bool {
        u64::try_from(self.left).is_ok_and(|left| bytes <= left)
    }
}

/// Bytes that the server may still send.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWindow(i32);

impl SendWindow {
    pub(super) fn new(bytes: u32) -> SendWindow {
        SendWindow(signed(bytes))
    }

    /// The number of bytes that may be sent.
    pub(super) fn room(self) -> u32 {
        u32::try_from(self.0).unwrap_or(0)
    }

    /// Bytes are sent, at most [`SendWindow::room`].
    pub(super) fn take(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.room(), "no more is sent than the window has");
        self.0 = self.0.saturating_sub(signed(bytes));
    }

    /// Applies WINDOW_UPDATE, or a change of SETTINGS_INITIAL_WINDOW_SIZE. Returns false if the window would
    /// become too large.
    pub(super) fn shift(&mut self, by: i64) -> bool {
        match i32::try_from(i64::from(self.0) + by) {
            Ok(window) => {
                self.0 = window;
                true
            }
            Err(_) => false,
        }
    }
}

/// Windows and frames are below 2^31.
fn signed(bytes: u32) -> i32 {
    bytes.min(WINDOW_BYTES_MAX) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_given_back_in_large_parts() {
        let mut window = ReceiveWindow::new(1000);
        assert!(window.take(1000));
        assert!(!window.take(1));
        assert_eq!(window.give_back(499, 1000), None);
        assert_eq!(window.give_back(1, 1000), Some(500));
        assert!(window.has(500) && !window.has(501));
        assert_eq!(window.give_back(0, 1000), None);
    }

    #[test]
    fn credit_does_not_wait_for_a_window_that_the_client_has_not_seen() {
        let mut window = ReceiveWindow::new(WINDOW_AT_FIRST);
        assert!(window.take(40_000));
        assert_eq!(window.give_back(40_000, 1 << 20), Some(40_000));
    }

    #[test]
    fn windows_may_be_below_zero_but_not_too_large() {
        let mut window = SendWindow::new(10);
        assert!(window.shift(-20));
        assert_eq!(window.room(), 0);
        assert!(window.shift(11));
        assert_eq!(window.room(), 1);
        window.take(1);
        assert!(window.shift(i64::from(WINDOW_BYTES_MAX)));
        assert!(!window.shift(1));
        assert_eq!(window.room(), WINDOW_BYTES_MAX);
    }
}
