//! What a run keeps in its exchange.

use std::collections::VecDeque;

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::status::Status;

use crate::limits;
use crate::pace::ClientPace;
use crate::throttle::Throttle;

/// An answer ahead of the answer (RFC 9110 15.2).
#[derive(Clone, Debug)]
pub struct Interim {
    /// 1xx.
    pub status: Status,
    /// Its fields.
    pub fields: HeaderBlock,
}

impl Interim {
    /// Bytes of memory it takes, roughly.
    fn bytes(&self) -> usize {
        size_of::<Interim>() + self.fields.as_bytes().len()
    }
}

/// What a run keeps in its exchange, beside how far the hooks are.
#[derive(Default)]
pub(crate) struct RunState {
    /// The client's bytes are passed on as they are, in both directions.
    pub(crate) is_tunnel: bool,
    /// The request was refused, or its answer replaced; see [`crate::phase::refuse`].
    pub(crate) is_refused: bool,
    /// The answer takes the place of another one, of which nothing had been taken.
    pub(crate) is_replacement: bool,
    /// Answers ahead of the answer that the owner has not taken yet.
    pub(crate) interim: VecDeque<Interim>,
    /// The second in which more of a streamed request body must have come; 0: none is waited for.
    pub(crate) body_due_s: u32,
    /// How fast the client sends its body.
    pub(crate) body_pace: ClientPace,
    pub(crate) throttle: Option<Box<Throttle>>,
}

impl RunState {
    /// Keeps `interim` for the owner, unless too much waits for the client already.
    pub(crate) fn keep_interim(&mut self, interim: Interim) {
        let waiting: usize = self.interim.iter().map(Interim::bytes).sum();
        if waiting + interim.bytes() <= limits::INTERIM_BYTES_MAX {
            self.interim.push_back(interim);
        }
    }
}
