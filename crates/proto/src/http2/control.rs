//! Frames that carry no part of a message: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM, priorities.

use super::connection::{Core, Found, Http2Event, PING_PAYLOAD};
use super::error::{ConnectionError, Http2Error, StreamError};
use super::flow::WIDER_BYTES;
use super::frame::{ErrorCode, FrameError, Setting, Settings};
use super::priority::Priority;
use super::streams::{Remote, ResetBy};
use super::turns::Turn;
use super::{write_go_away, write_ping_ack, write_reset, write_settings_ack, write_window_update};

impl Core {
    pub(super) fn fail(&mut self, error: Http2Error) {
        self.error = Some(error);
        self.block = None;
        if error == ConnectionError::NotReading.into() {
            self.control.clear();
        }
        let (code, sentence) = (error.code(), error.sentence());
        write_go_away(
            &mut self.control,
            self.highest_taken,
            code,
            sentence.as_bytes(),
        );
    }

    #[inline]
    pub(super) fn write_control(&mut self, out: &mut Vec<u8>) {
        if self.control.is_empty() {
            return;
        }
        out.extend_from_slice(&self.control);
        match self.control.capacity() > CONTROL_BYTES_KEPT {
            true => self.control = Vec::new(),
            false => self.control.clear(),
        }
    }

    pub(super) fn settings(&mut self, settings: Settings<'_>) -> Found {
        self.counts.settings(&self.options.limits)?;
        self.has_settings = true;
        self.apply(settings)?;
        write_settings_ack(&mut self.control);
        Ok(None)
    }

    /// Applies settings of the client.
    pub(super) fn apply(&mut self, settings: Settings<'_>) -> Result<(), ConnectionError> {
        let mut window = None;
        for setting in settings {
            match setting {
                Setting::HeaderTableSize(bytes) => self.encoder.set_table_bytes_max(bytes),
                // Only the last value of a frame is applied. Otherwise one frame could make the server adjust
                // all windows a thousand times.
                Setting::InitialWindowSize(bytes) => window = Some(bytes),
                Setting::MaxFrameSize(bytes) => self.peer_frame_bytes_max = bytes,
                Setting::EnablePush(_)
                | Setting::MaxConcurrentStreams(_)
                | Setting::MaxHeaderListSize(_)
                | Setting::EnableConnectProtocol(_)
                | Setting::NoRfc7540Priorities(_) => {}
            }
        }
        match window {
            Some(bytes) => self.move_windows(bytes),
            None => Ok(()),
        }
    }

    /// Adjusts the windows of all streams to a new SETTINGS_INITIAL_WINDOW_SIZE of the client.
    fn move_windows(&mut self, bytes: u32) -> Result<(), ConnectionError> {
        let by = i64::from(bytes) - i64::from(self.peer_stream_window);
        self.peer_stream_window = bytes;
        for slot in self.streams.slots() {
            let stream = self.streams.at_mut(slot);
            if stream.id == 0 {
                continue;
            }
            if !stream.send_window.shift(by) {
                return Err(ConnectionError::WindowOverflow);
            }
            self.place(slot);
        }
        Ok(())
    }

    /// The client has acknowledged our SETTINGS: from now on it uses our initial window.
    pub(super) fn settings_acknowledged(&mut self) -> Found {
        if std::mem::replace(&mut self.is_acknowledged, true) {
            self.counts.idle_frame(&self.options.limits)?;
        }
        let by = i64::from(self.options.stream_window) - i64::from(self.stream_window);
        self.stream_window = self.options.stream_window;
        for slot in self.streams.slots().filter(|_| by != 0) {
            let stream = self.streams.at_mut(slot);
            if stream.id == 0 {
                continue;
            }
            // The difference of two windows fits: windows are below 2^31.
            stream.receive_window.shift(by as i32);
            let opened = stream.give_back(0, self.options.stream_window);
            write_window_update(&mut self.control, stream.id, opened);
        }
        Ok(None)
    }

    /// The client has sent GOAWAY.
    pub(super) fn client_goes(&mut self, code: ErrorCode) -> Found {
        if std::mem::replace(&mut self.client_goes, true) {
            self.counts.idle_frame(&self.options.limits)?;
        }
        Ok(Some(Http2Event::GoAway { code }))
    }

    pub(super) fn ping(&mut self, payload: [u8; 8]) -> Found {
        self.counts.ping(&self.options.limits)?;
        write_ping_ack(&mut self.control, payload);
        Ok(None)
    }

    pub(super) fn ping_answered(&mut self, payload: [u8; 8]) -> Found {
        if payload == PING_PAYLOAD && std::mem::take(&mut self.awaits_ping) {
            return Ok(Some(Http2Event::PingAnswered));
        }
        self.counts.idle_frame(&self.options.limits)?;
        Ok(None)
    }

    pub(super) fn window_update(&mut self, id: u32, increment: u32) -> Found {
        self.counts.window_update(&self.options.limits)?;
        if id == 0 {
            if !self.send_window.shift(i64::from(increment)) {
                return Err(ConnectionError::WindowOverflow.into());
            }
            self.widest_step = self.widest_step.max(increment);
            return Ok(None);
        }
        let Some(slot) = self.known(id)? else {
            return Ok(None);
        };
        let stream = self.streams.at_mut(slot);
        if !stream.is_writable() {
            return Ok(None);
        }
        if !stream.send_window.shift(i64::from(increment)) {
            return self.lose(slot, StreamError::WindowOverflow);
        }
        self.place(slot);
        Ok(None)
    }

