use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use petrel_engine::log::LogHandle;
use rustix::process::{Pid, Signal, test_kill_process};
use tokio::io::ReadBuf;

use super::child::{StartError, Started, start};
use super::spawn::Program;
use crate::gateway::protocol::Conversation;

/// Runs `work` as a worker would.
fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(Default::default());
    runtime.expect("a runtime").block_on(work)
}

/// A shell script as a program.
fn script(text: &str) -> Program {
    Program {
        path: "/bin/sh".into(),
        arguments: vec!["-c".into(), text.into(), "script".into()],
        directory: "/".into(),
        environment: vec![("GREETING".into(), "hello".into())],
        signal: Signal::TERM,
        running: Arc::default(),
        wants_end_of_client: false,
        may_upgrade: false,
    }
}

async fn try_start(program: Program) -> Result<Started, StartError> {
    start(program, 0, &LogHandle::default())?.await
}

async fn started(program: Program) -> Started {
    match try_start(program).await {
        Ok(started) => started,
        Err(error) => panic!("it starts: {error}"),
    }
}

/// Everything that the program writes.
async fn output(started: &mut Started) -> String {
    let mut text = Vec::new();
    while read(started, &mut text).await > 0 {}
    String::from_utf8(text).expect("scripts write text")
}

async fn read(started: &mut Started, text: &mut Vec<u8>) -> usize {
    let mut bytes = [0; 4096];
    let mut buffer = ReadBuf::new(&mut bytes);
    let read = poll_fn(|context| started.pipes.poll_read(context, &mut buffer));
    read.await.expect("a pipe can be read");
    text.extend_from_slice(buffer.filled());
    buffer.filled().len()
}

/// One line of the program, which goes on running.
async fn line(started: &mut Started) -> String {
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        assert!(read(started, &mut text).await > 0, "the program goes on");
    }
    String::from_utf8(text)
        .expect("scripts write text")
        .trim()
        .to_owned()
}

async fn write(started: &mut Started, bytes: &[u8]) {
    let written = poll_fn(|context| started.pipes.poll_write(context, bytes)).await;
    assert_eq!(written.expect("a pipe can be written"), bytes.len());
}

fn process(id: &str) -> Pid {
    let id = id.parse().expect("a number");
    Pid::from_raw(id).expect("it is no process group")
}

/// Waits until the process is gone. A child of this process has to be reaped, too, because a zombie keeps its
/// id. Another process may stay a zombie where process 1 does not reap, as in some containers.
async fn gone(process: Pid) {
    let begin = Instant::now();
    while test_kill_process(process).is_ok() && !is_zombie_of_another(process) {
        assert!(begin.elapsed().as_secs() < 60, "it is still there");
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

fn is_zombie_of_another(process: Pid) -> bool {
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    let stat = std::fs::read_to_string(path).unwrap_or_default();
    // "PID (NAME) STATE PARENT ..."; the name may contain spaces.
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' '));
    let Some(mut fields) = fields else {
        return false;
    };
    fields.next() == Some("Z") && fields.next() != Some(&std::process::id().to_string())
}

#[test]
fn a_program_reads_its_input_and_has_the_environment_it_is_given() {
    run(async {
        let mut started = started(script(
            "read a; echo \"$GREETING $a $PWD $HOME\"; cat; id=$$",
        ))
        .await;
        write(&mut started, b"body\nmore\nend").await;
        started.pipes.request_is_sent();
        assert_eq!(output(&mut started).await, "hello body / \nmore\nend");
    });
}

#[test]
fn a_program_has_three_descriptors_and_no_others() {
    let _open = std::fs::File::open("/dev/null").expect("it is there");
    run(async {
        // The last descriptor is the one that `ls` itself opens.
        let mut started = started(script("exec /bin/ls /proc/self/fd")).await;
        started.pipes.request_is_sent();
        assert_eq!(output(&mut started).await, "0\n1\n2\n3\n");
    });
}

#[test]
fn standard_input_and_output_can_be_opened_by_name() {
    run(async {
        let mut started = started(script("cat /dev/stdin > /dev/stdout")).await;
        write(&mut started, b"through").await;
        started.pipes.request_is_sent();
        assert_eq!(output(&mut started).await, "through");
    });
}

