//! The script of the package that prints content types.

use std::fmt::Write as _;

use petrel_engine::settings::mime::BUILT_IN_TYPES;

/// packaging/mime-types.
pub(crate) fn script() -> String {
    let mut types = String::new();
    for (key, content_type) in BUILT_IN_TYPES {
        let _ = writeln!(types, "{key} {content_type}");
    }
    format!("{HEAD}{types}{TAIL}")
}

const HEAD: &str = "#!/bin/sh
# Prints mimetype.assign: the content types that are built in, and for other names those of /etc/mime.types.
# Made by `cargo xtask docs` from the table in the code.
#
# Texts of /etc/mime.types are UTF-8, but for those that name their encoding themselves or take that of the page
# they belong to.
{
    cat << 'TYPES'
";

const TAIL: &str = r##"TYPES
    [ ! -r /etc/mime.types ] || awk '!/^#/ && NF > 1 {
        type = $1
        if (type ~ /^text\// && type !~ /\/(html|xml|javascript)$/) type = type ";charset=utf-8"
        for (i = 2; i <= NF; i++) print "." tolower($i), type
    }' /etc/mime.types
} | awk '
    BEGIN { print "mimetype.assign = (" }
    !seen[$1]++ { printf "  \"%s\" => \"%s\",\n", $1, $2 }
    END { print ")" }'
"##;
