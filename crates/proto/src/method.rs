//! Request methods, from one table.
//!
//! The table has the methods that lighttpd 1.4 knows (RFC 9110, PATCH, QUERY, WebDAV and its extensions), and
//! PURGE, which tells caches to drop a page. Method names are case-sensitive (RFC 9110 9.1). Other code
//! decides which methods are allowed.

macro_rules! methods {
    ($($variant:ident $text:literal,)*) => {
        /// A request method the server knows by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Method {
            $(#[doc = concat!("`", $text, "`")] $variant,)*
        }

        impl Method {
            /// Every method, in table order.
            pub const ALL: &'static [Method] = &[$(Method::$variant,)*];

            /// The method as it is written in a request line.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Method::$variant => $text,)*
                }
            }

            fn from_table(name: &str) -> Option<Method> {
                match name {
                    $($text => Some(Method::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

methods! {
    Get "GET",
    Head "HEAD",
    Query "QUERY",
    Post "POST",
    Put "PUT",
    Delete "DELETE",
    Connect "CONNECT",
    Options "OPTIONS",
    Trace "TRACE",
    Acl "ACL",
    BaselineControl "BASELINE-CONTROL",
    Bind "BIND",
    Checkin "CHECKIN",
    Checkout "CHECKOUT",
    Copy "COPY",
    Label "LABEL",
    Link "LINK",
    Lock "LOCK",
    Merge "MERGE",
    Mkactivity "MKACTIVITY",
    Mkcalendar "MKCALENDAR",
    Mkcol "MKCOL",
    Mkredirectref "MKREDIRECTREF",
    Mkworkspace "MKWORKSPACE",
    Move "MOVE",
    Orderpatch "ORDERPATCH",
    Patch "PATCH",
    Propfind "PROPFIND",
    Proppatch "PROPPATCH",
    Purge "PURGE",
    Rebind "REBIND",
    Report "REPORT",
    Search "SEARCH",
    Unbind "UNBIND",
    Uncheckout "UNCHECKOUT",
    Unlink "UNLINK",
    Unlock "UNLOCK",
    Update "UPDATE",
    Updateredirectref "UPDATEREDIRECTREF",
    VersionControl "VERSION-CONTROL",
}

impl Method {
    /// The method of this name, or `None` if the server does not know it (501).
    #[inline]
    pub fn from_bytes(name: &[u8]) -> Option<Method> {
        match name {
            b"GET" => Some(Method::Get),
            b"HEAD" => Some(Method::Head),
            b"POST" => Some(Method::Post),
            _ => std::str::from_utf8(name).ok().and_then(Self::from_table),
        }
    }

    /// Whether this is GET or HEAD: the methods that ranges and 304 are for.
    #[inline]
    pub const fn is_get_or_head(self) -> bool {
        matches!(self, Method::Get | Method::Head)
    }

    /// Whether a request with this method only reads (RFC 9110 9.2.1, and the methods registered as safe).
    pub const fn is_safe(self) -> bool {
        matches!(
            self,
            Method::Get
                | Method::Head
                | Method::Query
                | Method::Options
                | Method::Trace
                | Method::Propfind
                | Method::Report
                | Method::Search
        )
    }

    /// Whether a request may be sent again if its reply was lost: PUT, DELETE and the safe methods (RFC 9110
    /// 9.2.2).
    ///
    /// WebDAV calls MKCOL, COPY, MOVE, PROPPATCH and UNLOCK idempotent, too. But a second one gets another
    /// reply than the first: a MOVE that has succeeded would be reported as 404.
    pub const fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Method::Put | Method::Delete)
    }
}

impl std::fmt::Display for Method {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_own_name() {
        for &method in Method::ALL {
            assert_eq!(Method::from_bytes(method.as_str().as_bytes()), Some(method));
        }
    }

    #[test]
    fn names_are_case_sensitive_and_unknown_ones_are_refused() {
        assert_eq!(Method::from_bytes(b"get"), None);
        assert_eq!(Method::from_bytes(b"PRI"), None);
        assert_eq!(Method::from_bytes(b""), None);
        assert_eq!(Method::from_bytes(b"\xff"), None);
    }

    #[test]
    fn put_delete_and_the_safe_methods_are_idempotent() {
        let idempotent = Method::ALL.iter().filter(|method| method.is_idempotent());
        let names: Vec<&str> = idempotent.map(|method| method.as_str()).collect();
        assert_eq!(
            names,
            [
                "GET", "HEAD", "QUERY", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "REPORT",
                "SEARCH"
            ]
        );
    }
}
