//! A backend and a request for it, for tests of conversations and for fuzz targets.

use std::rc::Rc;

use petrel_engine::proto::request_head::{BodyFraming, RequestHead};
use petrel_engine::testing::Site;

use super::http::HttpConversation;
use super::{BodyLength, Conversation, Outgoing};
use crate::gateway::options::{BackendHost, Extras, HostAddress, Protocol};

/// The head that an HTTP backend is sent for a request whose head `fill` makes. `None`: no request can have
/// that head.
pub fn http_request(fill: impl FnOnce(&mut RequestHead) -> bool) -> Option<Vec<u8>> {
    thread_local! {
        static SITE: Site = Site::new("server.document-root = \"/nonexistent\"", &[]);
    }
    let run = SITE.with(|site| site.unanswered_built(fill))?;
    let request = Outgoing {
        exchange: &run,
        host: &host(Protocol::Http),
        extras: &Extras::default(),
        body: match run.body_framing() {
            BodyFraming::None => BodyLength::None,
            BodyFraming::Length(length) => BodyLength::Known(length),
            BodyFraming::Chunked => BodyLength::Unknown,
        },
    };
    let mut out = Vec::new();
    let mut conversation = HttpConversation::new(&Rc::default());
    conversation.encode_head(&request, &mut out).ok()?;
    Some(out)
}

/// A backend with this `protocol`.
pub(super) fn host(protocol: Protocol) -> BackendHost {
    BackendHost::plain("test", HostAddress::Unix(b"/nowhere".to_vec()), protocol)
}
