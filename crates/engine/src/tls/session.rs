//! One TLS connection: rustls's connection without buffers of its own, and what it needs around it.
//!
//! The only file that names the connection types of rustls. The order of calls: read from the socket into
//! [`TlsSession::read_room`], then [`TlsSession::receive`]; write what [`TlsSession::outgoing`] shows, or
//! [`TlsSession::encrypt`], which is that with more behind it. After an error the alert is outgoing, and nothing else
//! happens.
//!
//! A session that waits for its client holds no buffer: those of a worker's sessions are the worker's
//! ([`TlsBuffers`]). What it keeps between two calls is the beginning of a record that has not come whole, and records
//! that the socket has not taken.

use std::fmt;
use std::io::IoSlice;
use std::mem;
use std::sync::Arc;

use petrel_proto::client_hello::{
    ClientHello, ClientHelloDecoder, DecodedHello, HelloError, MESSAGE_BYTES_MAX,
};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError,
    UnbufferedStatus, WriteTraffic,
};
use rustls::{AlertDescription, HandshakeKind, ProtocolVersion, ServerConfig};

use super::facts::{self, TlsFacts, TlsVersion};
use super::record_sizes::RecordSizes;
use crate::limits;

/// Chooses the configuration of a client by what it asks for, or the alert to refuse it with.
///
/// A ticketer belongs to one policy for client certificates: when a ticket resumes a session, rustls neither asks for a
/// certificate nor runs the verifier, and shows the certificates of the session that the ticket is from. With one
/// ticketer for two policies a client takes its ticket from the one to the other (compare CVE-2025-23419). An owner
/// that enforces certificates also refuses a session that has none ([`TlsFacts::client_certificates`]).
///
/// The chooser sees the first ClientHello. After a HelloRetryRequest the client sends a second one, which rustls does
/// not compare with the first: its protocols (ALPN) may be others. What was agreed on is in [`TlsFacts::alpn`], and is
/// one of the configuration's.
pub type ChooseConfig<'a> =
    dyn Fn(&ClientHello) -> Result<Arc<ServerConfig>, AlertDescription> + 'a;

/// A TLS connection with a client.
pub struct TlsSession {
    stage: Stage,
    /// Bytes of the client that wait for more. What was decrypted of them already is so in place.
    held: Vec<u8>,
    /// Where the last record in `held` begins, which has not come whole. rustls has seen those in front of it.
    held_from: usize,
    /// Records that the socket has not taken, from `unsent_from` on.
    unsent: Vec<u8>,
    unsent_from: usize,
    sizes: RecordSizes,
    server_name: Option<Box<str>>,
    /// The client has said that it sends nothing more.
    is_ended: bool,
    has_said_end: bool,
}

enum Stage {
    /// Waits for the ClientHello.
    Hello(ClientHelloDecoder),
    Open(Box<UnbufferedServerConnection>),
    /// An error has ended it. The owner has still to be told which, if plaintext came first.
    Over(Option<TlsError>),
}

/// What the sessions of a worker use one after the other.
pub struct TlsBuffers {
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    /// Bytes of `outgoing` that are records to be written.
    filled: usize,
    /// Where pieces are put together that become one record.
    joined: Vec<u8>,
}

/// What the socket is to take next. The session keeps what it does not take, also when this is dropped.
pub struct Outgoing<'a> {
    session: &'a mut TlsSession,
    buffers: &'a mut TlsBuffers,
    taken: usize,
}

/// What the client's bytes have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of plaintext.
    pub bytes: usize,
    /// The client sends nothing more, and has said so. It may still read.
    pub is_end: bool,
    /// An error has ended the session. If it came behind these bytes, the next [`TlsSession::receive`] answers which.
    pub is_over: bool,
}

