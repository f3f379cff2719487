//! The version line, and the list of features that other tools read from `lighttpd -V`.

use std::fmt::Write as _;

use engine::network_backend::NetworkBackend;
use lua::budget::proof;

/// The version line of `-v`.
pub(crate) fn version() -> String {
    format!(
        "petrel/{} - a web server that takes lighttpd's configuration",
        env!("CARGO_PKG_VERSION")
    )
}

/// The output of `-V`: the version, and one line per feature with `+` if this program has it.
pub(crate) fn features() -> String {
    let mut text = version() + "\n";
    for (heading, list) in SECTIONS {
        let _ = write!(text, "\n{heading}:\n\n");
        for (has, name) in list {
            let _ = writeln!(text, "\t{} {name}", if *has { '+' } else { '-' });
        }
    }
    text.push_str("\nNetwork backends (server.network-backend):\n\n");
    for backend in NetworkBackend::ALL {
        let _ = writeln!(text, "\t+ {}", backend.name());
    }
    // Asks LuaJIT itself, since no other part of the program knows how LuaJIT was built.
    let (has, note) = match proof::compiled_loops_stop() {
        true => ('+', ""),
        false => ('-', " (LuaJIT without LUAJIT_ENABLE_CHECKHOOK)"),
    };
    let _ = write!(
        text,
        "\nLua:\n\n\t+ LuaJIT 2.1 (Lua 5.1)\n\t{has} JIT compiler{note}\n"
    );
    text
}

type Section = (&'static str, &'static [(bool, &'static str)]);

/// lighttpd's names, in lighttpd's order.
const SECTIONS: [Section; 3] = [
    (
        "Event Handlers",
        &[
            (false, "select (generic)"),
            (false, "poll (Unix)"),
            (true, "epoll (Linux)"),
            (false, "/dev/poll (Solaris)"),
            (false, "eventports (Solaris)"),
            (false, "kqueue (FreeBSD)"),
        ],
    ),
    (
        "Network handler",
        &[
            (true, "linux-sendfile"),
            (false, "freebsd-sendfile"),
            (false, "darwin-sendfile"),
            (false, "solaris-sendfilev"),
            (true, "writev"),
            (true, "write"),
            (false, "mmap support"),
        ],
    ),
    (
        "Features",
        &[
            (true, "IPv6 support"),
            (true, "zlib support"),
            (true, "zstd support"),
            (false, "bzip2 support"),
            (true, "brotli support"),
            (false, "crypt support"),
            (true, "OpenSSL support"),
            (false, "mbedTLS support"),
            (false, "NSS crypto support"),
            (false, "GnuTLS support"),
            (false, "WolfSSL support"),
            (false, "Nettle support"),
            (true, "PCRE support"),
            (false, "MySQL support"),
            (false, "PgSQL support"),
            (false, "DBI support"),
            (false, "Kerberos support"),
            (true, "LDAP support"),
            (true, "PAM support"),
            (false, "FAM support"),
            (true, "LUA support"),
            (false, "xml support"),
            (false, "SQLite support"),
            (true, "Y2038 support"),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_have_the_form_tools_look_for() {
        let text = features();
        assert!(text.contains("\n\t+ JIT compiler\n"));
        assert!(text.contains("\n\t+ PCRE support\n"));
        assert!(text.contains("\n\t- MySQL support\n"));
        for more in [
            "LDAP support",
            "LuaJIT 2.1 (Lua 5.1)",
            "io_uring",
            "gthread-aio",
        ] {
            assert!(text.contains(&format!("\n\t+ {more}\n")), "{more}: {text}");
        }
        assert!(text.starts_with(&version()));
    }
}