    pub(super) fn priority_update(&mut self, id: u32, value: &[u8]) -> Found {
        self.counts.idle_frame(&self.options.limits)?;
        let priority = Priority::default().updated_by(value);
        if let Some(slot) = self.streams.find(id) {
            self.set_priority(slot, priority);
            return Ok(None);
        }
        if id > self.highest_seen {
            self.early_priorities.retain(|&(other, _)| other != id);
            if self.early_priorities.len() >= EARLY_PRIORITIES_MAX {
                self.early_priorities.remove(0);
            }
            self.early_priorities.push((id, priority));
        }
        Ok(None)
    }

    pub(super) fn reset_by_client(&mut self, id: u32, code: ErrorCode) -> Found {
        let Some(slot) = self.known(id)? else {
            self.counts.idle_frame(&self.options.limits)?;
            return Ok(None);
        };
        let stream = self.streams.at_mut(slot);
        if !stream.is_alive() {
            self.counts.idle_frame(&self.options.limits)?;
            return Ok(None);
        }
        stream.reset = Some(ResetBy::Client);
        stream.remote = Remote::Ended;
        match stream.is_answered() {
            true => self.counts.answered_reset(&self.options.limits)?,
            false => self.counts.reset(&self.options.limits)?,
        }
        self.place(slot);
        let stream = self.streams.key(slot);
        Ok(Some(Http2Event::Reset { stream, code }))
    }

    pub(super) fn frame_error(&mut self, id: u32, error: FrameError) -> Found {
        let reason = match error {
            FrameError::DependsOnItself => StreamError::DependsOnItself,
            FrameError::Increment => StreamError::Increment,
            _ => StreamError::FrameLength,
        };
        match self.streams.find(id) {
            Some(slot) if self.streams.at(slot).is_alive() => self.lose(slot, reason),
            Some(_) => {
                self.counts.idle_frame(&self.options.limits)?;
                Ok(None)
            }
            None if id > self.highest_seen && error == FrameError::Increment => {
                Err(ConnectionError::IdleStream.into())
            }
            // A stream must not depend on itself (RFC 7540 5.3.1). RST_STREAM is not allowed for a stream
            // that has not begun, so the connection ends.
            None if id > self.highest_seen && error == FrameError::DependsOnItself => {
                Err(FrameError::DependsOnItself.into())
            }
            // RST_STREAM is not allowed for a stream that has not begun (RFC 9113 6.4).
            None if id > self.highest_seen || id.is_multiple_of(2) => {
                self.counts.idle_frame(&self.options.limits)?;
                Ok(None)
            }
            None => {
                self.counts.reset(&self.options.limits)?;
                write_reset(&mut self.control, id, error.code());
                Ok(None)
            }
        }
    }

    /// The slot of the stream `id`. `None`: the stream is over, so that the frame has no effect.
    pub(super) fn known(&self, id: u32) -> Result<Option<u16>, ConnectionError> {
        // The server begins no streams, so even identifiers do not exist.
        if id > self.highest_seen || id.is_multiple_of(2) {
            return Err(ConnectionError::IdleStream);
        }
        Ok(self.streams.find(id))
    }

    /// Resets a stream because of an error of the client.
    pub(super) fn lose(&mut self, slot: u16, error: StreamError) -> Found {
        let stream = self.streams.at(slot);
        let id = stream.id;
        self.counts.reset(&self.options.limits)?;
        self.reset(slot, error.code());
        Ok(Some(Http2Event::StreamError {
            id,
            stream: Some(self.streams.key(slot)),
            error,
        }))
    }

    /// Queues RST_STREAM. Nothing is sent or taken on the stream any more.
    pub(super) fn reset(&mut self, slot: u16, code: ErrorCode) {
        let stream = self.streams.at_mut(slot);
        stream.reset = Some(ResetBy::Server);
        stream.remote = Remote::Ended;
        // No frame may follow a GOAWAY with an error.
        if self.error.is_none() {
            write_reset(&mut self.control, stream.id, code);
        }
        self.reset_streams.add(stream.id);
        if stream.is_wide {
            self.late_bytes += u64::from(WIDER_BYTES);
        }
        self.expect_late_bytes();
        self.place(slot);
    }

    pub(super) fn set_priority(&mut self, slot: u16, mut priority: Priority) {
        let stream = self.streams.at_mut(slot);
        priority.is_incremental |= stream.is_tunnel;
        if stream.priority == priority {
            return;
        }
        stream.priority = priority;
        let turn = std::mem::replace(&mut stream.turn, Turn::NONE);
        if turn != Turn::NONE {
            self.turns.leave(turn);
            self.place(slot);
        }
    }

    /// Puts a stream into the queue of streams that can send, or takes it out.
    pub(super) fn place(&mut self, slot: u16) {
        let stream = self.streams.at_mut(slot);
        let can_send = stream.ready_bytes > 0
            && stream.takes_data()
            && stream.has_useful_room(self.peer_stream_window);
        match (can_send, stream.turn == Turn::NONE) {
            (true, true) => stream.turn = self.turns.join(stream.priority, stream.id, slot),
            (false, false) => {
                let turn = std::mem::replace(&mut stream.turn, Turn::NONE);
                self.turns.leave(turn);
            }
            _ => {}
        }
    }
}

/// Streams that have not begun whose priorities are remembered.
const EARLY_PRIORITIES_MAX: usize = 16;

/// Bytes of memory that the empty buffer for control frames keeps.
const CONTROL_BYTES_KEPT: usize = 128;