#[test]
fn a_program_that_does_not_read_still_answers() {
    run(async {
        let mut started = started(script("sleep 0.1; echo answer")).await;
        write(&mut started, &[b'x'; 10_000]).await;
        assert_eq!(output(&mut started).await, "answer\n");
    });
}

#[test]
fn a_program_that_ends_is_reaped() {
    run(async {
        let mut started = started(script("echo $$")).await;
        let id = process(&line(&mut started).await);
        assert_eq!(output(&mut started).await, "");
        gone(id).await;
    });
}

#[test]
fn a_program_without_a_request_is_ended_with_what_it_started() {
    run(async {
        let mut started = started(script("sleep 60 & echo $!; echo $$; wait")).await;
        let both = [line(&mut started).await, String::new()];
        let mut ids: Vec<String> = both[0].lines().map(str::to_owned).collect();
        if ids.len() < 2 {
            ids.push(line(&mut started).await);
        }
        drop(started);
        for id in ids {
            gone(process(&id)).await;
        }
    });
}

#[test]
fn a_program_whose_request_leaves_before_the_start_is_left_out_or_ended() {
    let file = std::env::temp_dir().join(format!("petrel-cgi-unwanted-{}", std::process::id()));
    run(async {
        for _ in 0..20 {
            let mut program = script("echo $$ >> \"$FILE\"; sleep 1000");
            let path = file.clone().into();
            program.environment.push(("FILE".into(), path));
            let starting = start(program, 0, &LogHandle::default()).expect("there is room");
            tokio::task::yield_now().await;
            drop(starting);
        }
        // This program starts after them: the jobs of a client run in order.
        output(&mut started(script("echo")).await).await;
        for id in std::fs::read_to_string(&file).unwrap_or_default().lines() {
            gone(process(id)).await;
        }
    });
    // The file is missing if none of them came that far.
    let _ = std::fs::remove_file(&file);
}

#[test]
fn a_program_that_does_not_listen_to_signals_is_killed() {
    run(async {
        let begin = Instant::now();
        let mut started =
            started(script("trap '' TERM; echo $$; while :; do sleep 60; done")).await;
        let id = process(&line(&mut started).await);
        drop(started);
        gone(id).await;
        assert!(begin.elapsed() >= super::child::GRACE);
    });
}

#[test]
fn a_program_is_ended_by_the_signal_it_wants() {
    run(async {
        let mut program = script("trap 'echo hup; exit' HUP; echo ready; sleep 60 & wait");
        program.signal = Signal::HUP;
        program.wants_end_of_client = true;
        let mut started = started(program).await;
        assert_eq!(line(&mut started).await, "ready");
        started.pipes.client_has_ended();
        assert_eq!(line(&mut started).await, "hup");
    });
}

#[test]
fn a_program_whose_reply_is_complete_may_go_on_for_a_moment() {
    run(async {
        let text = "printf 'A: b\\n\\n'; echo $$; exec >&-; sleep 0.3; echo done > \"$FILE\"";
        let file = std::env::temp_dir().join(format!("petrel-cgi-{}", std::process::id()));
        let mut program = script(text);
        program
            .environment
            .push(("FILE".into(), file.clone().into()));
        let mut started = started(program).await;
        let text = output(&mut started).await;
        let decoded = started.conversation.decode(text.as_bytes());
        decoded.expect("it is a reply");
        started.conversation.end_of_input().expect("it is complete");
        drop(started);
        gone(process(text.lines().last().expect("its id"))).await;
        assert!(Path::exists(&file), "it was given the time");
        std::fs::remove_file(&file).expect("it is there");
    });
}

#[test]
fn what_cannot_be_started_is_an_error_and_leaves_nothing() {
    run(async {
        let mut program = script("");
        let running = Arc::clone(&program.running);
        program.path = "/nonexistent/program".into();
        let error = try_start(program).await.err();
        assert!(matches!(error, Some(StartError::Io(_))));
        let mut program = script("");
        program.environment.push(("A".into(), "b\0c".into()));
        let error = try_start(program).await.err();
        let is_input = |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidInput;
        assert!(matches!(error, Some(StartError::Io(error)) if is_input(&error)));
        assert_eq!(running.count(), 0);
    });
}

#[test]
fn a_program_that_floods_standard_error_is_cut_off() {
    run(async {
        let mut started = started(script("exec 2>&2; yes >&2; echo over")).await;
        assert_eq!(output(&mut started).await, "over\n");
    });
}
