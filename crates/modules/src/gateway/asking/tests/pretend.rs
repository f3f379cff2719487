//! An application with several processes that only pretends to run scripts, and time that passes only when all
//! tasks wait for it.
//!
//! The sockets are real, and so is the kernel that the gateway asks. Both answer at once, so no virtual time
//! passes until each byte that was sent has been read by whichever task waits for it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use petrel_engine::clock::Clock;
use petrel_engine::proto::fastcgi::{
    ProtocolStatus, kind, write_end_request, write_stream, write_values_result,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::Instant;

/// Time that jumps to the next timer when all tasks wait. The clocks of workers follow it.
pub(super) struct VirtualTime {
    begun: Instant,
    shown: Cell<Duration>,
    clocks: RefCell<Vec<Rc<Clock>>>,
    /// Called when time has passed, before any task runs: all is as it was for that time.
    witness: RefCell<Option<Box<dyn Fn()>>>,
}

/// What an application does with GET_VALUES, or that it speaks SCGI.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner {
    /// Answers when it reads the question (php-fpm).
    Answers,
    /// Answers, ends the connection, and discards what comes until the other side has closed it (PHP before
    /// 8.2.12).
    AnswersOnce,
    /// Answers in front of its next reply (libfcgi).
    AnswersLate,
    /// Answers, keeps no connection, and ends when one closes without a request (Ruby's library without its C part).
    EndsWithout,
    /// Does not answer.
    Ignores,
    /// Closes the connection.
    Closes,
    /// Sends these bytes instead of an answer.
    Sends(fn() -> Vec<u8>),
    /// Answers, and sends answers to no question in the middle of each reply and behind it.
    AnswersUnasked,
    /// Accepts connections and reads nothing.
    NeverReads,
    /// Speaks SCGI: one request on each connection.
    Scgi,
}

/// When a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// When it has read the question, which it does not answer.
    AtQuestion,
    /// In a script, before anything of a reply was sent.
    InScript,
}

/// A pretend application.
pub(super) struct Application {
    listener: UnixListener,
    manner: Manner,
    /// Requests after which a process closes a connection; 0: it keeps them.
    requests_max: u32,
    /// Since when each process has had nothing to do; `None`: it is busy.
    idle_since: Vec<Cell<Option<Instant>>>,
    /// How often each script was run.
    runs: RefCell<BTreeMap<usize, u32>>,
    /// The next process that gets there dies, and another one takes its place.
    death: Cell<Option<Death>>,
    /// For how long its processes start.
    starts_for: Cell<Duration>,
    /// How long after its last reply a process closes a connection.
    closes_after: Cell<Duration>,
    /// How often a connection was closed without a request.
    unused: Cell<usize>,
}

impl VirtualTime {
    /// Runs `test` with its tasks in virtual time.
    pub(super) fn run<F: Future>(test: impl FnOnce(Rc<VirtualTime>) -> F) -> F::Output {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build();
        // Tokio lets time pass although sockets are ready, unless the task that it blocks on is woken. So all
        // tasks are in that one.
        let tasks = LocalSet::new();
        runtime.expect("a runtime").block_on(async {
            let time = Rc::new(VirtualTime {
                begun: Instant::now(),
                shown: Cell::default(),
                clocks: RefCell::default(),
                witness: RefCell::default(),
            });
            let mut test = pin!(tasks.run_until(test(Rc::clone(&time))));
            poll_fn(|context| {
                time.pass();
                test.as_mut().poll(context)
            })
            .await
        })
    }

    /// From now on `clock` shows virtual time. All such clocks show the same.
    pub(super) fn drive(&self, clock: &Rc<Clock>) {
        clock.skip(Duration::ZERO);
        let mut clocks = self.clocks.borrow_mut();
        if let Some(first) = clocks.first() {
            // It was stopped before, so it is behind by the real time since then.
            let behind = Duration::from_nanos(clock.now() - first.now());
            clocks.iter().for_each(|clock| clock.skip(behind));
        }
        clocks.push(Rc::clone(clock));
    }

    /// Calls `witness` each time that time has passed.
    pub(super) fn observe(&self, witness: impl Fn() + 'static) {
        self.witness.replace(Some(Box::new(witness)));
    }

