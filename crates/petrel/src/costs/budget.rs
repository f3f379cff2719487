//! The budget: the system calls and heap allocations that one warm request of each kind may make.
//!
//! tests/tests/exact/costs/budget.rs holds the server against the calls, tests/tests/exact/allocations.rs against the
//! allocations; both read this file. A test fails when a figure rises, and also when one falls: lower it here
//! then. `petrel costs` shows the row that fits its request.

/// Kinds of requests. Each is the second of its kind or a later one, on a persistent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A file that is in memory.
    Static,
    /// The same, unchanged since the client got it.
    NotModified,
    /// A file that does not exist.
    Missing,
    /// A FastCGI backend that answers for URLs with a file.
    FastCgi,
    /// A script that answers by itself.
    Lua,
    /// A response that the page cache has in the worker's memory.
    CachedPage,
    /// A FastCGI backend that answers for URLs without a file (`check-local` is off).
    Virtual,
    /// An HTTP backend.
    Proxied,
}

/// What a request may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The kind of request.
    pub(crate) route: Route,
    /// Its name.
    pub(crate) name: &'static str,
    /// How often it makes which system call. Waiting for events is not counted, and neither is one fstat a
    /// second for a file.
    pub(crate) calls: &'static [(&'static str, u64)],
    /// How often it allocates or grows memory. The small objects of scripts, which have an arena, are not
    /// counted.
    pub(crate) allocations: u64,
}

/// The budget of each route.
pub(crate) const BUDGETS: &[Budget] = &[
    Budget {
        route: Route::Static,
        name: "warm static file",
        calls: &[("recvfrom", 1), ("sendto", 1)],
        allocations: 0,
    },
    Budget {
        route: Route::NotModified,
        name: "304",
        calls: &[("recvfrom", 1), ("sendto", 1)],
        allocations: 0,
    },
    Budget {
        route: Route::Missing,
        name: "404",
        calls: &[("recvfrom", 1), ("sendto", 1)],
        allocations: 0,
    },
    Budget {
        route: Route::FastCgi,
        name: "warm FastCGI",
        calls: &[("recvfrom", 2), ("sendto", 2)],
        allocations: 2,
    },
    Budget {
        route: Route::Lua,
        name: "Lua",
        calls: &[("recvfrom", 1), ("sendto", 1)],
        allocations: 0,
    },
    Budget {
        route: Route::CachedPage,
        name: "cached page",
        calls: &[("recvfrom", 1), ("sendto", 1)],
        allocations: 0,
    },
    Budget {
        route: Route::Virtual,
        name: "virtual URL",
        calls: &[("recvfrom", 2), ("sendto", 2)],
        allocations: 2,
    },
    Budget {
        route: Route::Proxied,
        name: "proxied HTTP",
        calls: &[("recvfrom", 2), ("sendto", 2)],
        allocations: 2,
    },
];

/// The budget of `route`.
pub(crate) fn budget(route: Route) -> &'static Budget {
    let mut rows = BUDGETS.iter();
    rows.find(|row| row.route == route)
        .expect("the table has a row for every route")
}
