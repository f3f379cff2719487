//! Limits of what a client may do on a connection, and the counters for them.
//!
//! Frames that cost a client nothing are counted in periods of [`PERIOD_S`] seconds, by
//! [`super::Lent::now_s`]. What a client sends because of its requests and their answers is not counted:
//! requests and sent DATA give it credit, which it keeps until it uses it. Only resets of streams without an
//! answer cannot be earned for later: completed requests allow more of them in the same period.

use super::error::ConnectionError;

/// Limits of one connection. A client that exceeds one gets GOAWAY with ENHANCE_YOUR_CALM. Where a field says
/// so, it only loses a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Streams at a time (SETTINGS_MAX_CONCURRENT_STREAMS). Further ones are refused (REFUSED_STREAM). A
    /// stream that was reset counts until the owner releases it. With streams that both sides have ended and
    /// the owner has not released there may be twice as many.
    pub streams_max: u16,
    /// Streams in a period that end before their answer begins: by a reset of the client, by its error, or
    /// because they were refused, also with a status for their heads. Each stream that is completed in the
    /// period allows one more, up to [`RESETS_EARNED_MAX`].
    pub resets_max: u32,
    /// Resets by the client, in a period, of streams whose answer had begun.
    pub answered_resets_max: u32,
    /// PING frames in a period beyond one for each request and for each DATA frame of the answers.
    pub pings_max: u32,
    /// SETTINGS frames in a period.
    pub settings_max: u32,
    /// Empty DATA, HEADERS and CONTINUATION frames in a period that do not end anything, beyond one for each
    /// request.
    pub empty_frames_max: u32,
    /// DATA frames in a period that have less than [`SMALL_DATA_BYTES`] and do not end a body.
    pub small_frames_max: u32,
    /// Frames in a period without effect: PRIORITY, PRIORITY_UPDATE, frames of unknown kinds, frames of
    /// streams that are over, and DATA of reset streams beyond one window. [`IDLE_FRAMES_FOR_REQUEST`] for
    /// each request do not count.
    pub idle_frames_max: u32,
    /// WINDOW_UPDATE frames in a period beyond those that answers give a right to: one for the stream and one
    /// for the connection with each request, with each DATA frame, and with each [`UPDATE_BYTES`] of DATA. A
    /// DATA frame that a window has cut to less than [`DATA_BYTES_USUAL`] gives it by its bytes alone.
    pub window_updates_max: u32,
    /// CONTINUATION frames of one header block.
    pub continuations_max: u32,
    /// Bytes of an encoded header block, in all of its frames.
    pub block_bytes_max: u32,
    /// Bytes of a decoded header list, counted as for SETTINGS_MAX_HEADER_LIST_SIZE. A shorter head above
    /// [`crate::request_head::HeadOptions::head_bytes_max`] is refused with 431.
    pub list_bytes_max: u32,
    /// Bytes of decoded trailers. With more the client loses the stream.
    pub trailer_bytes_max: u32,
    /// Bytes of control frames, mostly acknowledgements of PING and SETTINGS, that wait because the client
    /// does not read.
    pub control_bytes_max: u32,
}

impl Default for Http2Limits {
    fn default() -> Http2Limits {
        Http2Limits {
            streams_max: STREAMS_MAX,
            resets_max: 200,
            answered_resets_max: 1000,
            pings_max: 100,
            settings_max: 50,
            empty_frames_max: 100,
            small_frames_max: 20_000,
            idle_frames_max: 1000,
            window_updates_max: 1000,
            continuations_max: 32,
            block_bytes_max: 64 << 10,
            list_bytes_max: 512 << 10,
            trailer_bytes_max: 8192,
            control_bytes_max: 16 << 10,
        }
    }
}

/// The default of [`Http2Limits::streams_max`].
pub const STREAMS_MAX: u16 = 100;

/// Seconds of a period, after which the counters begin anew.
pub const PERIOD_S: u32 = 10;

/// Resets in a period that completed streams allow at most. The request that is reset may have cost the server
/// more than the one that is completed.
pub const RESETS_EARNED_MAX: u32 = 800;

/// Bytes of a DATA frame below which it is counted as small. A gRPC message begins with five bytes, and gRPC
/// sends each message in a frame of its own, ten thousands of them in a second.
pub const SMALL_DATA_BYTES: u32 = 5;

/// Frames without effect that a request gives a right to: its client may change the priority, and may reset
/// the stream when it is over already.
const IDLE_FRAMES_FOR_REQUEST: u32 = 2;