    fn pass(&self) {
        let now = self.begun.elapsed();
        let by = now - self.shown.replace(now);
        if by.is_zero() {
            return;
        }
        for clock in self.clocks.borrow().iter() {
            clock.skip(by);
        }
        if let Some(witness) = &*self.witness.borrow() {
            witness();
        }
    }
}

impl Application {
    /// An application that listens at `path`, with so many processes.
    pub(super) fn start(
        path: &str,
        manner: Manner,
        processes: usize,
        requests_max: u32,
    ) -> Rc<Application> {
        let application = Rc::new(Application {
            listener: UnixListener::bind(path).expect("the path is free"),
            manner,
            requests_max,
            idle_since: (0..processes).map(|_| Cell::default()).collect(),
            runs: RefCell::default(),
            death: Cell::new(None),
            starts_for: Cell::default(),
            closes_after: Cell::default(),
            unused: Cell::default(),
        });
        for process in 0..processes {
            tokio::task::spawn_local(Rc::clone(&application).run(process));
        }
        application
    }

    /// How often the scripts from 0 on were run.
    pub(super) fn runs(&self, scripts: usize) -> Vec<u32> {
        let runs = self.runs.borrow();
        let count = |script| runs.get(&script).copied().unwrap_or_default();
        (0..scripts).map(count).collect()
    }

    /// One process will die.
    pub(super) fn let_die(&self, death: Death) {
        self.death.set(Some(death));
    }

    /// Its processes take so long until they accept connections, although the socket is there.
    pub(super) fn starts_for(&self, time: Duration) {
        self.starts_for.set(time);
    }

    /// Its processes close connections so long after the last reply.
    pub(super) fn closes_after(&self, time: Duration) {
        self.closes_after.set(time);
    }

    /// How often a connection was closed without a request.
    pub(super) fn unused(&self) -> usize {
        self.unused.get()
    }

    /// For how long the process has been idle that has been so for longest.
    pub(super) fn longest_idle(&self) -> Duration {
        let since = self.idle_since.iter().filter_map(Cell::get);
        since.map(|since| since.elapsed()).max().unwrap_or_default()
    }

    async fn run(self: Rc<Self>, process: usize) {
        tokio::time::sleep(self.starts_for.get()).await;
        loop {
            self.is_idle(process);
            let (mut stream, _) = self.listener.accept().await.expect("it listens");
            // An error means that the other side has closed the connection.
            let _ = match self.manner {
                Manner::Scgi => self.serve_scgi(process, &mut stream).await,
                _ => {
                    let served = Cell::new(0);
                    let ended = self.serve(process, &mut stream, &served).await;
                    let is_unused = ended.is_err() && served.get() == 0;
                    self.unused.update(|count| count + usize::from(is_unused));
                    ended
                }
            };
            close(&stream);
        }
    }

