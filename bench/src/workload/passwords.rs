//! One user behind Basic authentication, with a hash that all servers know (`$apr1$`, a thousand rounds of MD5).

use super::{Urls, Workload};

/// What servers may do about a log-in that was good a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// Remember it, if they can: nginx cannot.
    Remembered,
    /// Hash the password for each request.
    First,
}

/// The field of every request: anna, secret.
pub const FIELD: &str = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";

/// The file with the user.
pub const USERS: &str = "anna:$apr1$5LPTBWS5$9d9N.kvIoYsrT/f.4F2qn1\n";

/// What `workload` is about, if that are log-ins.
pub fn login(workload: &Workload) -> Option<Login> {
    match workload.urls {
        Urls::Guarded(_, login) => Some(login),
        _ => None,
    }
}
