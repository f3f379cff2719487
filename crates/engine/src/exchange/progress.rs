//! How far an exchange is on its way through the phases.

use petrel_proto::status::Status;

use crate::cause::StatusOrigin;
use crate::ledger::Stage;
use crate::metrics::Route;
use crate::module::{Pending, Phase};
use crate::response::Response;

/// The state of the phase loop for one exchange.
#[derive(Default)]
pub(crate) struct WalkProgress {
    pub(crate) phase: Option<Phase>,
    pub(crate) hook: usize,
    /// The modules, a bit each, whose hooks do not run again in this phase; see
    /// [`Exchange::set_client`](crate::Exchange::set_client).
    pub(crate) passed: u128,
    /// The module whose hook ran last before there was a response. The core, if that answered.
    pub(crate) module: Route,
    /// A module, and the part of it that one of its hooks has named
    /// ([`Exchange::set_route`](crate::Exchange::set_route)).
    part: (Route, Route),
    pub(crate) restarts: u8,
    pub(crate) pending: Option<Box<dyn Pending>>,
    /// The error that an error handler answers for, or that an error page shows.
    pub(crate) error: Option<HandledError>,
    pub(crate) worked: bool,
    /// The stage for the present hook's time, if that is not the one of the phase.
    pub(crate) counts_as: Option<Stage>,
    /// The stage of the present wait ([`Pending::waits_in`]).
    pub(crate) waits_in: Option<Stage>,
}

/// An error that `server.error-handler` or `server.error-handler-404` answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandledError {
    pub(crate) status: Status,
    /// Set by `server.error-handler`: the response keeps the status of the error, unless an application sets
    /// another one.
    pub(crate) keeps_status: bool,
    /// Why it is an error.
    pub(crate) origin: StatusOrigin,
}

impl HandledError {
    /// The error in `response`, which no handler may change.
    pub(crate) fn standing(response: &Response) -> HandledError {
        HandledError {
            status: response.status,
            keeps_status: true,
            origin: response.status_origin(),
        }
    }
}

impl WalkProgress {
    /// The phase begins again, without the hooks of the module that runs.
    pub(crate) fn pass(&mut self) {
        self.hook = 0;
        self.passed |= bit_of(self.module);
    }

    /// Whether the hooks of the module of `route` do not run again.
    pub(crate) fn is_passed(&self, route: Route) -> bool {
        self.passed & bit_of(route) != 0
    }

    /// Whether the response is complete and no hook changes it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Some(Phase::Log)
    }

    /// What the response counts for: the module that answered, or the part of it that it has named.
    #[inline]
    pub(crate) fn route(&self) -> Route {
        let (module, part) = self.part;
        match module == self.module {
            true => part,
            false => self.module,
        }
    }

    #[inline]
    pub(crate) fn set_route(&mut self, part: Route) {
        self.part = (self.module, part);
    }

    /// The phase whose hooks run.
    pub(crate) fn phase(&self) -> Phase {
        self.phase.unwrap_or(Phase::Translate)
    }

    /// The stage of the ledger for the present hook.
    pub(crate) fn stage(&self) -> Stage {
        self.counts_as.unwrap_or_else(|| self.stage_of_phase())
    }

    /// The stage of the ledger for the present phase.
    pub(crate) fn stage_of_phase(&self) -> Stage {
        match self.phase() {
            Phase::Translate => Stage::Translate,
            Phase::Authorize => Stage::Authorize,
            Phase::DocumentRoot | Phase::Map | Phase::Resolved => Stage::Map,
            Phase::Content => Stage::Content,
            Phase::Store | Phase::Transform | Phase::Log | Phase::Refused => Stage::Transform,
        }
    }
}

fn bit_of(route: Route) -> u128 {
    let index = route
        .module_index()
        .and_then(|index| u32::try_from(index).ok());
    index
        .and_then(|index| 1_u128.checked_shl(index))
        .unwrap_or_default()
}