/// Why a session is over.
#[derive(Debug)]
pub enum TlsError {
    /// The connection does not begin with a ClientHello that can be used.
    Hello(HelloError),
    /// The chooser has refused the client.
    Refused(AlertDescription),
    /// The client has broken the rules, or there is nothing both can do.
    Protocol(rustls::Error),
    /// The client's message is longer than [`limits::TLS_HELD_BYTES_MAX`].
    TooLong,
    /// As many records were sent as the key may be used for.
    KeyExhausted,
    /// The owner of the session gave it too little room.
    NoRoom,
    /// The chosen configuration asks for early data, or for records of another length.
    Configuration,
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Hello(error) => error.fmt(formatter),
            TlsError::Refused(alert) => write!(formatter, "the client is refused: {alert:?}"),
            TlsError::Protocol(error) => error.fmt(formatter),
            TlsError::TooLong => {
                formatter.write_str("a message of the client's handshake is too long")
            }
            TlsError::KeyExhausted => formatter.write_str("the connection has used up its key"),
            TlsError::NoRoom => formatter.write_str("a buffer of the worker is too small"),
            TlsError::Configuration => {
                formatter.write_str("the configuration has early data or a record length")
            }
        }
    }
}

impl std::error::Error for TlsError {}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        TlsError::Protocol(error)
    }
}

impl Default for TlsBuffers {
    fn default() -> TlsBuffers {
        TlsBuffers {
            incoming: vec![0; limits::RECEIVE_BUFFER_BYTES].into(),
            outgoing: vec![0; limits::TLS_OUTGOING_BYTES].into(),
            filled: 0,
            joined: Vec::with_capacity(limits::TLS_RECORD_BYTES_MAX),
        }
    }
}

impl TlsBuffers {
    /// The `count` bytes that were read last into [`TlsSession::read_room`], if they were not used.
    pub fn received(&self, count: usize) -> &[u8] {
        self.incoming.get(..count).unwrap_or_default()
    }
}

impl Default for TlsSession {
    fn default() -> TlsSession {
        TlsSession {
            stage: Stage::Hello(ClientHelloDecoder::default()),
            held: Vec::new(),
            held_from: 0,
            unsent: Vec::new(),
            unsent_from: 0,
            sizes: RecordSizes::default(),
            server_name: None,
            is_ended: false,
            has_said_end: false,
        }
    }
}

