//! `server.feature-flags`: lighttpd's map of switches for special behaviour.
//!
//! [`FLAGS`] lists every flag that lighttpd knows with its effect here, so that no flag is ignored silently.

use petrel_config::schema::nearest;
use petrel_config::{Diagnostic, Element};

use super::super::Values;
use crate::log::TimePrecision;

/// The values of the flags that have an effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// `http10.range`: Range works in HTTP/1.0 requests, too. lighttpd's default is that it does not.
    pub http10_range: bool,
    /// `server.absolute-dir-redirect`: redirects to a directory have scheme and host in Location.
    pub absolute_dir_redirect: bool,
    /// `server.graceful-shutdown-timeout`: how many seconds a stop or a reload leaves to requests; 0 is no
    /// limit. `None`: it is not set.
    pub graceful_timeout_s: Option<u32>,
    /// `server.http-pathinfo`: a path that continues after the name of a file is PATH_INFO and not a 404.
    pub pathinfo: bool,
    /// `server.errorlog-high-precision`.
    pub error_log_precision: TimePrecision,
    /// `auth.delay-invalid-creds`: a client that sends a wrong password gets the response a second later.
    pub delay_invalid_creds: bool,
}

impl Default for Features {
    fn default() -> Features {
        Features {
            http10_range: true,
            absolute_dir_redirect: false,
            graceful_timeout_s: None,
            pathinfo: true,
            error_log_precision: TimePrecision::Seconds,
            delay_invalid_creds: true,
        }
    }
}

/// Where clients may use HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Http2Offer {
    /// Over TLS, if the client selects it in the handshake (ALPN).
    pub(crate) over_tls: bool,
    /// Without TLS, if the client begins with it or upgrades from HTTP/1.1.
    pub(crate) in_clear: bool,
}

impl Http2Offer {
    /// Reads the feature flags, and `server.h2c`, which takes precedence over the flag of that name.
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

/// The effect of a flag.
enum Flag {
    /// The flag switches a behaviour on or off.
    Switch(fn(&mut Features) -> &mut bool),
    /// The flag has another value.
    Works(fn(&mut Features, &Element) -> Result<(), Diagnostic>),
    /// The flag needs no code: the feature that it belongs to warns by itself while it is not implemented, or
    /// the flag cannot matter here.
    NothingToDo,
    /// The flag would change something, which is not implemented.
    NotYet {
        /// The value of the flag that asks for no change.
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

/// Whether HTTP/2 is offered at all.
const H2PROTO: &str = "server.h2proto";

/// The name of both a flag and a directive.
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
    // Flags of gateways and TLS, whose directives warn where they are not implemented. A connection that
    // guesses passwords stays open.
    ("auth.http-goaway-invalid-creds", Flag::NothingToDo),
    ("cgi.tempfile-accum", Flag::NothingToDo),
    ("proxy.force-http10", Flag::NothingToDo),
    ("server.discard-backend-1xx", Flag::NothingToDo),
    ("server.h1-discard-backend-1xx", Flag::NothingToDo),
    ("server.h2-discard-backend-1xx", Flag::NothingToDo),
    ("ssl.refresh-certs", Flag::NothingToDo),
    ("ssl.refresh-crls", Flag::NothingToDo),
    ("ssl.session-cache", Flag::NothingToDo),
    // These are read with the settings of a connection: [`Http2Offer`].
    (H2PROTO, Flag::Works(|_, element| switch(element).map(drop))),
    (H2C, Flag::Works(|_, element| switch(element).map(drop))),
    // How lighttpd moves bytes internally, and its guard against a wall clock that jumps. Timers here use the
    // monotonic clock.
    ("chunkqueue.splice", Flag::NothingToDo),
    ("server.clock-jump-restart", Flag::NothingToDo),
    // A reload never closes a listener that stays in the configuration, and never drops a connection.
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
