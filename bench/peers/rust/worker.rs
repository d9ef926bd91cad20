// The worker that shutdown-probe and compare.py ask for, on the official Rust SDK.
use std::time::{Duration, Instant};

use ojs::{JobContext, Worker};
use serde_json::Value;

fn variable(name: &str, otherwise: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| otherwise.to_string())
}

// 500ms, 30s, 1m30s
fn duration(name: &str, otherwise: &str) -> Duration {
    let text = variable(name, otherwise);
    let mut rest = text.as_str();
    let mut whole = 0;
    while let Some(at) = rest.find(|c: char| !c.is_ascii_digit()) {
        let number: u64 = rest[..at].parse().unwrap_or(0);
        let end = rest[at..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |n| at + n);
        whole += number
            * match &rest[at..end] {
                "ms" => 1,
                "m" => 60_000,
                _ => 1_000,
            };
        rest = &rest[end..];
    }
    Duration::from_millis(whole)
}

fn asked(job: &JobContext) -> Duration {
    Duration::from_millis(job.job.args[0].as_u64().unwrap_or(0))
}

// The SDK looks for SIGINT alone; what stops containers and services is SIGTERM.
async fn pass_sigterm_on() {
    let mut stream = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    while stream.recv().await.is_some() {
        unsafe { libc::raise(libc::SIGINT) };
    }
}

#[tokio::main]
async fn main() -> ojs::Result<()> {
    tokio::spawn(pass_sigterm_on());
    let queues = variable("OJS_QUEUES", "default");
    let worker = Worker::builder()
        .url(variable("OJS_URL", "http://127.0.0.1:8080"))
        .queues(queues.split(',').collect())
        .concurrency(variable("OJS_CONCURRENCY", "10").parse().unwrap_or(10))
        .grace_period(duration("OJS_SHUTDOWN_GRACE_PERIOD", "25s"))
        .heartbeat_interval(duration("OJS_HEARTBEAT_INTERVAL", "5s"))
        .poll_interval(duration("OJS_POLL_INTERVAL", "1s"))
        .build()?;
    let sleep = |job: JobContext| async move {
        tokio::time::sleep(asked(&job)).await;
        Ok(Value::Null)
    };
    let spin = |job: JobContext| async move {
        let end = Instant::now() + asked(&job);
        let _ = tokio::task::spawn_blocking(move || while Instant::now() < end {}).await;
        Ok(Value::Null)
    };
    worker.register("probe.sleep", sleep).await;
    worker.register("probe.spin", spin).await;
    worker.register("noop", |_: JobContext| async { Ok(Value::Null) }).await;
    worker.start().await
}