/// From the client.
impl TlsSession {
    /// Where the next bytes of the socket belong.
    pub fn read_room<'b>(&self, buffers: &'b mut TlsBuffers) -> &'b mut [u8] {
        let incoming = &mut buffers.incoming;
        match &self.stage {
            // The message is put in front of what is behind it, in one record, in however many it came.
            Stage::Hello(_) => {
                let message = RECORD_HEADER + MESSAGE_BYTES_MAX;
                incoming.get_mut(..incoming.len().saturating_sub(message))
            }
            Stage::Open(_) | Stage::Over(_) => incoming.get_mut(self.held.len()..),
        }
        .unwrap_or_default()
    }

    /// Takes `count` bytes that were read into [`read_room`](Self::read_room), decrypts what is whole of them, and puts
    /// the plaintext into `plain`, which has room for as many bytes as the worker's buffer. After
    /// [`say_end`](Self::say_end) it drops what comes.
    ///
    /// # Errors
    /// Final: what is outgoing is to be written, and the connection to be closed. Where an established session has
    /// decrypted something in front of what is broken, that is answered first, and the error by the next call.
    pub fn receive(
        &mut self,
        count: usize,
        buffers: &mut TlsBuffers,
        plain: &mut [u8],
        choose: &ChooseConfig<'_>,
    ) -> Result<Received, TlsError> {
        let was_established = self.is_established();
        let mut bytes = 0;
        let result = match &mut self.stage {
            Stage::Hello(_) => self.receive_hello(count, buffers, plain, &mut bytes, choose),
            Stage::Open(_) => self.receive_records(count, buffers, plain, &mut bytes),
            Stage::Over(error) => error.take().map_or(Ok(()), Err),
        };
        if let Err(error) = result {
            self.fail(&error);
            // Without facts, which only an established session has, its owner can use no plaintext.
            if bytes == 0 || !was_established {
                return Err(error);
            }
            self.stage = Stage::Over(Some(error));
        }
        Ok(Received {
            bytes,
            is_end: self.is_ended,
            is_over: matches!(self.stage, Stage::Over(_)),
        })
    }

    fn receive_hello(
        &mut self,
        count: usize,
        buffers: &mut TlsBuffers,
        plain: &mut [u8],
        plain_bytes: &mut usize,
        choose: &ChooseConfig<'_>,
    ) -> Result<(), TlsError> {
        let Stage::Hello(decoder) = &mut self.stage else {
            return Ok(());
        };
        let input = buffers.incoming.get(..count).unwrap_or_default();
        let decoded = decoder.decode(input).map_err(TlsError::Hello)?;
        let DecodedHello::Complete { hello, consumed } = decoded else {
            return Ok(());
        };
        let config = choose(&hello).map_err(TlsError::Refused)?;
        if config.max_early_data_size > 0 || config.max_fragment_size.is_some() {
            return Err(TlsError::Configuration);
        }
        self.server_name = hello.server_name().map(Into::into);
        // In one record, in whatever it came.
        hello.write_record(&mut self.held);
        drop(hello);
        self.stage = Stage::Open(Box::new(UnbufferedServerConnection::new(config)?));
        // What is behind it comes behind it again.
        let behind = self.held.len();
        let room = behind..behind + (count - consumed);
        if room.end > buffers.incoming.len() {
            return Err(TlsError::TooLong);
        }
        buffers.incoming.copy_within(consumed..count, behind);
        self.receive_records(room.len(), buffers, plain, plain_bytes)
    }

    fn receive_records(
        &mut self,
        count: usize,
        buffers: &mut TlsBuffers,
        plain: &mut [u8],
        plain_bytes: &mut usize,
    ) -> Result<(), TlsError> {
        let Stage::Open(connection) = &mut self.stage else {
            return Ok(());
        };
        // rustls would answer a broken record with an alert, and has no other to send after a close_notify.
        if self.has_said_end {
            self.held = Vec::new();
            return Ok(());
        }
        let held = self.held.len();
        let Some(incoming) = buffers.incoming.get_mut(..held + count) else {
            return Err(TlsError::NoRoom);
        };
        if held + count < limits::TLS_HELD_BYTES_MAX
            && let Some(begun) = self.held.get(self.held_from..)
            && is_part_of_record(begun, count)
        {
            self.held.extend_from_slice(&incoming[held..]);
            return Ok(());
        }
        incoming[..held].copy_from_slice(&self.held);
        let last_record = incomplete_record(incoming, self.held_from);
        self.held = Vec::new();
        self.held_from = 0;
        let mut output = Output {
            unsent: &mut self.unsent,
            plain,
            plain_bytes,
        };
        let driven = drive(connection, incoming, &mut output)?;
        self.is_ended |= driven.is_ended;
        let rest = incoming.get(driven.used..).unwrap_or_default();
        if !rest.is_empty() && !self.is_ended {
            if rest.len() > limits::TLS_HELD_BYTES_MAX {
                return Err(TlsError::TooLong);
            }
            self.held = rest.to_vec();
            self.held_from = last_record.saturating_sub(driven.used);
        }
        Ok(())
    }

    /// Whether the client was cut off: the socket has ended, and the client has not said that it would. What it says
    /// after [`say_end`](Self::say_end) is not seen.
    pub fn is_cut_off(&self) -> bool {
        !self.is_ended
    }
}

