//! Clients that send one request after another until they are stopped, and record every failure: a reload or
//! a stop must cause none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crate::client::{Client, ClientError};
use crate::stream::Address;

/// Running clients.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<LoadResult>>,
}

/// The result of the clients.
#[derive(Debug, Default)]
pub struct LoadResult {
    /// Requests with a complete response.
    pub answered: u64,
    /// The failures of the others.
    pub failures: Vec<String>,
    /// How many connections were opened.
    pub connections: u64,
}

impl Load {
    /// Starts clients. `kept` of them use a connection for as long as the server allows, `fresh` ones open a
    /// connection per request. All request `target` and expect 200.
    pub fn start(address: &Address, target: &str, kept: usize, fresh: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let threads = (0..kept + fresh)
            .map(|index| {
                let worker = Worker {
                    address: address.clone(),
                    request: request(target, index < kept),
                    stop: Arc::clone(&stop),
                    answered: Arc::clone(&answered),
                };
                thread::spawn(move || worker.run())
            })
            .collect();
        Load {
            stop,
            answered,
            threads,
        }
    }

    /// Requests answered so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Waits until `count` more requests were answered.
    ///
    /// # Panics
    /// They were not.
    pub fn wait_for(&self, count: u64) {
        let goal = self.answered() + count;
        assert!(
            crate::eventually(|| self.answered() >= goal),
            "the load got stuck"
        );
    }

    /// Stops the clients.
    pub fn stop(self) -> LoadResult {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = LoadResult::default();
        for thread in self.threads {
            let one = thread.join().expect("a load client does not panic");
            sum.answered += one.answered;
            sum.connections += one.connections;
            sum.failures.extend(one.failures);
        }
        sum
    }
}

struct Worker {
    address: Address,
    request: String,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
}

impl Worker {
    fn run(self) -> LoadResult {
        let mut result = LoadResult::default();
        let mut client = None;
        while !self.stop.load(Ordering::Relaxed) && result.failures.len() < 3 {
            let mut connected = match client.take() {
                Some(client) => client,
                None => match Client::try_connect(&self.address) {
                    Ok(client) => {
                        result.connections += 1;
                        client
                    }
                    Err(error) => {
                        result.failures.push(format!("connect: {error}"));
                        continue;
                    }
                },
            };
            match self.ask(&mut connected) {
                Ok(true) => client = Some(connected),
                Ok(false) => {}
                Err(failure) => {
                    result.failures.push(failure);
                    continue;
                }
            }
            result.answered += 1;
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Sends one request. Returns whether the connection can be used again.
    fn ask(&self, client: &mut Client) -> Result<bool, String> {
        client.send(&self.request);
        match client.try_response() {
            Ok(response) if response.status == 200 => Ok(!response.closes()),
            Ok(response) => Err(format!("answered {}", response.status)),
            Err(error @ ClientError::Closed) => Err(format!("unanswered: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn request(target: &str, keep: bool) -> String {
    let connection = if keep { "" } else { "Connection: close\r\n" };
    format!("GET {target} HTTP/1.1\r\nHost: petrel.test\r\n{connection}\r\n")
}
