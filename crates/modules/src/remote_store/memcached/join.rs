//! Several futures at the same time, in the task that waits for them all.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// The results of all `futures`, in their order. One that is alone costs nothing more.
pub(in crate::remote_store) async fn all<F: Future>(mut futures: Vec<F>) -> Vec<F::Output> {
    if futures.len() <= 1 {
        return match futures.pop() {
            Some(future) => vec![future.await],
            None => Vec::new(),
        };
    }
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut is_over = true;
        for (future, result) in running.iter_mut().zip(&mut results) {
            if result.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(output) => *result = Some(output),
                Poll::Pending => is_over = false,
            }
        }
        match is_over {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