/// To the client.
impl TlsSession {
    /// Encrypts as much of `slices`, one behind the other, as one write should take, a record after the other, behind what
    /// is outgoing. Nothing, if what is outgoing has to be written first, or the handshake is not done. The last slice
    /// is best the largest: of the others more is copied.
    ///
    /// No more than about `budget` bytes are outgoing then, which is what the session keeps if the socket takes none of
    /// them. An owner whose last write was taken in part, or whose client has not yet read an answer, gives 16 KiB;
    /// another as many as it likes. A budget below a small record is one.
    ///
    /// # Errors
    /// Final, as for [`receive`](Self::receive).
    pub fn encrypt<'a>(
        &'a mut self,
        slices: &[IoSlice<'_>],
        budget: usize,
        now_s: u32,
        buffers: &'a mut TlsBuffers,
    ) -> Result<Outgoing<'a>, TlsError> {
        let mut outgoing = self.outgoing(buffers);
        let Outgoing {
            session, buffers, ..
        } = &mut outgoing;
        let is_all_written = session.unsent.is_empty();
        if session.is_established() && !session.has_said_end && session.move_unsent(buffers) {
            session.sizes.begin(is_all_written, now_s);
            match session.encrypt_records(slices, budget, buffers) {
                Ok(taken) => outgoing.taken = taken,
                Err(error) => {
                    session.fail(&error);
                    return Err(error);
                }
            }
        }
        Ok(outgoing)
    }

    /// What is to be written to the socket, in one call.
    pub fn outgoing<'a>(&'a mut self, buffers: &'a mut TlsBuffers) -> Outgoing<'a> {
        buffers.filled = 0;
        Outgoing {
            session: self,
            buffers,
            taken: 0,
        }
    }

    fn encrypt_records(
        &mut self,
        slices: &[IoSlice<'_>],
        budget: usize,
        buffers: &mut TlsBuffers,
    ) -> Result<usize, TlsError> {
        let budget = budget.max(limits::TLS_SMALL_RECORD_BYTES + RECORD_OVERHEAD_MAX);
        let budget = budget.min(buffers.outgoing.len());
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        let in_front = all - slices.last().map_or(0, |slice| slice.len());
        let mut rest = SlicesLeft { slices, used: 0 };
        let mut taken = 0;
        while taken < all {
            let mut wanted = self.sizes.next(all - taken);
            if wanted == limits::TLS_RECORD_BYTES_MAX && taken < in_front {
                // The odd bytes go first, with what is in front: the fewer of the last slice have to be put together
                // with it.
                let odd = (all - taken) % wanted;
                if odd >= in_front - taken {
                    wanted = odd;
                }
            }
            let TlsBuffers {
                outgoing,
                filled,
                joined,
                ..
            } = &mut *buffers;
            let room = outgoing.get_mut(*filled..budget).unwrap_or_default();
            let bytes = wanted.min(room.len().saturating_sub(RECORD_OVERHEAD_MAX));
            // A large record that does not fit waits for the next write.
            if bytes < wanted && (*filled > 0 || bytes == 0) {
                break;
            }
            let Some(length) = self.encrypt_record(rest.take(bytes, joined), room)? else {
                break;
            };
            buffers.filled += length;
            taken += bytes;
            self.sizes.made(bytes);
        }
        Ok(taken)
    }

    /// `None`: there is no room.
    fn encrypt_record(&mut self, plain: &[u8], room: &mut [u8]) -> Result<Option<usize>, TlsError> {
        let Stage::Open(connection) = &mut self.stage else {
            return Ok(None);
        };
        let (held, unsent) = (&mut self.held, &mut self.unsent);
        let encrypted = with_traffic(connection, held, unsent, |traffic, unsent| {
            // A change of keys, which follows what is in front of `room`.
            match unsent.is_empty() {
                true => traffic.encrypt(plain, room).map(Some),
                false => Ok(None),
            }
        });
        match encrypted?.transpose() {
            Ok(length) => Ok(length.flatten()),
            Err(EncryptError::InsufficientSize(_)) => Ok(None),
            Err(EncryptError::EncryptExhausted) => Err(TlsError::KeyExhausted),
        }
    }

    /// Says that nothing more will be sent (close_notify), behind what is outgoing. Nothing is said twice, nor before
    /// the handshake is done. What the client sends from now on is dropped, so an owner that still reads from it, as a
    /// tunnel does, says its end last.
    pub fn say_end(&mut self) {
        let Stage::Open(connection) = &mut self.stage else {
            return;
        };
        if self.has_said_end || connection.is_handshaking() {
            return;
        }
        self.has_said_end = true;
        let mut room = [0; ALERT_BYTES_MAX];
        let (held, unsent) = (&mut self.held, &mut self.unsent);
        // An error leaves nothing to say.
        let _ = with_traffic(connection, held, unsent, |traffic, unsent| {
            if let Ok(length) = traffic.queue_close_notify(&mut room) {
                unsent.extend_from_slice(&room[..length]);
            }
        });
        self.held = Vec::new();
    }

    /// Keeps what stands in `buffers` behind the first `count` bytes, in front of what is unsent.
    fn keep_unwritten(&mut self, buffers: &mut TlsBuffers, count: usize) {
        let rest = buffers
            .outgoing
            .get(count..buffers.filled)
            .unwrap_or_default();
        self.unsent.splice(..0, rest.iter().copied());
        buffers.filled = 0;
    }

    /// Moves what is unsent into `buffers`, so that records can follow it. False: it is too much for that.
    fn move_unsent(&mut self, buffers: &mut TlsBuffers) -> bool {
        let unsent = self.unsent.get(self.unsent_from..).unwrap_or_default();
        if unsent.is_empty() {
            return true;
        }
        // Of a handshake, or a rest that is not worth another write.
        if unsent.len() > limits::TLS_RECORD_BYTES_MAX {
            return false;
        }
        let place = buffers.outgoing.get_mut(..unsent.len());
        place.unwrap_or_default().copy_from_slice(unsent);
        buffers.filled = unsent.len();
        self.unsent = Vec::new();
        self.unsent_from = 0;
        true
    }
}

