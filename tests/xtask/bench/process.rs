//! What the kernel says of a process.

use std::{fs, io::ErrorKind, time::Duration};

use anyhow::Context;
use nix::errno::Errno;

/// Clock ticks of the kernel's counters in a second; the same on every architecture Linux runs on today.
const TICKS: u64 = 100;

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    /// All that is in RAM.
    pub(super) resident: u64,
    /// The most it ever was.
    pub(super) peak: u64,
    /// Of the first, what belongs to it alone: heap, stacks, relocated data.
    pub(super) anonymous: u64,
    /// Of the first, what is mapped from files: the program and its libraries; shared with the page cache.
    pub(super) file: u64,
}

/// What a process used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    /// Time on a core, of all its threads.
    pub(super) time: Duration,
    /// Page faults of children that ended and were waited for. Every program that is started has some, so this
    /// stands still if and only if none was started and collected.
    pub(super) children_faults: u64,
}

impl Memory {
    pub(super) fn of(process: u32) -> anyhow::Result<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{process}/status"))?).context("memory of the process")
    }

    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
        };
        Some(Self {
            resident: field("VmRSS")?,
            peak: field("VmHWM")?,
            anonymous: field("RssAnon")?,
            file: field("RssFile")?,
        })
    }
}

impl Usage {
    pub(super) fn of(process: u32) -> anyhow::Result<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
        let mut usage = Self::parse(&text).context("usage of the process")?;
        // The scheduler counts nanoseconds, but only of threads that still live.
        let mut nanoseconds = 0;
        for text in of_threads(process, "schedstat")? {
            let first = text.split_whitespace().next().context("schedstat is empty")?;
            nanoseconds += first.parse::<u64>()?;
        }
        usage.time = usage.time.max(Duration::from_nanos(nanoseconds));
        Ok(usage)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may have spaces and brackets; after it fields are counted from 3 (proc_pid_stat(5)).
        let (_, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let field = |number: usize| -> Option<u64> { fields.get(number.checked_sub(3)?)?.parse().ok() };
        let ticks = field(14)? + field(15)?;
        Some(Self { time: Duration::from_millis(ticks * 1000 / TICKS), children_faults: field(11)? })
    }
}

/// The children a process has now.
pub(super) fn children(process: u32) -> anyhow::Result<usize> {
    Ok(of_threads(process, "children")?.iter().map(|text| text.split_whitespace().count()).sum())
}

/// A file of each of the threads that live.
fn of_threads(process: u32, file: &str) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        match fs::read_to_string(thread?.path().join(file)) {
            Ok(text) => texts.push(text),
            // It ended after it was listed: no such file, or no such process if it ended while being read.
            Err(error)
                if error.kind() == ErrorKind::NotFound
                    || error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{file} of a thread of process {process}"));
            }
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        let status = "Name:\tx\nVmHWM:\t    2 kB\nVmRSS:\t    1 kB\nRssAnon:\t 3 kB\nRssFile:\t 4 kB\n";
        let memory = Memory { resident: 1024, peak: 2048, anonymous: 3072, file: 4096 };
        assert_eq!(Memory::parse(status), Some(memory));
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 50 0 0 12 30 1 2 20 0 1 0";
        assert_eq!(Usage::parse(stat), Some(Usage { time: Duration::from_millis(420), children_faults: 50 }));
        assert_eq!(Memory::parse(""), None);
        assert_eq!(Usage::parse(""), None);
    }

    #[test]
    fn a_child_that_was_waited_for_leaves_faults() {
        let this = std::process::id();
        let before = Usage::of(this).unwrap().children_faults;
        std::process::Command::new("true").status().unwrap();
        assert!(Usage::of(this).unwrap().children_faults > before);
        assert!(Memory::of(this).unwrap().resident > 0);
        children(this).unwrap();
    }
}
