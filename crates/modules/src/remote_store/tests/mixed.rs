//! Many operations at the same time on a server that fails now and then in every way: each reply must get to
//! the operation that it belongs to.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use petrel_engine::proto::resp::{ReplyLimits, RespDecoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use crate::remote_store::testing::{redis_options, run, stores};
use crate::remote_store::{Redis, Value};

/// Pseudo-random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Answers each `ECHO text` with the text, most of the time.
async fn echo(mut stream: TcpStream, mut numbers: Numbers) -> std::io::Result<()> {
    let mut decoder = RespDecoder::new(ReplyLimits::default());
    let mut input = [0; 1000];
    loop {
        let count = stream.read(&mut input).await?;
        if count == 0 {
            return Ok(());
        }
        // Commands have the format of replies. One arrives at a time.
        let fed = decoder.feed(&input[..count]).expect("a command");
        let Some(Value::Array(command)) = fed.value else {
            continue;
        };
        assert_eq!(fed.consumed, count, "the next comes after the reply");
        let text = command.into_iter().nth(1).and_then(Value::into_bytes);
        let text = text.expect("ECHO has an argument");
        let mut reply = format!("${}\r\n", text.len()).into_bytes();
        reply.extend(text);
        reply.extend(b"\r\n");
        let (half, rest) = reply.split_at(reply.len() / 2);
        match numbers.below(16) {
            0 => return Ok(()),
            1 => return stream.write_all(half).await,
            2 => stream.write_all(b"?").await?,
            3 => {
                stream
                    .write_all(&[&reply[..], b"$5\r\nextra\r\n"].concat())
                    .await?
            }
            4 => {
                sleep(Duration::from_millis(numbers.below(45))).await;
                stream.write_all(&reply).await?;
            }
            5 => {
                stream.write_all(half).await?;
                sleep(Duration::from_millis(numbers.below(45))).await;
                stream.write_all(rest).await?;
            }
            _ => stream.write_all(&reply).await?,
        }
    }
}

/// Sends many commands, gives some up, and counts the replies.
async fn ask(redis: Rc<Redis>, name: u64, replies: &Cell<u32>) {
    let mut numbers = Numbers(name);
    for turn in 0..40 {
        let text = format!("{name}:{turn}");
        let patience = Duration::from_millis(numbers.below(60));
        let command = ["ECHO", &text];
        match timeout(patience, redis.command(&command)).await {
            Ok(Ok(reply)) => {
                assert_eq!(reply, Value::Bulk(text.into()));
                replies.set(replies.get() + 1);
            }
            Ok(Err(error)) if error.is_repeated() => sleep(Duration::from_millis(20)).await,
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

#[test]
fn each_operation_gets_its_own_reply() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let server = tokio::spawn(async move {
            for number in 1.. {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(echo(stream, Numbers(number)));
            }
        });
        let (_site, stores) = stores();
        let mut options = redis_options(&address);
        options.timeout_ms = 30;
        options.connections_max = 8;
        let redis = stores.redis(&options).expect("it can be made");
        let replies = Cell::new(0);
        let asked = (0..32).map(|name| ask(Rc::clone(&redis), name, &replies));
        join_all(asked).await;
        assert!(replies.get() > 0);
        assert!(redis.pool().server.kept_count() <= 8);
        server.abort();
    });
}