impl Outgoing<'_> {
    /// Bytes of plaintext that were encrypted now.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Records, to be written in one call.
    pub fn bytes(&self) -> &[u8] {
        let unsent = self.session.unsent.get(self.session.unsent_from..);
        match self.buffers.filled {
            0 => unsent.unwrap_or_default(),
            filled => self.buffers.outgoing.get(..filled).unwrap_or_default(),
        }
    }

    /// The socket has taken `count` of them.
    pub fn wrote(self, count: usize) {
        let session = &mut *self.session;
        if self.buffers.filled > 0 {
            return session.keep_unwritten(self.buffers, count);
        }
        session.unsent_from = (session.unsent_from + count).min(session.unsent.len());
        // Memory goes back with each half, so that no byte is moved often.
        if session.unsent_from >= session.unsent.len() - session.unsent_from {
            session.unsent.drain(..session.unsent_from);
            session.unsent.shrink_to_fit();
            session.unsent_from = 0;
        }
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        self.session.keep_unwritten(self.buffers, 0);
    }
}

/// What it is at.
impl TlsSession {
    /// Whether the handshake is done.
    pub fn is_established(&self) -> bool {
        matches!(&self.stage, Stage::Open(connection) if !connection.is_handshaking())
    }

    /// Whether anything has come of the client's ClientHello.
    pub fn has_begun(&self) -> bool {
        match &self.stage {
            Stage::Hello(decoder) => decoder.has_begun(),
            Stage::Open(_) | Stage::Over(_) => true,
        }
    }

    /// Whether the client has said that it sends nothing more.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether records wait to be written.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Bytes of records that wait to be written.
    pub fn unsent_bytes(&self) -> usize {
        self.unsent.len() - self.unsent_from
    }

