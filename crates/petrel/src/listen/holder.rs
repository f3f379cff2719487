//! Which program listens on a port, for a message that names it. Linux tells it in /proc: to root of all processes, to
//! others of their own.

use std::fs;

use config::ListenAddress;

/// The name and process id of a program that listens on the port of `address`; `None` when /proc does not tell.
pub(crate) fn holder_of(address: &ListenAddress) -> Option<(String, u32)> {
    let port = match address {
        ListenAddress::Ip(address) => address.port(),
        ListenAddress::Name { port, .. } => *port,
        ListenAddress::Unix(_) => return None,
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let sockets: Vec<String> = tables
        .iter()
        .flatten()
        .flat_map(|table| table.lines())
        .filter_map(|line| listening_on(line, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holds = |pid: &u32| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        descriptors
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok())
            .any(|target| {
                sockets
                    .iter()
                    .any(|socket| target.as_os_str() == socket.as_str())
            })
    };
    let pid = pids.find(holds)?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((name.trim_end().to_owned(), pid))
}

/// The inode of the socket that a line of /proc/net/tcp is about, if it listens on `port`. The second column is the
/// address in hexadecimal, the fourth the state (0A: it listens), the tenth the inode.
fn listening_on(line: &str, port: u16) -> Option<&str> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (_, local) = columns.get(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16) == Ok(port) && *columns.get(3)? == "0A";
    columns.get(9).copied().filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_holder_of_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = ListenAddress::Ip(listener.local_addr().expect("bound"));
        let (_, pid) = holder_of(&address).expect("it is ours");
        assert_eq!(pid, std::process::id());
        drop(listener);
        assert_eq!(holder_of(&address), None);
    }
}
