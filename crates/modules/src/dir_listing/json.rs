//! The listing for programs.

use petrel_engine::proto::escape;

use super::entries::ListingEntry;

/// Appends one object of the array. A name that is not UTF-8 cannot be said in JSON: its bytes that
/// are not become U+FFFD.
pub(super) fn write_entry(out: &mut Vec<u8>, entry: &ListingEntry<'_>, is_first: bool) {
    out.extend_from_slice(if is_first {
        b"\n{\"name\":\""
    } else {
        b",\n{\"name\":\""
    });
    escape::json(out, entry.name);
    let rest = match entry.is_directory {
        true => format!(
            "\",\"type\":\"directory\",\"size\":null,\"mtime\":{}}}",
            entry.modified_s
        ),
        false => {
            format!(
                "\",\"type\":\"file\",\"size\":{},\"mtime\":{}}}",
                entry.size, entry.modified_s
            )
        }
    };
    out.extend_from_slice(rest.as_bytes());
}
