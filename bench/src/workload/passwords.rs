//! One user behind Basic authentication, with a hash that all servers support (`$apr1$`, a thousand rounds of
//! MD5).

use super::{Urls, Workload};

/// How servers may treat a log-in that was good a moment ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Login {
    /// Remember it, if the server can; nginx cannot.
    Remembered,
    /// Hash the password for each request.
    First,
}

/// The field of every request, for the user anna with the password secret.
pub const FIELD: &str = "Authorization: Basic YW5uYTpzZWNyZXQ=\r\n";

/// The file with the user.
pub const USERS: &str = "anna:$apr1$5LPTBWS5$9d9N.kvIoYsrT/f.4F2qn1\n";

/// How `workload` treats log-ins, if it has any.
pub fn login(workload: &Workload) -> Option<Login> {
    match workload.urls {
        Urls::Guarded(_, login) => Some(login),
        _ => None,
    }
}
