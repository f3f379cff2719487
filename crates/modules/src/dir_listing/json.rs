//! The listing as JSON.

use petrel_engine::proto::escape;

use super::entries::ListingEntry;

/// Appends one object of the array. JSON cannot express bytes that are not UTF-8, so they become U+FFFD in the name;
/// the URL has them all.
pub(super) fn write_entry(out: &mut Vec<u8>, entry: &ListingEntry<'_>, is_first: bool) {
    out.extend_from_slice(if is_first {
        b"\n{\"name\":\""
    } else {
        b",\n{\"name\":\""
    });
    escape::json(out, entry.name);
    out.extend_from_slice(b"\",\"href\":\"");
    escape::percent_encode_path(out, entry.name);
    out.extend_from_slice(if entry.is_directory { b"/" } else { b"" });
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
