//! One process of several: runs until its standard input closes, then says when it worked.

use crate::bare_kafka;
use crate::harness::{Res, say};
use crate::ours;
use crate::wrap::Marks;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a child did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    /// First begin, as time since 1970; `None` when it got nothing to do.
    pub(crate) span: Option<(Duration, Duration)>,
}

/// Starts `ours` or `bare` as a process of its own.
pub(crate) fn spawn(kind: &str, topic: &str, url: &str, batch_max: usize) -> Res<Child> {
    let program = std::env::current_exe()?;
    let args = ["child", kind, topic, url, &batch_max.to_string()];
    Ok(Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// Closes a child's input and takes its answer.
pub(crate) fn finish(mut child: Child) -> Res<Done> {
    drop(child.stdin.take());
    let mut text = String::new();
    if let Some(out) = &mut child.stdout {
        out.read_to_string(&mut text)?;
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(format!("a child ended with {status}: {text}").into());
    }
    let numbers: Vec<u64> =
        text.lines().last().unwrap_or_default().split(' ').filter_map(|n| n.parse().ok()).collect();
    let span = match numbers.as_slice() {
        [first, last] => Some((Duration::from_nanos(*first), Duration::from_nanos(*last))),
        _ => None,
    };
    Ok(Done { span })
}

/// The child's side.
pub(crate) fn run(args: &[String]) -> Res<()> {
    let [kind, topic, url, batch_max] = args else { return Err("child: four arguments".into()) };
    let marks = Arc::new(Marks::default());
    let closed = Arc::new(AtomicBool::new(false));
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    let watch = Arc::clone(&closed);
    std::thread::spawn(move || {
        // Whatever ends standard input ends the child.
        drop(std::io::stdin().read(&mut [0; 1]));
        watch.store(true, Ordering::SeqCst);
        drop(tell);
    });
    let options = bare_kafka::Loop {
        topic: topic.clone(),
        group: topic.clone(),
        url: url.clone(),
        lanes: 1,
        batch_max: batch_max.parse()?,
        commit_every: Duration::from_millis(200),
        inbox: true,
        starts: true,
        set: false,
        count: None,
    };
    if kind == "bare" {
        bare_kafka::run(&options, &marks, || closed.load(Ordering::SeqCst))?;
    } else {
        ours::run_kafka(&options, &marks, async { drop(told.await) })?;
    }
    if let Some((first, last)) = marks.span() {
        say(&format!("{} {}", first.as_nanos(), last.as_nanos()));
    }
    Ok(())
}