/// Bytes of DATA for which a client may open the window of the stream once, and that of the connection.
const UPDATE_BYTES: u32 = 1024;

/// The windows that a DATA frame uses up: that of its stream, and that of the connection.
const WINDOWS_OF_DATA: u32 = 2;

/// A DATA frame of this length is usual even if a window has cut it: clients with little memory have windows
/// of a few hundred bytes.
const DATA_BYTES_USUAL: u32 = 64;

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Counts {
    resets: u32,
    completed: u32,
    period_began_s: u32,
    answered_resets: u32,
    settings: u32,
    small_frames: u32,
    pings: Budget,
    empty_frames: Budget,
    idle_frames: Budget,
    /// Its credit is in bytes, [`UPDATE_BYTES`] for each WINDOW_UPDATE.
    window_updates: Budget,
}

/// A counter for frames that a client may earn.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// Frames of this period that were not earned.
    count: u32,
    /// What was earned and not used.
    credit: u64,
}

impl Counts {
    /// Resets the counters of a period that is over.
    pub(super) fn at(&mut self, now_s: u32) {
        if now_s.wrapping_sub(self.period_began_s) >= PERIOD_S {
            *self = Counts {
                period_began_s: now_s,
                pings: self.pings.renewed(),
                empty_frames: self.empty_frames.renewed(),
                idle_frames: self.idle_frames.renewed(),
                window_updates: self.window_updates.renewed(),
                ..Counts::default()
            };
        }
    }

    /// A request begins.
    pub(super) fn request(&mut self) {
        self.pings.earn(1);
        self.empty_frames.earn(1);
        self.idle_frames.earn(IDLE_FRAMES_FOR_REQUEST);
        self.window_updates.earn(WINDOWS_OF_DATA * UPDATE_BYTES);
    }

    pub(super) fn reset(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::RapidReset;
        let max = (limits.resets_max).saturating_add(self.completed.min(RESETS_EARNED_MAX));
        count(&mut self.resets, max, reason)
    }

    pub(super) fn answered_reset(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::RapidReset;
        count(
            &mut self.answered_resets,
            limits.answered_resets_max,
            reason,
        )
    }

    pub(super) fn completed(&mut self) {
        self.completed = self.completed.saturating_add(1);
    }

    pub(super) fn ping(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::PingFlood;
        self.pings.spend(1, limits.pings_max, reason)
    }

    pub(super) fn settings(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::SettingsFlood;
        count(&mut self.settings, limits.settings_max, reason)
    }

    pub(super) fn empty_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::EmptyFrames;
        self.empty_frames.spend(1, limits.empty_frames_max, reason)
    }

    pub(super) fn small_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::SmallFrames;
        count(&mut self.small_frames, limits.small_frames_max, reason)
    }

    pub(super) fn idle_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::IdleFrames;
        self.idle_frames.spend(1, limits.idle_frames_max, reason)
    }

    pub(super) fn window_update(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::WindowTrickle;
        let max = limits.window_updates_max;
        self.window_updates.spend(UPDATE_BYTES, max, reason)
    }

    /// A DATA frame of so many bytes is sent; `room` is what the windows allowed.
    pub(super) fn data_sent(&mut self, bytes: u32, room: u32) {
        let is_usual = bytes >= DATA_BYTES_USUAL || bytes < room;
        let earned = match is_usual {
            true => bytes.max(UPDATE_BYTES),
            false => bytes,
        };
        self.window_updates.earn(WINDOWS_OF_DATA * earned);
        // Clients such as gRPC's measure the round trip with PING while data come.
        self.pings.earn(u32::from(is_usual));
    }
}

impl Budget {
    fn renewed(self) -> Budget {
        Budget { count: 0, ..self }
    }

    fn earn(&mut self, credit: u32) {
        self.credit = self.credit.saturating_add(u64::from(credit));
    }

    /// Counts a frame that costs so much credit, unless there is as much.
    fn spend(
        &mut self,
        cost: u32,
        max: u32,
        reason: ConnectionError,
    ) -> Result<(), ConnectionError> {
        match self.credit.checked_sub(u64::from(cost)) {
            Some(left) => {
                self.credit = left;
                Ok(())
            }
            None => count(&mut self.count, max, reason),
        }
    }
}

fn count(counter: &mut u32, max: u32, reason: ConnectionError) -> Result<(), ConnectionError> {
    *counter += 1;
    match *counter > max {
        true => Err(reason),
        false => Ok(()),
    }
}
