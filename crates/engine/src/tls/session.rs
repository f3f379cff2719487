//! The server's side of one TLS connection, around rustls's unbuffered connection.
//!
//! Only this file names rustls's server connection types. The owner reads from the socket into
//! [`TlsSession::read_room`], then calls [`TlsSession::receive`]. It writes to the socket what
//! [`TlsSession::outgoing`] returns, or [`TlsSession::encrypt`], which adds records with new plaintext. After
//! an error only the alert is left to be written.
//!
//! A session that waits for its client holds no buffer: all sessions of a worker share one [`TlsBuffers`].
//! Between two calls a session keeps only the beginning of an incomplete record, and records that the socket
//! has not taken.

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
use rustls::{AlertDescription, CertificateError, HandshakeKind, ProtocolVersion, ServerConfig};

use super::facts::{self, TlsFacts, TlsVersion};
use super::record_sizes::RecordSizes;
use crate::limits;

/// Returns the configuration for a ClientHello, or the alert to refuse the client with.
///
/// Configurations with different rules for client certificates must not share a ticketer. When a client
/// resumes a session, rustls neither asks for a certificate nor calls the verifier, and returns the
/// certificates of the session that the ticket is from. With one ticketer for two rules a client could get a
/// ticket under one rule and use it under the other (compare CVE-2025-23419). An owner that enforces
/// certificates also refuses a session that has none ([`TlsFacts::client_certificates`]).
///
/// The chooser sees the first ClientHello. After a HelloRetryRequest the client sends a second one, which
/// rustls does not compare with the first: it may list other ALPN protocols. [`TlsFacts::alpn`] has the one
/// that was agreed on, which is always one of the configuration's.
pub type ChooseConfig<'a> =
    dyn Fn(&ClientHello) -> Result<Arc<ServerConfig>, AlertDescription> + 'a;

/// A TLS connection with a client.
pub struct TlsSession {
    stage: Stage,
    /// Received bytes that wait for the rest of a record or message. rustls decrypts in place, so a part of
    /// them may be plaintext.
    held: Vec<u8>,
    /// The place in `held` where the incomplete record begins. rustls has seen the records in front of it.
    held_from: usize,
    /// Records to be written; the socket has taken the first `unsent_from` bytes.
    unsent: Vec<u8>,
    unsent_from: usize,
    sizes: RecordSizes,
    server_name: Option<Box<str>>,
    /// The client has sent close_notify.
    is_ended: bool,
    has_said_end: bool,
}

enum Stage {
    /// The ClientHello has not come whole.
    Hello(ClientHelloDecoder),
    Open(Box<UnbufferedServerConnection>),
    /// An error has ended the session. It is kept here if the owner got plaintext first and has not been told
    /// of the error.
    Over(Option<TlsError>),
}

/// Buffers that the sessions of a worker use one after the other.
pub struct TlsBuffers {
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
    /// Bytes of records at the front of `outgoing`.
    filled: usize,
    /// The place where several slices of plaintext are joined for one record.
    joined: Vec<u8>,
}

/// Bytes to be written to the socket. When this is dropped, the session keeps those that the socket has not
/// taken.
pub struct Outgoing<'a> {
    session: &'a mut TlsSession,
    buffers: &'a mut TlsBuffers,
    taken: usize,
}

/// The result of [`TlsSession::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes of plaintext.
    pub bytes: usize,
    /// The client has sent close_notify. It may still read.
    pub is_end: bool,
    /// An error behind these bytes has ended the session. The next [`TlsSession::receive`] returns it.
    pub is_over: bool,
}

