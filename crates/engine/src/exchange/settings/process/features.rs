//! `server.feature-flags`: behaviour that lighttpd hides behind a map of switches.
//!
//! [`FLAGS`] lists every name lighttpd knows with what comes of it here, so that none is skipped in
//! silence.

use petrel_config::schema::nearest;
use petrel_config::{Diagnostic, Element};

use super::super::Values;
use crate::log::TimePrecision;

/// The flags that do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// `http10.range`: Range is honoured on HTTP/1.0 too.
    pub http10_range: bool,
    /// `server.absolute-dir-redirect`: the Location of a redirect to a directory names scheme and
    /// host.
    pub absolute_dir_redirect: bool,
    /// `server.graceful-shutdown-timeout`, if it is set: seconds that a stop and a reload leave to requests;
    /// 0 is no limit.
    pub graceful_timeout_s: Option<u32>,
    /// `server.http-pathinfo`: a path that goes on behind a file is its PATH_INFO, not a 404.
    pub pathinfo: bool,
    /// `server.errorlog-high-precision`.
    pub error_log_precision: TimePrecision,
    /// `auth.delay-invalid-creds`: who has sent a wrong password is told so after a second.
    pub delay_invalid_creds: bool,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            http10_range: false,
            absolute_dir_redirect: false,
            graceful_timeout_s: None,
            pathinfo: true,
            error_log_precision: TimePrecision::Seconds,
            delay_invalid_creds: true,
        }
    }
}

/// Where clients may speak HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Http2Offer {
    /// Over TLS, if they choose it in the handshake (ALPN).
    pub(crate) over_tls: bool,
    /// In the clear: if they begin with it, or ask for the change from HTTP/1.1.
    pub(crate) in_clear: bool,
}

impl Http2Offer {
    /// What the feature flags say, and `server.h2c`, which is above the flag of that name.
    pub(crate) fn read(values: &Values<'_>) -> Http2Offer {
        let flag = |name: &str| {
            let mut flags = values.array(NAME).into_iter().flatten();
            let element = flags.find(|element| element.key() == Some(name))?;
            element.value.as_bool()
        };
        let is_known = flag(H2PROTO).unwrap_or(true);
        let in_clear = values.bool(H2C).or_else(|| flag(H2C)).unwrap_or(false);
        Http2Offer {
            over_tls: is_known,
            in_clear: is_known && in_clear,
        }
    }
}

pub(super) fn read(
    values: &Values<'_>,
    warnings: &mut Vec<Diagnostic>,
) -> Result<Features, Diagnostic> {
    let mut features = Features::default();
    for element in values.array(NAME).into_iter().flatten() {
        let Some(key) = element.key() else {
            let message = format!("{NAME} takes flags: ( \"http10.range\" => \"enable\" )");
            return Err(Diagnostic::error(message, element.span));
        };
        match FLAGS.iter().find(|(name, _)| *name == key) {
            Some((_, Flag::Switch(field))) => *field(&mut features) = switch(element)?,
            Some((_, Flag::Works(set))) => set(&mut features, element)?,
            Some((_, Flag::NothingToDo)) => {}
            Some((_, Flag::NotYet { default })) => {
                if element.value.as_bool() != Some(*default) {
                    let message = format!("the feature flag {key} has no effect yet");
                    warnings.push(Diagnostic::warning(message, element.span));
                }
            }
            None => warnings.push(unknown(element, key)),
        }
    }
    Ok(features)
}

/// What comes of a flag.
enum Flag {
    /// It switches something.
    Switch(fn(&mut Features) -> &mut bool),
    /// It sets something.
    Works(fn(&mut Features, &Element) -> Result<(), Diagnostic>),
    /// It belongs to something that warns by itself while it is not built, or cannot matter here.
    NothingToDo,
    /// It would change something, and does not.
    NotYet {
        /// The value that asks for nothing.
        default: bool,
    },
}

fn switch(element: &Element) -> Result<bool, Diagnostic> {
    let error = || Diagnostic::error("this flag takes \"enable\" or \"disable\"", element.span);
    element.value.as_bool().ok_or_else(error)
}

fn seconds(element: &Element) -> Result<u32, Diagnostic> {
    let number = element
        .value
        .as_integer()
        .and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| Diagnostic::error("this flag takes a number of seconds", element.span))
}

fn unknown(element: &Element, key: &str) -> Diagnostic {
    let span = element.key.as_ref().map_or(element.span, |key| key.span);
    let warning = Diagnostic::warning(format!("there is no feature flag {key}"), span);
    match nearest(key, FLAGS.iter().map(|(name, _)| *name)).first() {
        Some(near) => warning.with_hint(format!("did you mean {near}?")),
        None => warning,
    }
}

const NAME: &str = "server.feature-flags";

/// Whether HTTP/2 is spoken at all.
const H2PROTO: &str = "server.h2proto";

/// The flag, and the directive.
const H2C: &str = "server.h2c";

const FLAGS: &[(&str, Flag)] = &[
    (
        "http10.range",
        Flag::Switch(|features| &mut features.http10_range),
    ),
    (
        "server.absolute-dir-redirect",
        Flag::Switch(|features| &mut features.absolute_dir_redirect),
    ),
    (
        "server.graceful-shutdown-timeout",
        Flag::Works(|features, element| {
            features.graceful_timeout_s = Some(seconds(element)?);
            Ok(())
        }),
    ),
    (
        "server.http-pathinfo",
        Flag::Switch(|features| &mut features.pathinfo),
    ),
    (
        "server.errorlog-high-precision",
        Flag::Works(|features, element| {
            if switch(element)? {
                features.error_log_precision = TimePrecision::Nanoseconds;
            }
            Ok(())
        }),
    ),
    (
        "auth.delay-invalid-creds",
        Flag::Switch(|features| &mut features.delay_invalid_creds),
    ),
    // Of gateways and TLS, whose directives say that they are not built. A connection that guesses passwords stays.
    ("auth.http-goaway-invalid-creds", Flag::NothingToDo),
    ("cgi.tempfile-accum", Flag::NothingToDo),
    ("proxy.force-http10", Flag::NothingToDo),
    ("server.discard-backend-1xx", Flag::NothingToDo),
    ("server.h1-discard-backend-1xx", Flag::NothingToDo),
    ("server.h2-discard-backend-1xx", Flag::NothingToDo),
    ("ssl.refresh-certs", Flag::NothingToDo),
    ("ssl.refresh-crls", Flag::NothingToDo),
    ("ssl.session-cache", Flag::NothingToDo),
    // Read with the settings of a connection: [`Http2Offer`].
    (H2PROTO, Flag::Works(|_, element| switch(element).map(drop))),
    (H2C, Flag::Works(|_, element| switch(element).map(drop))),
    // How the bytes travel inside lighttpd, and its guard against a wall clock that jumps: timers
    // here run on the monotonic clock.
    ("chunkqueue.splice", Flag::NothingToDo),
    ("server.clock-jump-restart", Flag::NothingToDo),
    // A reload never closes a listener that stays, and never drops a connection.
    ("server.graceful-restart-bg", Flag::NothingToDo),
    (
        "server.graceful-unconfig-sock",
        Flag::NotYet { default: false },
    ),
    ("server.errorlog-utf8", Flag::NotYet { default: false }),
    (
        "server.metrics-high-precision",
        Flag::NotYet { default: false },
    ),
    ("server.network-mptcp", Flag::NotYet { default: false }),
    ("server.pcre_jit", Flag::NotYet { default: true }),
    ("request.trailer-whitelist", Flag::NotYet { default: false }),
];
