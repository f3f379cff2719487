//! Encodes commands.

/// Appends a command: its name and arguments, each of any bytes. Appends nothing without arguments, because
/// Redis does not reply to an empty command.
pub fn write_command<A: AsRef<[u8]>>(out: &mut Vec<u8>, arguments: &[A]) {
    if arguments.is_empty() {
        return;
    }
    write_line(out, b'*', arguments.len());
    for argument in arguments {
        let argument = argument.as_ref();
        write_line(out, b'$', argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

fn write_line(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}