/// Why a session is over.
#[derive(Debug)]
pub enum TlsError {
    /// The connection does not begin with a ClientHello, or with one that cannot be used.
    Hello(HelloError),
    /// The chooser has refused the client.
    Refused(AlertDescription),
    /// The client has broken the protocol, or client and server have no version, cipher suite or group in
    /// common.
    Protocol(rustls::Error),
    /// A handshake message of the client is longer than [`limits::TLS_HELD_BYTES_MAX`].
    TooLong,
    /// The key has encrypted as many records as it may.
    KeyExhausted,
    /// A buffer of the owner is too small.
    NoRoom,
    /// The chosen configuration asks for early data or a record length, which sessions do not support.
    Configuration,
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Hello(error) => error.fmt(formatter),
            TlsError::Refused(alert) => write!(formatter, "the client is refused: {alert:?}"),
            TlsError::Protocol(rustls::Error::InvalidCertificate(CertificateError::Other(why))) => {
                write!(formatter, "the client's certificate is refused: {}", why.0)
            }
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
    /// The `count` bytes that the owner has just read into [`TlsSession::read_room`].
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

/// From the client to the server.
impl TlsSession {
    /// The buffer into which the owner reads next from the socket.
    pub fn read_room<'b>(&self, buffers: &'b mut TlsBuffers) -> &'b mut [u8] {
        let incoming = &mut buffers.incoming;
        match &self.stage {
            // `receive_hello` puts the complete message, as one record, in front of the bytes that follow it:
            // room for it is left.
            Stage::Hello(_) => {
                let message = RECORD_HEADER + MESSAGE_BYTES_MAX;
                incoming.get_mut(..incoming.len().saturating_sub(message))
            }
            Stage::Open(_) | Stage::Over(_) => incoming.get_mut(self.held.len()..),
        }
        .unwrap_or_default()
    }

    /// Takes `count` bytes that were read into [`read_room`](Self::read_room), decrypts the complete records,
    /// and puts the plaintext into `plain`, which must be as large as the worker's receive buffer. After
    /// [`say_end`](Self::say_end) received bytes are dropped.
    ///
    /// # Errors
    /// Final: the owner writes what is outgoing and closes the connection. If an established session has
    /// decrypted something in front of the broken record, this call returns the plaintext, and the next call
    /// the error.
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
            // The owner of a session that was not established has no facts about the client, so it cannot use
            // the plaintext.
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
        // rustls gets the message as one record, however many records it came in.
        hello.write_record(&mut self.held);
        drop(hello);
        self.stage = Stage::Open(Box::new(UnbufferedServerConnection::new(config)?));
        // The bytes that came behind the message are moved behind that record.
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
        // rustls must not see records any more: it would answer a broken one with an alert, which must not
        // follow close_notify.
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

    /// To be asked when the socket has ended: whether the client sent no close_notify, so that its data may
    /// be incomplete. A close_notify that comes after [`say_end`](Self::say_end) is not seen.
    pub fn is_cut_off(&self) -> bool {
        !self.is_ended
    }
}

/// From the server to the client.
impl TlsSession {
    /// Encrypts `slices`, in this order, into records behind those that are outgoing, as much as one write
    /// should take. Encrypts nothing if the outgoing records have to be written first, or if the handshake is
    /// not done. The largest slice should be the last one: bytes of the others are copied more often.
    ///
    /// About `budget` bytes are outgoing then at most: so much memory the session keeps if the socket takes
    /// nothing. An owner whose last write was taken in part, or whose client has not yet read an answer,
    /// passes 16 KiB; others may pass more. The smallest budget is one small record.
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

    /// The bytes to be written to the socket, in one call.
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
                // The first record takes the bytes that do not fill a whole record, together with the slices
                // in front. So fewer bytes of the last slice have to be copied to join them.
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
            // A record that does not fit waits for the next write instead of being made smaller.
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

