//! Starts processes for a test and ends them when the test is gone.
//!
//! `keeper DIRECTORY` reads one command line per line of stdin (a JSON array; its first element is the file
//! that gets the output) and answers with a line: the process number, or what went wrong. When stdin ends,
//! for whatever reason, it kills what it started and removes the directory.

use std::{
    error::Error,
    fs::{self, File},
    io::{self, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: keeper DIRECTORY")?);
    // A ctrl-C in the terminal of the test is not for us: we are who clears up after it.
    nix::unistd::setsid()?;
    let mut children = Vec::new();
    for line in io::stdin().lines() {
        let Ok(line) = line else { break };
        let answer = match start(&line) {
            Ok(child) => {
                let id = child.id();
                children.push(child);
                id.to_string()
            }
            Err(error) => format!("error: {error}"),
        };
        if writeln!(io::stdout(), "{answer}").is_err() {
            break;
        }
    }
    for child in &mut children {
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn start(line: &str) -> Result<Child, Box<dyn Error>> {
    let words: Vec<String> = serde_json::from_str(line)?;
    let [log, program, arguments @ ..] = words.as_slice() else {
        return Err("a log file and a program are needed".into());
    };
    let log = File::create(log)?;
    Ok(Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()?)
}
