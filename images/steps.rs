//! Progress of long work, one line when a step starts and one with its time when it ends.

use std::{
    fmt::{self, Display},
    future::Future,
    sync::Arc,
    time::Instant,
};

/// Where the lines go.
#[derive(Clone)]
pub struct Steps {
    print: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Steps {
    /// Lines to `print`.
    pub fn new(print: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { print: Arc::new(print) }
    }

    /// Lines to stderr, so that stdout stays for results.
    pub fn stderr() -> Self {
        Self::new(|line| eprintln!("{line}"))
    }

    /// One line of its own.
    pub fn note(&self, line: impl Display) {
        (self.print)(&line.to_string());
    }

    /// Runs a step and says how long it took.
    pub async fn step<T, E>(
        &self,
        what: impl Display,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let started = Instant::now();
        self.note(format_args!("{what} ..."));
        let result = work.await;
        let end = if result.is_ok() { "done" } else { "failed" };
        self.note(format_args!("{what}: {end} in {:.1} s", started.elapsed().as_secs_f64()));
        result
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Steps")
    }
}