    async fn serve(
        &self,
        process: usize,
        stream: &mut UnixStream,
        served: &Cell<u32>,
    ) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let (mut keeps, mut owed, mut params) = (true, Vec::new(), Vec::new());
        if matches!(self.manner, Manner::NeverReads) {
            std::future::pending::<()>().await;
        }
        loop {
            self.is_idle(process);
            let (kind, content) = read_record(&mut stream).await?;
            match kind {
                kind::GET_VALUES if self.dies(Death::AtQuestion) => return Ok(()),
                kind::GET_VALUES => match self.manner {
                    Manner::Closes => return Ok(()),
                    Manner::AnswersLate => owed.extend(values_answer()),
                    Manner::Sends(bytes) => stream.write_all(&bytes()).await?,
                    Manner::Answers | Manner::AnswersUnasked | Manner::EndsWithout => {
                        stream.write_all(&values_answer()).await?;
                    }
                    Manner::AnswersOnce => {
                        stream.write_all(&values_answer()).await?;
                        stream.shutdown().await?;
                        while stream.read(&mut [0; 4096]).await? > 0 {}
                        return Ok(());
                    }
                    Manner::Ignores | Manner::NeverReads | Manner::Scgi => {}
                },
                kind::BEGIN_REQUEST => keeps = content[2] == 1,
                kind::PARAMS => params.extend(content),
                kind::STDIN if content.is_empty() => {
                    let script = Script::find(&params);
                    params.clear();
                    self.run_script(process, script).await;
                    if self.dies(Death::InScript) {
                        return Ok(());
                    }
                    let reply = script.reply();
                    let (first, rest) = reply.split_at(reply.len() - 1);
                    let unasked = match self.manner {
                        Manner::AnswersUnasked => values_answer(),
                        _ => Vec::new(),
                    };
                    let mut records = std::mem::take(&mut owed);
                    write_stream(&mut records, kind::STDOUT, 1, first);
                    records.extend(&unasked);
                    write_stream(&mut records, kind::STDOUT, 1, rest);
                    write_end_request(&mut records, 1, 0, ProtocolStatus::RequestComplete);
                    records.extend(&unasked);
                    stream.write_all(&records).await?;
                    served.update(|served| served + 1);
                    let closes = matches!(self.manner, Manner::EndsWithout);
                    if !keeps || closes || served.get() == self.requests_max {
                        tokio::time::sleep(self.closes_after.get()).await;
                        close(stream.get_ref());
                        tokio::time::sleep(script.works_on).await;
                        return Ok(());
                    }
                    tokio::time::sleep(script.works_on).await;
                }
                _ => {}
            }
        }
    }

    fn dies(&self, death: Death) -> bool {
        let dies = self.death.get() == Some(death);
        if dies {
            self.death.set(None);
        }
        dies
    }

    async fn serve_scgi(&self, process: usize, stream: &mut UnixStream) -> io::Result<()> {
        let mut request = Vec::new();
        // The bodies of requests end with this.
        while !request.ends_with(END_OF_BODY) {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
        }
        let script = Script::find(&request);
        self.run_script(process, script).await;
        stream.write_all(&script.reply()).await?;
        close(stream);
        tokio::time::sleep(script.works_on).await;
        Ok(())
    }

    async fn run_script(&self, process: usize, script: Script) {
        self.idle_since[process].set(None);
        *self.runs.borrow_mut().entry(script.number).or_default() += 1;
        tokio::time::sleep(script.takes).await;
    }

    fn is_idle(&self, process: usize) {
        let since = &self.idle_since[process];
        since.set(since.get().or_else(|| Some(Instant::now())));
    }
}

/// Closes a connection at once. Dropping it is not enough: a program that another test starts meanwhile has a copy of
/// the socket until it runs.
fn close(stream: &UnixStream) {
    // An error means that the other side has closed it.
    let _ = rustix::net::shutdown(stream, rustix::net::Shutdown::Both);
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) number: usize,
    pub(super) takes: Duration,
    /// For how long the process works on when its reply is complete.
    pub(super) works_on: Duration,
}

impl Script {
    pub(super) fn path(&self) -> String {
        let Script {
            number,
            takes,
            works_on,
        } = self;
        format!(
            "/script/{number}/{}/{}/",
            takes.as_millis(),
            works_on.as_millis()
        )
    }

    /// The first one that is named in a request.
    fn find(request: &[u8]) -> Script {
        let start = memchr::memmem::find(request, b"/script/").expect("it names a script");
        let text = String::from_utf8_lossy(&request[start..]);
        let mut numbers = text.split('/').skip(2).map(|text| text.parse::<u64>());
        let mut next = || numbers.next().expect("a part").expect("a number");
        Script {
            number: next() as usize,
            takes: Duration::from_millis(next()),
            works_on: Duration::from_millis(next()),
        }
    }

    fn reply(&self) -> Vec<u8> {
        format!("Status: 200 OK\r\n\r\nran {}", self.number).into_bytes()
    }
}

/// The answer of php-fpm.
pub(super) fn values_answer() -> Vec<u8> {
    let mut answer = Vec::new();
    write_values_result(&mut answer, [(&b"FCGI_MPXS_CONNS"[..], &b"0"[..])]);
    answer
}

/// Kind and content of the next record.
pub(super) async fn read_record(
    stream: &mut (impl AsyncReadExt + Unpin),
) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 8];
    stream.read_exact(&mut header).await?;
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let mut content = vec![0; length + usize::from(header[6])];
    stream.read_exact(&mut content).await?;
    content.truncate(length);
    Ok((header[1], content))
}

/// The end of each request body.
pub(super) const END_OF_BODY: &[u8] = b"!";