    /// Returns the length of the record; `None` if there is no room.
    fn encrypt_record(&mut self, plain: &[u8], room: &mut [u8]) -> Result<Option<usize>, TlsError> {
        let Stage::Open(connection) = &mut self.stage else {
            return Ok(None);
        };
        let (held, unsent) = (&mut self.held, &mut self.unsent);
        let encrypted = with_traffic(connection, held, unsent, |traffic, unsent| {
            // If rustls has a KeyUpdate to send, it goes out before any record under the new key, so no
            // record is made now.
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

    /// Queues close_notify behind what is outgoing, once, and only after the handshake. Bytes that the client
    /// sends from now on are dropped, so an owner that still reads from the client, as a tunnel does, calls
    /// this last.
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
        // After an error there is no close_notify to send.
        let _ = with_traffic(connection, held, unsent, |traffic, unsent| {
            if let Ok(length) = traffic.queue_close_notify(&mut room) {
                unsent.extend_from_slice(&room[..length]);
            }
        });
        self.held = Vec::new();
    }

    /// Moves the records in `buffers` behind the first `count` bytes to the front of `unsent`.
    fn keep_unwritten(&mut self, buffers: &mut TlsBuffers, count: usize) {
        let rest = buffers
            .outgoing
            .get(count..buffers.filled)
            .unwrap_or_default();
        self.unsent.splice(..0, rest.iter().copied());
        buffers.filled = 0;
    }

    /// Moves `unsent` into `buffers`, so that new records can follow in one write. Returns false if it is too
    /// long for that.
    fn move_unsent(&mut self, buffers: &mut TlsBuffers) -> bool {
        let unsent = self.unsent.get(self.unsent_from..).unwrap_or_default();
        if unsent.is_empty() {
            return true;
        }
        // Short: the last flight of a handshake, or a rest that is not worth a write of its own. Longer rests
        // are written first.
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
    /// Bytes of plaintext that [`TlsSession::encrypt`] has encrypted.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The records, to be written in one call.
    pub fn bytes(&self) -> &[u8] {
        let unsent = self.session.unsent.get(self.session.unsent_from..);
        match self.buffers.filled {
            0 => unsent.unwrap_or_default(),
            filled => self.buffers.outgoing.get(..filled).unwrap_or_default(),
        }
    }

    /// The socket has taken the first `count` bytes.
    pub fn wrote(self, count: usize) {
        let session = &mut *self.session;
        if self.buffers.filled > 0 {
            return session.keep_unwritten(self.buffers, count);
        }
        session.unsent_from = (session.unsent_from + count).min(session.unsent.len());
        // Memory is given back each time half of the bytes are sent, so that a byte is moved only a few
        // times.
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

/// The state of the session.
impl TlsSession {
    /// Whether the handshake is done.
    pub fn is_established(&self) -> bool {
        matches!(&self.stage, Stage::Open(connection) if !connection.is_handshaking())
    }

    /// Whether the client has sent a byte.
    pub fn has_begun(&self) -> bool {
        match &self.stage {
            Stage::Hello(decoder) => decoder.has_begun(),
            Stage::Open(_) | Stage::Over(_) => true,
        }
    }

    /// Whether the client has sent close_notify.
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

    /// The results of the handshake, when it is done.
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

    /// Ends the session because of `error`, and queues the alert. When keys are in use only rustls can
    /// encrypt an alert, and it does so only for errors that it has found itself. For other errors the
    /// connection ends without an alert then.
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

/// Whether the server may have begun to encrypt.
fn has_keys(connection: &UnbufferedServerConnection) -> bool {
    match connection.protocol_version() {
        // In a full TLS 1.2 handshake the last message of the server is the first encrypted one.
        Some(ProtocolVersion::TLSv1_2) => {
            !connection.is_handshaking()
                || connection.handshake_kind() == Some(HandshakeKind::Resumed)
        }
        _ => connection.negotiated_cipher_suite().is_some(),
    }
}

/// The alert for an error for which rustls has queued none. An alert of the client is not answered with an
/// alert.
fn clear_alert(error: &TlsError) -> Option<u8> {
    let alert = match error {
        TlsError::Protocol(rustls::Error::AlertReceived(_)) => return None,
        TlsError::Protocol(_) => AlertDescription::DecodeError,
        TlsError::TooLong => AlertDescription::IllegalParameter,
        _ => AlertDescription::InternalError,
    };
    Some(u8::from(alert))
}

/// The rest of a list of slices that make up one sequence of bytes.
struct SlicesLeft<'s> {
    slices: &'s [IoSlice<'s>],
    /// Bytes of the first slice that are taken.
    used: usize,
}

impl<'s> SlicesLeft<'s> {
    /// Takes the first `bytes`, which must be there: without a copy if they are in one slice, otherwise
    /// joined in `joined`.
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

/// The buffers that [`drive`] writes to.
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

/// Appends a handshake record of rustls to `unsent`.
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

/// Appends to `unsent` the records that rustls has to send by itself, such as a KeyUpdate, then calls `work`
/// if rustls takes plaintext. Returns `None` if it does not.
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

/// Appends to `unsent` the alert of a connection that has failed. Returns whether an alert in the clear was
/// appended. rustls gets no input here: it panics when the input is not the same as before, and does not look
/// at it while it has something to send.
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

/// The result of [`drive`].
#[derive(Default)]
struct Driven {
    /// Bytes at the front of the input that are done with.
    used: usize,
    is_ended: bool,
}

/// Lets rustls process `incoming` until it needs more input or takes plaintext to send.
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
            // rustls may go on: the records are in `unsent`, from where they will be transmitted.
            ConnectionState::TransmitTlsData(records) => records.done(),
            ConnectionState::PeerClosed => driven.is_ended = true,
            // Other states are about early data, which is not offered.
            _ => return Ok(driven),
        }
    }
}

/// Whether `begun` has the header of a record that is still incomplete with `more` further bytes.
fn is_part_of_record(begun: &[u8], more: usize) -> bool {
    record_bytes(begun).is_some_and(|bytes| begun.len() + more < bytes)
}

/// The position of the first incomplete record in `incoming`. A record begins at `from`.
fn incomplete_record(incoming: &[u8], mut from: usize) -> usize {
    while let Some(rest) = incoming.get(from..)
        && let Some(bytes) = record_bytes(rest)
        && bytes <= rest.len()
    {
        from += bytes;
    }
    from
}

/// The length of the record that begins with `begun`, its header included; `None` if the header is
/// incomplete.
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
/// Bytes that a record has beside its plaintext: header, nonce (TLS 1.2), content type (TLS 1.3) and tag, and
/// room for a KeyUpdate in front of it.
const RECORD_OVERHEAD_MAX: usize = 128;
/// Bytes of an encrypted close_notify, and of a KeyUpdate in front of it.
const ALERT_BYTES_MAX: usize = 128;