    /// What client and server have agreed on, when the handshake is done.
    pub fn facts(&self) -> Option<TlsFacts<'_>> {
        let Stage::Open(connection) = &self.stage else {
            return None;
        };
        if connection.is_handshaking() {
            return None;
        }
        let (cipher, cipher_bits) = facts::cipher(connection.negotiated_cipher_suite()?.suite());
        let group = connection.negotiated_key_exchange_group();
        Some(TlsFacts {
            version: TlsVersion::of(connection.protocol_version()?)?,
            cipher,
            cipher_bits,
            group: group.and_then(|group| group.name().as_str()),
            alpn: connection.alpn_protocol(),
            server_name: self.server_name.as_deref(),
            client_certificates: connection.peer_certificates().unwrap_or_default(),
            is_resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }

    /// Ends the session for `error`; the alert is outgoing. There is none if keys are in use and rustls has refused
    /// nothing itself: only rustls can encrypt one, and it encrypts none but its own. The connection just ends then.
    fn fail(&mut self, error: &TlsError) {
        let stage = mem::replace(&mut self.stage, Stage::Over(None));
        self.held = Vec::new();
        let alert = match (error, stage) {
            (_, Stage::Over(_)) => None,
            (TlsError::Hello(error), _) => error.alert(),
            (TlsError::Refused(alert), _) => Some(u8::from(*alert)),
            (_, Stage::Open(mut connection)) => {
                let has_alert = take_alert(&mut connection, &mut self.unsent);
                let in_clear = !has_alert && !has_keys(&connection);
                in_clear.then(|| clear_alert(error)).flatten()
            }
            (_, Stage::Hello(_)) => Some(u8::from(AlertDescription::InternalError)),
        };
        if let Some(alert) = alert {
            self.unsent
                .extend_from_slice(&[ALERT, 3, 3, 0, 2, FATAL, alert]);
        }
    }
}

/// Whether the server may have begun to encrypt what it sends.
fn has_keys(connection: &UnbufferedServerConnection) -> bool {
    match connection.protocol_version() {
        // In a full handshake its last message is the first that is encrypted.
        Some(ProtocolVersion::TLSv1_2) => {
            !connection.is_handshaking()
                || connection.handshake_kind() == Some(HandshakeKind::Resumed)
        }
        _ => connection.negotiated_cipher_suite().is_some(),
    }
}

/// The alert for what rustls has none for. An alert of the client is not answered with one.
fn clear_alert(error: &TlsError) -> Option<u8> {
    let alert = match error {
        TlsError::Protocol(rustls::Error::AlertReceived(_)) => return None,
        TlsError::Protocol(_) => AlertDescription::DecodeError,
        TlsError::TooLong => AlertDescription::IllegalParameter,
        _ => AlertDescription::InternalError,
    };
    Some(u8::from(alert))
}

/// What is left of slices that stand for one stretch of bytes.
struct SlicesLeft<'s> {
    slices: &'s [IoSlice<'s>],
    /// Bytes of the first that are taken.
    used: usize,
}

impl<'s> SlicesLeft<'s> {
    /// Takes `bytes`, which must be there, from the front: as they are if they are in one slice, or else put together in
    /// `joined`.
    fn take<'t>(&mut self, bytes: usize, joined: &'t mut Vec<u8>) -> &'t [u8]
    where
        's: 't,
    {
        joined.clear();
        let mut left = bytes;
        while let [first, behind @ ..] = self.slices {
            let first: &'s [u8] = first.get(self.used..).unwrap_or_default();
            if left <= first.len() && joined.is_empty() {
                self.used += left;
                return &first[..left];
            }
            let count = left.min(first.len());
            joined.extend_from_slice(&first[..count]);
            self.used += count;
            left -= count;
            if left == 0 {
                break;
            }
            self.slices = behind;
            self.used = 0;
        }
        joined
    }
}

/// Where the results of [`drive`] go.
struct Output<'a> {
    unsent: &'a mut Vec<u8>,
    plain: &'a mut [u8],
    plain_bytes: &'a mut usize,
}

impl Output<'_> {
    fn push_plain(&mut self, bytes: &[u8]) -> Result<(), TlsError> {
        let end = *self.plain_bytes + bytes.len();
        let place = self
            .plain
            .get_mut(*self.plain_bytes..end)
            .ok_or(TlsError::NoRoom)?;
        place.copy_from_slice(bytes);
        *self.plain_bytes = end;
        Ok(())
    }
}

/// Appends a record that rustls has made to what is unsent.
fn push_record(
    mut record: EncodeTlsData<'_, ServerConnectionData>,
    unsent: &mut Vec<u8>,
) -> Result<(), TlsError> {
    let Err(EncodeError::InsufficientSize(size)) = record.encode(&mut []) else {
        return Ok(());
    };
    let InsufficientSizeError { required_size } = size;
    let begin = unsent.len();
    unsent.resize(begin + required_size, 0);
    match record.encode(&mut unsent[begin..]) {
        Ok(_) => Ok(()),
        Err(_) => Err(TlsError::NoRoom),
    }
}

