//! The part of an exchange that only its [`ExchangeRun`](crate::run::ExchangeRun) uses.

use std::collections::VecDeque;
use std::sync::Arc;

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::status::Status;

use crate::limits;
use crate::pace::ClientPace;
use crate::throttle::{Bucket, Throttle};

/// An interim response (RFC 9110 15.2).
#[derive(Clone, Debug)]
pub struct Interim {
    /// The status, 1xx.
    pub status: Status,
    /// The header fields.
    pub fields: HeaderBlock,
}

impl Interim {
    /// How many bytes of memory it takes, roughly.
    fn bytes(&self) -> usize {
        size_of::<Interim>() + self.fields.as_bytes().len()
    }
}

/// The state of a run, without the state of the phase loop.
#[derive(Default)]
pub(crate) struct RunState {
    /// Client and backend exchange bytes that are passed on unchanged.
    pub(crate) is_tunnel: bool,
    /// The request was refused, or its answer replaced; see [`crate::phase::refuse`].
    pub(crate) is_refused: bool,
    /// The response replaces another one, of which no byte was sent.
    pub(crate) is_replacement: bool,
    /// Interim responses that the connection has not taken yet.
    pub(crate) interim: VecDeque<Interim>,
    /// The second in which the next bytes of a streamed request body must have arrived; 0: the run does not
    /// wait for any.
    pub(crate) body_due_s: u32,
    /// How fast the client sends its body.
    pub(crate) body_pace: ClientPace,
    pub(crate) throttle: Option<Box<Throttle>>,
    /// The buckets of rules that limit the bandwidth of the client.
    pub(crate) client_buckets: Vec<Arc<Bucket>>,
}

impl RunState {
    /// Forgets the last request.
    #[inline]
    pub(crate) fn clear(&mut self) {
        let RunState {
            is_tunnel,
            is_refused,
            is_replacement,
            interim,
            body_due_s,
            body_pace,
            throttle,
            client_buckets,
        } = self;
        *is_tunnel = false;
        *is_refused = false;
        *is_replacement = false;
        if !interim.is_empty() {
            *interim = VecDeque::new();
        }
        *body_due_s = 0;
        *body_pace = ClientPace::default();
        *throttle = None;
        client_buckets.clear();
    }

    /// Queues `interim` for the connection. Drops it if too many bytes wait for the client already.
    pub(crate) fn keep_interim(&mut self, interim: Interim) {
        let waiting: usize = self.interim.iter().map(Interim::bytes).sum();
        if waiting + interim.bytes() <= limits::INTERIM_BYTES_MAX {
            self.interim.push_back(interim);
        }
    }
}
