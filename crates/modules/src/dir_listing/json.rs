//! The listing as JSON.

use petrel_engine::proto::escape;

use super::entries::ListingEntry;

/// Appends one object of the array. JSON cannot express bytes that are not UTF-8, so they become U+FFFD.
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
