//! What one client may make of a connection, and the counts that are held against it.
//!
//! Nothing here reads a clock: [`super::Lent::now_s`] begins a new period of [`PERIOD_S`] seconds for the counts of frames
//! that cost a client nothing. Resets are not counted by time, but held against the requests that were completed.

use super::error::ConnectionError;

/// Limits of one connection. A client that goes beyond one of them is sent GOAWAY with ENHANCE_YOUR_CALM, or, where that is
/// said, loses a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http2Limits {
    /// Streams at a time (SETTINGS_MAX_CONCURRENT_STREAMS). One that was reset counts as long as the owner has not released
    /// it. One more is refused (REFUSED_STREAM). Streams that both sides have ended, and that the owner has not released, may
    /// make it twice as many.
    pub streams_max: u16,
    /// Streams that end before there is anything of an answer, by the client's reset, its error, or because they were
    /// refused. A stream that is completed makes up for [`RESETS_FOR_COMPLETED`] of them.
    pub resets_max: u32,
    /// Resets by the client in a period of streams whose answer had begun.
    pub answered_resets_max: u32,
    /// PING frames in a period beyond one for each DATA frame of the answers.
    pub pings_max: u32,
    /// SETTINGS frames in a period.
    pub settings_max: u32,
    /// Frames in a period that could have carried something and do not, or end anything: DATA, HEADERS and CONTINUATION.
    pub empty_frames_max: u32,
    /// DATA frames in a period with a few bytes each, in front of others of the same body.
    pub small_frames_max: u32,
    /// Frames in a period that change nothing: PRIORITY, PRIORITY_UPDATE, frames of kinds that are not known, frames of
    /// streams that are over, DATA of streams that are reset beyond what was on its way.
    pub idle_frames_max: u32,
    /// WINDOW_UPDATE frames in a period beyond those that the DATA frames of the answers explain. A DATA frame that a window
    /// has made short explains none.
    pub window_updates_max: u32,
    /// CONTINUATION frames of one header block.
    pub continuations_max: u32,
    /// Bytes of a header block as it is sent, in all its frames.
    pub block_bytes_max: u32,
    /// Bytes of a header list as it is decoded, by the count of SETTINGS_MAX_HEADER_LIST_SIZE. A head that is shorter, but
    /// above [`crate::request_head::HeadOptions::head_bytes_max`], is a request to be refused with 431.
    pub list_bytes_max: u32,
    /// Bytes of trailers as they are decoded. The stream is lost.
    pub trailer_bytes_max: u32,
    /// Bytes of control frames, mostly answers to PING and SETTINGS, that wait to be sent because the client does not read.
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
            small_frames_max: 4000,
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

/// Streams at a time, unless the owner has other limits.
pub const STREAMS_MAX: u16 = 100;

/// Seconds of a period, behind which counts begin anew.
pub const PERIOD_S: u32 = 10;

/// How many resets a completed stream makes up for.
pub const RESETS_FOR_COMPLETED: u32 = 2;

/// How many WINDOW_UPDATE frames a DATA frame explains: one of the stream, and one of the connection.
const UPDATES_FOR_DATA: u32 = 2;

/// A DATA frame of this length was not made short by a window, whatever is left of that.
const DATA_BYTES_USUAL: u32 = 1024;

/// What is held against the client.
#[derive(Debug, Default)]
pub(super) struct Counts {
    resets: u32,
    period_began_s: u32,
    answered_resets: u32,
    pings: u32,
    settings: u32,
    empty_frames: u32,
    small_frames: u32,
    idle_frames: u32,
    window_updates: u32,
}

impl Counts {
    /// Forgets the counts of a period that is over.
    pub(super) fn at(&mut self, now_s: u32) {
        if now_s.wrapping_sub(self.period_began_s) >= PERIOD_S {
            *self = Counts {
                resets: self.resets,
                period_began_s: now_s,
                ..Counts::default()
            };
        }
    }

    pub(super) fn reset(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::RapidReset;
        count(&mut self.resets, limits.resets_max, reason)
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
        self.resets = self.resets.saturating_sub(RESETS_FOR_COMPLETED);
    }

    pub(super) fn ping(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        count(
            &mut self.pings,
            limits.pings_max,
            ConnectionError::PingFlood,
        )
    }

    pub(super) fn settings(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::SettingsFlood;
        count(&mut self.settings, limits.settings_max, reason)
    }

    pub(super) fn empty_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::EmptyFrames;
        count(&mut self.empty_frames, limits.empty_frames_max, reason)
    }

    pub(super) fn small_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::SmallFrames;
        count(&mut self.small_frames, limits.small_frames_max, reason)
    }

    pub(super) fn idle_frame(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::IdleFrames;
        count(&mut self.idle_frames, limits.idle_frames_max, reason)
    }

    pub(super) fn window_update(&mut self, limits: &Http2Limits) -> Result<(), ConnectionError> {
        let reason = ConnectionError::WindowTrickle;
        count(&mut self.window_updates, limits.window_updates_max, reason)
    }

    /// A DATA frame is sent of so many bytes; `room` is what the windows had.
    pub(super) fn data_sent(&mut self, bytes: u32, room: u32) {
        if bytes >= DATA_BYTES_USUAL || bytes < room {
            self.window_updates = self.window_updates.saturating_sub(UPDATES_FOR_DATA);
            // Clients measure a round trip by PING while data come (gRPC does).
            self.pings = self.pings.saturating_sub(1);
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
