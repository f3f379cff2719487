use super::*;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

/// Returns a pretend server's response for a request's path.
type Answer = fn(&str) -> Vec<u8>;

/// A server with one thread per connection, which answers each request and keeps connections open.
fn serve(answer: Answer) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let (mut buffer, mut came) = ([0; 4096], Vec::new());
                while let Ok(got @ 1..) = stream.read(&mut buffer) {
                    came.extend_from_slice(&buffer[..got]);
                    if head_ends(&came) {
                        let head = String::from_utf8(std::mem::take(&mut came)).unwrap();
                        let path = head.split(' ').nth(1).unwrap_or_default();
                        if stream.write_all(&answer(path)).is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    port
}

fn head_ends(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\r\n\r\n")
}

/// A body of 100 kB with the marks of its file.
fn names_itself(path: &str) -> Vec<u8> {
    let file = disk::Expected {
        path: path.to_owned(),
        bytes: BYTES,
    };
    let mut body = vec![0; BYTES as usize];
    for (offset, line) in file.marks() {
        body[offset as usize..][..line.len()].copy_from_slice(line.as_bytes());
    }
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").into_bytes();
    answer.extend(body);
    answer
}

fn ask(n: u32) -> Ask {
    Ask {
        file: disk::Expected {
            path: format!("/{n}"),
            bytes: BYTES,
        },
        range: None,
    }
}

/// A group that fetches this many files, each once.
fn group(files: u32, pace: Pace, reuse: Reuse) -> Group<'static> {
    let mut left = 0..files;
    Group {
        clients: 4,
        pace,
        reuse,
        sources: Sources::Own,
        next: Box::new(move || left.next().map(ask)),
    }
}

/// Runs until nothing is left or a generous time is over.
fn run(answer: Answer, group: Group<'static>) -> Result<(Ended, Seen), Error> {
    let mut client = Client::new(serve(answer), vec![group])?;
    client.count();
    let ended = client.run(Duration::from_secs(60))?;
    // When the files are out, the last fetches are still open.
    client.run(Duration::ZERO)?;
    client.stop_counting();
    Ok((ended, client.seen().remove(0)))
}

#[test]
fn every_file_is_fetched_once_on_kept_and_on_new_connections() {
    for reuse in [Reuse::Keep, Reuse::Close] {
        let (ended, seen) = run(names_itself, group(40, Pace::Closed, reuse)).unwrap();
        assert_eq!(ended, Ended::Files);
        assert!((37..=40).contains(&seen.fetches), "{}", seen.fetches);
        let connects = seen.connect.milliseconds().count;
        match reuse {
            Reuse::Keep => assert!(connects <= 4, "{connects}"),
            Reuse::Close => assert!(connects >= 37, "{connects}"),
        }
        let [first, latency] = [&seen.first, &seen.latency].map(|times| times.milliseconds());
        assert!(first.count >= latency.count && latency.count == seen.fetches);
        assert!(first.min > 0.0 && latency.mean >= first.mean, "{first:?}");
        let body = seen.body.milliseconds();
        assert!(
            body.count >= latency.count && body.min >= first.min,
            "{body:?}"
        );
    }
}

#[test]
fn another_files_content_is_an_error() {
    let wrong: Answer = |_| names_itself("/other");
    let error = run(wrong, group(40, Pace::Closed, Reuse::Keep))
        .err()
        .unwrap();
    assert!(matches!(error, Error::Content(_)), "{error}");
}

#[test]
fn another_status_and_another_length_are_errors() {
    let missing: Answer = |_| b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".to_vec();
    let error = run(missing, group(40, Pace::Closed, Reuse::Keep))
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Reply(_, Wrong::Status(404, 200))),
        "{error}"
    );
    let short: Answer = |_| b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".to_vec();
    let error = run(short, group(40, Pace::Closed, Reuse::Keep))
        .err()
        .unwrap();
    assert!(
        matches!(error, Error::Reply(_, Wrong::Length(5, _))),
        "{error}"
    );
}

#[test]
fn an_open_loop_begins_what_is_due_and_awaits_it() {
    let group = group(u32::MAX, Pace::Open(500), Reuse::Keep);
    let mut client = Client::new(serve(names_itself), vec![group]).unwrap();
    client.run(Duration::from_millis(50)).unwrap();
    client.count();
    client.run(Duration::from_millis(400)).unwrap();
    client.stop_counting();
    client.drain(Duration::from_secs(60)).unwrap();
    let seen = client.seen().remove(0);
    assert_eq!(seen.lost, 0);
    // 200 fetches were due, or more if the machine is slow.
    assert!(seen.fetches >= 195, "{}", seen.fetches);
}

#[test]
fn an_open_loop_is_woken_for_what_is_due_when_nothing_else_happens() {
    let group = group(u32::MAX, Pace::Open(20), Reuse::Keep);
    let mut client = Client::new(serve(names_itself), vec![group]).unwrap();
    client.count();
    client.run(Duration::from_millis(800)).unwrap();
    client.stop_counting();
    client.drain(Duration::from_secs(60)).unwrap();
    let late = client.seen().remove(0).late.milliseconds();
    let without_timer = LOOK_UP.as_secs_f64() * 1000.0 / 2.0;
    assert!(late.median < without_timer / 2.0, "{late:?}");
}

#[test]
fn an_open_loop_counts_what_is_lost() {
    let group = group(u32::MAX, Pace::Open(100), Reuse::Keep);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = Client::new(port, vec![group]).unwrap();
    client.count();
    client.run(Duration::from_millis(100)).unwrap();
    client.stop_counting();
    client.drain(Duration::from_millis(50)).unwrap();
    let seen = client.seen().remove(0);
    assert!(seen.lost >= 9 && seen.fetches == 0, "{}", seen.lost);
    assert!(seen.lost_because.is_some());
}

#[test]
fn who_still_waits_counts_with_the_time_waited() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut client = Client::new(port, vec![group(9, Pace::Closed, Reuse::Close)]).unwrap();
    client.count();
    client.run(Duration::from_millis(100)).unwrap();
    client.stop_counting();
    let seen = client.seen().remove(0);
    for times in [seen.first, seen.body].map(|times| times.milliseconds()) {
        assert!(times.count == 0 && times.max >= 50.0, "{times:?}");
    }
}

#[test]
fn ranges_and_closing_are_asked_for() {
    let mut one = ask(7);
    one.range = Some((90, 10));
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 80);
    let request = String::from_utf8(one.request(address, Reuse::Close)).unwrap();
    assert!(request.starts_with("GET /7 HTTP/1.1\r\n"), "{request}");
    assert!(
        request.contains("Range: bytes=90-99\r\nConnection: close\r\n\r\n"),
        "{request}"
    );
    assert_eq!((one.status(), one.offset(), one.bytes()), (206, 90, 10));
}

const BYTES: u64 = 100_000;