/// Appends to `unsent` what rustls has to send by itself, as when keys change, and does `work` where it takes plaintext.
/// `None`: it takes none.
fn with_traffic<R>(
    connection: &mut UnbufferedServerConnection,
    held: &mut [u8],
    unsent: &mut Vec<u8>,
    work: impl FnOnce(&mut WriteTraffic<'_, ServerConnectionData>, &mut Vec<u8>) -> R,
) -> Result<Option<R>, TlsError> {
    loop {
        match connection.process_tls_records(held).state? {
            ConnectionState::EncodeTlsData(record) => push_record(record, unsent)?,
            ConnectionState::TransmitTlsData(records) => records.done(),
            ConnectionState::WriteTraffic(mut traffic) => {
                return Ok(Some(work(&mut traffic, unsent)));
            }
            _ => return Ok(None),
        }
    }
}

/// Appends the alert of a connection that has failed. rustls must not see the client's bytes again: it panics when they
/// are not those it has been shown before. It does not look at them as long as it has something to send. Answers
/// whether an alert in the clear is among what was appended.
fn take_alert(connection: &mut UnbufferedServerConnection, unsent: &mut Vec<u8>) -> bool {
    let mut has_alert = false;
    while connection.wants_write() {
        match connection.process_tls_records(&mut []).state {
            Ok(ConnectionState::EncodeTlsData(record)) => {
                let begin = unsent.len();
                let _ = push_record(record, unsent);
                has_alert |= unsent.get(begin) == Some(&ALERT);
            }
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while traffic.next_record().is_some() {}
            }
            _ => break,
        }
    }
    has_alert
}

/// What [`drive`] has done.
#[derive(Default)]
struct Driven {
    /// Bytes from the front of the input that are of no more use.
    used: usize,
    is_ended: bool,
}

/// Goes on as far as `incoming` and the connection allow.
fn drive(
    connection: &mut UnbufferedServerConnection,
    incoming: &mut [u8],
    output: &mut Output<'_>,
) -> Result<Driven, TlsError> {
    let mut driven = Driven::default();
    loop {
        let input = incoming.get_mut(driven.used..).unwrap_or_default();
        let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(input);
        driven.used += discard;
        match state? {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    driven.used += record.discard;
                    output.push_plain(record.payload)?;
                }
            }
            ConnectionState::EncodeTlsData(record) => push_record(record, output.unsent)?,
            // They are kept until they are.
            ConnectionState::TransmitTlsData(records) => records.done(),
            ConnectionState::PeerClosed => driven.is_ended = true,
            // Early data is not offered.
            _ => return Ok(driven),
        }
    }
}

/// Whether `begun` and `more` bytes behind it are the beginning of one record and no whole one, as far as `begun` shows.
fn is_part_of_record(begun: &[u8], more: usize) -> bool {
    record_bytes(begun).is_some_and(|bytes| begun.len() + more < bytes)
}

/// Where the first record begins that is not whole in `incoming`. One begins at `from`.
fn incomplete_record(incoming: &[u8], mut from: usize) -> usize {
    while let Some(rest) = incoming.get(from..)
        && let Some(bytes) = record_bytes(rest)
        && bytes <= rest.len()
    {
        from += bytes;
    }
    from
}

/// The length of the record that begins like that, its header included, if the header is there.
fn record_bytes(begun: &[u8]) -> Option<usize> {
    match *begun {
        [_, _, _, high, low, ..] => {
            Some(RECORD_HEADER + usize::from(u16::from_be_bytes([high, low])))
        }
        _ => None,
    }
}

const RECORD_HEADER: usize = 5;
const ALERT: u8 = 21;
const FATAL: u8 = 2;
/// What a record is longer than its plaintext: header, nonce of TLS 1.2, type of TLS 1.3, tag. And a change of keys in
/// front of it.
const RECORD_OVERHEAD_MAX: usize = 128;
/// An encrypted close_notify, and a change of keys in front of it.
const ALERT_BYTES_MAX: usize = 128;
